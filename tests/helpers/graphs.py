"""Whether TensorFlow optimizes graphs in a test: not as a rule, because that takes longer than a few steps.

Grappler optimizes the graphs of users, and of the commands that tests start as processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

OPTIMIZED = {
    "tests/pipeline/transforms/test_mixup.py": "TensorFlow's result has to be NumPy's",
    "tests/pipeline/transforms/test_numpy_images.py": "TensorFlow's result has to be NumPy's",
    "tests/pipeline/transforms/test_tabular.py": "TensorFlow's result has to be NumPy's",
    "tests/test_golden.py": "digests are of what users get",
    "tests/training/models/test_remat.py": "an optimizer could undo what is computed twice",
    "tests/training/optimizers": "compiled updates have to equal a reference",
    "tests/training/records/test_clock.py": "an optimizer could take the clock for a constant",
    "tests/training/ring": "an optimizer could change the order of collectives",
    "tests/training/step": "the bits of two graphs are compared",
    "tests/training/sync/compression/test_methods.py": "threads have to give the bits of Horovod's ranks",
}
"""Files and folders of tests whose graphs are optimized, each with the reason."""


def optimize_graphs_for(path: Path) -> None:
    """Let TensorFlow optimize graphs, or not, as a test file needs; before TensorFlow is imported do nothing."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        keeps = any(path.is_relative_to(ROOT / name) for name in OPTIMIZED)
        tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": not keeps})
