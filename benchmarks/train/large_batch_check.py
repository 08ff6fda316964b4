"""Whether `ringfeed train` reaches what the study of large batches found: some of its tuned points, trained anew.

python benchmarks/train/large_batch_check.py                 on 2 CPU cores, about 20 minutes

The samples, epochs, warm-up and decay are those of `large_batch.py`; the order of samples and the first weights are
those of ringfeed. Prints the test accuracies of all seeds at each point.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))
from train.large_batch import load

POINTS: list[tuple[int, dict[str, Any]]] = [  # tuned values, from docs/large-batches.md
    (128, {"name": "sgd", "learning_rate": 2.0**-4, "momentum": 0.9}),
    (1024, {"name": "sgd", "learning_rate": 2.0**-4, "momentum": 0.95}),
    (1024, {"name": "lars", "learning_rate": 2.0**-3, "trust_coefficient": 0.1}),
    (1024, {"name": "lamb", "learning_rate": 2.0**-6, "beta_2": 0.95}),
    (4096, {"name": "lamb", "learning_rate": 2.0**-5, "beta_2": 0.95}),
]
SEEDS, HELD_OUT = 3, 5000


def build_dataset(folder: Path) -> Path:
    """The study's training samples and the test set, as two splits."""
    from ringfeed.sharding import build

    data = load(folder / "fashion.npz")
    chosen = np.random.default_rng(0).permutation(len(data["train_images"]))[HELD_OUT:]
    images = np.concatenate([data["train_images"][chosen], data["test_images"]])
    labels = np.concatenate([data["train_labels"][chosen], data["test_labels"]])
    split = np.array(["train"] * len(chosen) + ["test"] * len(data["test_labels"]))
    pixels = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(images[..., None]))
    table = pa.table({"image": pixels, "label": labels, "split": split})
    build(source=table, destination=str(folder / "data"), label="label", split_column="split")
    return folder / "data"


def accuracy(folder: Path, data: Path, batch: int, optimizer: dict[str, Any], seed: int) -> float:
    """The test accuracy of a run."""
    config = {
        "data": {"url": str(data), "batch_size": batch},
        "model": {"name": "lenet", "norm": "none"},
        "optimizer": optimizer,
        "schedule": {"warmup_epochs": 1, "decay": "cosine"},
        "epochs": 10,
        "seed": seed,
        "eval_every_epochs": 10,
        "output": {"metrics": str(folder / "metrics.json")},
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    program = [sys.executable, "-m", "ringfeed.tools.cli", "train", "-q", "--config", str(folder / "run.yaml")]
    subprocess.run(program, check=True)
    found: float = json.loads((folder / "metrics.json").read_text())["final"]["accuracy"]
    return found


def main() -> None:
    """Train every point with every seed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = build_dataset(folder)
        for batch, optimizer in POINTS:
            found = [100 * accuracy(folder, data, batch, optimizer, seed) for seed in range(SEEDS)]
            shown = ", ".join(f"{share:.1f}" for share in found)
            print(f"{optimizer['name']} at {batch:,}: {statistics.fmean(found):.1f} % ({shown})", flush=True)


if __name__ == "__main__":
    main()
