"""Processes in which TensorFlow finds no more than `ringfeed[cpu]` installs, and is imported in half the time.

Because the tests' environment has them, it imports jax, scikit-learn, SciPy, pandas, Matplotlib and IPython else.
"""

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["lean_environment"]


def lean_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for such a process: this one's, or another.

    Ranks wait for one that a busy machine holds up for longer than Horovod's 30 s.
    """
    folders = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(folders), "HOROVOD_GLOO_TIMEOUT_SECONDS": "240"}
