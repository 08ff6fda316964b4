"""From a CSV file to checked, balanced shards and batches of NumPy arrays; needs no TensorFlow.

python examples/first_shards.py [FOLDER]
"""

import csv
import random
import sys
from pathlib import Path

from ringfeed.pipeline import Loader
from ringfeed.sharding import build, verify


def write_table(path: Path) -> None:
    """Write 10,000 readings of machines, of which one in twenty is about to fail: the file that you would bring."""
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["celsius", "vibration", "site", "state"])
        for number in range(10_000):
            failing = number % 20 == 0
            celsius, vibration = rng.gauss(70 if failing else 60, 5), rng.gauss(3 if failing else 1, 0.5)
            row = [f"{celsius:.2f}", f"{vibration:.3f}", rng.choice(["Oslo", "Lima"])]
            writer.writerow([*row, "failing" if failing else "sound"])


def main(folder: Path) -> None:
    """Build, verify and read."""
    folder.mkdir(parents=True, exist_ok=True)
    table, shards = str(folder / "readings.csv"), str(folder / "shards")
    write_table(Path(table))
    build(source=table, destination=shards, label="state", split={"train": "0.8", "val": "0.2"}, overwrite=True)
    damages = verify(shards)
    print(damages or "every byte is as it was written")

    loader = Loader(shards, split="train", batch_size=256, balance="uniform", seed=1)
    batch = next(iter(loader.numpy_epoch(0)))
    names = [loader.manifest.classes[class_id] for class_id in batch["class_id"]]
    print("one batch:", {name: names.count(name) for name in sorted(set(names))})
    for name, values in batch.items():
        print(f"  {name}: {values.dtype}, {values.shape}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "first-shards"))
