"""How large a batch can be: LeNet-5 on Fashion-MNIST by SGD, Nesterov momentum, Adam, LARS and LAMB, each tuned alike.

python benchmarks/train/large_batch.py                       on a GPU, 11 minutes; JAX and NumPy suffice
python benchmarks/train/large_batch.py --report --plot docs/large-batches.svg
python benchmarks/train/large_batch.py --dry-run             a few steps on the CPU: whether all of it works

Every optimizer has a grid of rates (factors of 2) and of one knob more, the same number of trials for each. The table
has the test accuracy of the rate and knob whose validation accuracy, mean over the seeds, is the best. If the best rate
is the first or last of the grid, the next ones are tried as well. SGD also trains at each batch with the rate that
linear scaling gives. At equal epochs all batches see as many samples, at equal steps they take as many steps. Results
are written after each batch and optimizer; a second run trains what is missing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from parts.large_batch_report import batch_limits, draw, linear_rate, table, tuned

FOLDER = Path("/usr/share/datasets/fashion-mnist")
CENTRES = {"sgd": -5, "nesterov": -5, "adam": -9, "lars": -2, "lamb": -7}  # of the first grid, as powers of 2
KNOBS = {
    "sgd": ("momentum", (0.8, 0.9, 0.95)),
    "nesterov": ("momentum", (0.8, 0.9, 0.95)),
    "adam": ("1 - beta_2", (0.001, 0.01, 0.05)),
    "lars": ("trust_coefficient", (0.001, 0.01, 0.1)),
    "lamb": ("1 - beta_2", (0.001, 0.01, 0.05)),
}
WARMUP = 0.1  # share of the steps
BATCHES = (128, 4096, 1024, 16384, 2048, 8192, 512, 256)  # in this order: the time may end before they do
_MOVES = 2  # of a grid whose best rate is the first or last

Run = dict[str, Any]


def load(path: Path) -> dict[str, np.ndarray]:
    """Images and labels, uint8; makes the file from the Debian package `dataset-fashion-mnist` if it is missing."""
    if not path.exists():
        if not FOLDER.exists():
            raise SystemExit(f"neither {path} nor {FOLDER} exists: apt-get install dataset-fashion-mnist")
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for ours, theirs in (("train", "train"), ("test", "t10k")):
            pixels = gzip.decompress((FOLDER / f"{theirs}-images-idx3-ubyte.gz").read_bytes())
            arrays[f"{ours}_images"] = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28, 28)
            labels = gzip.decompress((FOLDER / f"{theirs}-labels-idx1-ubyte.gz").read_bytes())
            arrays[f"{ours}_labels"] = np.frombuffer(labels, np.uint8, offset=8)
        np.savez_compressed(path, **arrays)
    with np.load(path) as stored:
        return dict(stored)


class Study:
    """The data on the device, and the runs so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        import jax
        import jax.numpy as jnp
        from parts.lenet_trials import initial_weights

        jax.config.update("jax_default_matmul_precision", args.precision)
        self.args, self.began = args, time.monotonic()
        self.device = jax.devices()[0].device_kind
        data = load(args.data)
        held, known = args.validation, np.random.default_rng(0).permutation(len(data["train_images"]))
        chosen = known[: held + (args.samples or len(known) - held)]
        place = jnp.asarray
        self.sets = {
            "train": [place(data["train_images"][chosen[held:]]), place(data["train_labels"][chosen[held:]], "int32")],
            "validation": [
                place(data["train_images"][chosen[:held]]),
                place(data["train_labels"][chosen[:held]], "int32"),
            ],
            "test": [place(data["test_images"][: args.tested]), place(data["test_labels"][: args.tested], "int32")],
        }
        self.samples = len(chosen) - held
        longest = max(steps * batch for study, batch in self.points() for steps in [self.steps(study, batch)])
        epochs = math.ceil(longest / self.samples)
        self.order = place(
            np.stack([
                np.concatenate([
                    np.random.default_rng((seed, epoch)).permutation(self.samples) for epoch in range(epochs)
                ])
                for seed in range(args.seeds)
            ]).astype(np.int32)
        )  # fmt: skip
        every = [initial_weights(seed) for seed in range(args.seeds)]
        self.initial = {name: place(np.stack([weights[name] for weights in every])) for name in every[0]}
        self.sample_seconds = 0.0  # of the last run

    def points(self) -> Iterator[tuple[str, int]]:
        """All studies and batches, the most important first."""
        for study in self.args.studies:
            for batch in self.args.batches:
                yield study, batch

    def steps(self, study: str, batch: int) -> int:
        """Steps of a run."""
        return self.args.steps if study == "steps" else int(self.args.epochs * self.samples) // batch

    def train(self, study: str, batch: int, optimizer: str, powers: Sequence[int]) -> Run:
        """One grid of an optimizer at a batch."""
        import jax
        import jax.numpy as jnp
        from parts.lenet_trials import OPTIMIZERS, accuracies, train

        knobs = KNOBS[optimizer][1]
        pairs = [(2.0**power, knob) for power in powers for knob in knobs]
        steps, micro = self.steps(study, batch), min(batch, self.args.micro)
        began = time.monotonic()
        weights = train(
            *self.sets["train"], self.order, self.initial,
            jnp.array([rate for rate, _ in pairs], "float32"), jnp.array([knob for _, knob in pairs], "float32"),
            OPTIMIZERS.index(optimizer), steps, batch // micro, round(WARMUP * steps), micro=micro,
        )  # fmt: skip
        jax.block_until_ready(weights)
        seconds = time.monotonic() - began
        run = {"study": study, "batch": batch, "optimizer": optimizer, "steps": steps, "powers": list(powers),
               "knobs": list(knobs), "seconds": round(seconds, 2)}  # fmt: skip
        for name in ("validation", "test"):
            shares = np.asarray(accuracies(weights, *self.sets[name]))  # [seeds, rates * knobs]
            run[name] = np.round(shares.T.reshape(len(powers), len(knobs), -1), 5).tolist()
        self.sample_seconds = seconds / (steps * batch)
        return run

    def first_grid(self, runs: Sequence[Run], study: str, batch: int, optimizer: str) -> list[int]:
        """Powers of 2 around the best rate at the nearest batch, which is taken to grow with the batch's root."""
        count = self.args.rates
        near = [run for run in runs if run["optimizer"] == optimizer and run["study"] == study]
        near = near or [run for run in runs if run["optimizer"] == optimizer]
        if not near:
            centre = CENTRES[optimizer]
        else:
            nearest = min(near, key=lambda run: abs(math.log2(run["batch"] / batch)))
            centre = tuned(nearest)[0] + round(math.log2(batch / nearest["batch"]) / 2)
        return [centre - count // 2 + place for place in range(count)]

    def tune(self, runs: Sequence[Run], study: str, batch: int, optimizer: str) -> Run:
        """A grid with the best rate inside; of SGD, one that the linearly scaled rate is in, too."""
        run = self.train(study, batch, optimizer, self.first_grid(runs, study, batch, optimizer))
        for _ in range(_MOVES):
            best, powers = tuned(run)[0], run["powers"]
            if powers[0] < best < powers[-1]:
                break
            away = -1 if best == powers[0] else 1
            start = best + away if away > 0 else best - self.args.rates
            run = _joined(run, self.train(study, batch, optimizer, range(start, start + self.args.rates)))
        linear = linear_rate(runs, study, batch) if optimizer == "sgd" else None
        if linear is not None and linear[0] not in run["powers"]:
            run = _joined(run, self.train(study, batch, optimizer, range(linear[0], linear[0] + self.args.rates)))
        return run

    def run(self, runs: list[Run]) -> None:
        """Add what is missing to the runs, while there is time."""
        for study, batch in self.points():
            for optimizer in self.args.optimizers:
                if any((run["study"], run["batch"], run["optimizer"]) == (study, batch, optimizer) for run in runs):
                    continue
                left = self.args.budget_seconds - (time.monotonic() - self.began)
                if left < self.sample_seconds * self.steps(study, batch) * batch:
                    print(f"{study} {batch} {optimizer}: no time left for it", flush=True)
                    continue
                run = self.tune(runs, study, batch, optimizer)
                runs.append(run)
                self.args.out.write_text(json.dumps(self.described(runs)))
                power, knob, accuracy, _ = tuned(run)
                print(
                    f"{time.monotonic() - self.began:5.0f} s  {study:6} {batch:6} {optimizer:9} {run['seconds']:6.1f} s"
                    f"  validation {accuracy:.2%} at 2^{power} of 2^{run['powers'][0]} to 2^{run['powers'][-1]}, "
                    f"{KNOBS[optimizer][0]} {knob}",
                    flush=True,
                )

    def described(self, runs: list[Run]) -> dict[str, Any]:
        """What is written."""
        import jax

        names = ("epochs", "steps", "seeds", "rates", "validation", "precision")
        return {"date": f"{datetime.now().astimezone():%Y-%m-%d}", "device": self.device, "jax": jax.__version__,
                "samples": self.samples, **{name: getattr(self.args, name) for name in names},
                "runs": runs}  # fmt: skip


def _joined(run: Run, more: Run) -> Run:
    """Both grids of a batch and optimizer as one."""
    powers = run["powers"] + [power for power in more["powers"] if power not in run["powers"]]
    new = [more["powers"].index(power) for power in powers[len(run["powers"]) :]]
    order = np.argsort(powers)
    seconds = round(run["seconds"] + more["seconds"], 2)
    joined = {**run, "powers": [powers[place] for place in order], "seconds": seconds}
    for name in ("validation", "test"):
        rows = run[name] + [more[name][place] for place in new]
        joined[name] = [rows[place] for place in order]
    return joined


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; --dry-run changes their defaults."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("build/fashion.npz"), metavar="FILE")
    parser.add_argument("--out", type=Path, default=Path("build/large_batch.json"), metavar="FILE")
    parser.add_argument("--studies", nargs="+", choices=("epochs", "steps"), default=("epochs", "steps"))
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, metavar="N", help="powers of 2")
    parser.add_argument("--optimizers", nargs="+", choices=tuple(KNOBS), default=tuple(KNOBS), metavar="NAME")
    parser.add_argument("--epochs", type=float, default=10, help="of equal epochs (default: 10)")
    parser.add_argument("--steps", type=int, default=134, metavar="N", help="of equal steps (default: 134)")
    parser.add_argument("--rates", type=int, default=7, metavar="N", help="in a grid (default: 7)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="(default: 3)")
    parser.add_argument("--validation", type=int, default=5000, metavar="N", help="samples held out (default: 5000)")
    parser.add_argument("--samples", type=int, metavar="N", help="to train on (default: all others)")
    parser.add_argument("--tested", type=int, default=10_000, metavar="N", help="test samples (default: all)")
    parser.add_argument("--micro", type=int, default=128, metavar="N", help="samples of larger batches at once")
    parser.add_argument("--precision", default="tensorfloat32", help="of products (default: tensorfloat32)")
    parser.add_argument("--budget-seconds", type=float, default=math.inf, metavar="N", help="start nothing after them")
    parser.add_argument("--report", action="store_true", help="train nothing; print the table of --out")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="draw the accuracies; needs Matplotlib")
    parser.add_argument("--dry-run", action="store_true", help="a few steps on the CPU")
    if parser.parse_args(argv).dry_run:
        parser.set_defaults(epochs=2, steps=3, batches=(16, 32), samples=64, validation=40, tested=40, seeds=1, rates=3,
                            micro=16)  # fmt: skip
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is missing; print the table; draw."""
    args = parse(argv)
    results = json.loads(args.out.read_text()) if args.out.exists() else {"runs": []}
    if not args.report:
        study = Study(args)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        study.run(results["runs"])
        results = study.described(results["runs"])
    print(table(results))
    print(batch_limits(results))
    if args.plot:
        draw(results, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
