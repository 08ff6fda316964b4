"""The CPU time of a training step of ringfeed beside a loop written by hand: same network, data and batch size.

Alone, a round of each is an epoch of batches in memory, in turn: by `Trainer`, with its reports, and by a `tf.function`
around `tf.GradientTape` and an optimizer of Keras (SGD with momentum, or Adam, whose counterpart is ours), of the same
cosine as learning rate. Of two ranks, a step has to cost no more than its parts: that of one process on a rank's batch,
and the all-reduce of the gradients alone. CPU time is that of all threads of a process, so it counts on a busy machine.
The wait for input is that of a run with the loader.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.sharding import build
from ringfeed.training.config.config_file import parse_config, to_tree
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.run.trainer import Trainer

BATCH, STEPS, EPOCHS = 1024, 50, 1000
WIDTH, CLASSES = 32, 10
OPTIMIZERS = {
    "sgd": {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9},
    "adam": {"name": "adam", "learning_rate": 0.001},
}
HIDDEN = {"two layers": (256, 128), "eight layers of 512": (512,) * 8}
_RANKS = Path(__file__).parents[1] / "parts" / "step_cost_ranks.py"


def write_dataset(folder: Path) -> str:
    """Write an epoch of records, each of 32 numbers and a class; return where."""
    url = folder / "step-cost"
    if not url.exists():
        rng = np.random.default_rng(0)
        features = rng.random((BATCH * STEPS, WIDTH), dtype=np.float32)
        label = ((features - 0.5) @ rng.normal(size=(WIDTH, CLASSES))).argmax(1)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), WIDTH)
        table = pa.table({"features": lists, "label": pa.array(label)})
        build(source=table, destination=str(url), label="label", shards=8)
    return str(url)


def configuration(url: str, optimizer: str, hidden: Sequence[int], batch_size: int = BATCH) -> TrainConfig:
    """The configuration of a run that is long enough to be measured."""
    tree = {
        "data": {"url": url, "batch_size": batch_size, "eval_split": None},
        "model": {"name": "tabular", "hidden": list(hidden)},
        "optimizer": OPTIMIZERS[optimizer],
        "epochs": EPOCHS,
    }
    return parse_config(tree, "benchmark")


class MemoryTrainer(Trainer):
    """A trainer whose batches are in memory."""

    def __init__(self, config: TrainConfig, ring: Ring) -> None:
        super().__init__(config, ring)
        self.memory = list(self.batches(0))

    def epoch(self) -> None:
        """Train for an epoch."""
        self.train_steps(iter(self.memory))


def by_hand(config: TrainConfig, trainer: MemoryTrainer) -> Callable[[], None]:
    """An epoch of the same network and batches, as one would write it without ringfeed."""
    network = keras.models.clone_model(trainer.parts.network)
    rate = keras.optimizers.schedules.CosineDecay(config.optimizer.learning_rate, EPOCHS * STEPS)
    if config.optimizer.name == "adam":
        optimizer = keras.optimizers.Adam(rate)
    else:
        optimizer = keras.optimizers.SGD(rate, config.optimizer.momentum, config.optimizer.nesterov)
    optimizer.build(network.trainable_variables)

    @tf.function
    def step(inputs: Any, target: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = network(inputs, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits))
        optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)
        return loss

    batches = [(inputs, target) for inputs, target, _ in trainer.memory]

    def epoch() -> None:
        losses = [step(*batch) for batch in batches]
        float(tf.add_n(losses)) / len(losses)

    return epoch


def cpu_seconds(work: Callable[[], object]) -> float:
    """The CPU time of a call, of all threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """CPU time of the loop by hand, or of a step's parts, over ours; and the share of time not waited for input."""
    url = write_dataset(folder)
    results = []
    for name, hidden in HIDDEN.items():
        for optimizer in OPTIMIZERS:
            label = f"step with {optimizer} of Keras by hand / ours, {name}"
            results.append((label, _alone(configuration(url, optimizer, hidden), rounds), 0.97))
    results.append(("compute and all-reduce alone / a step of two ranks", _two_ranks(url, rounds), 0.9))
    results.append(_input_wait(url))
    return results


def _alone(config: TrainConfig, rounds: int) -> list[float]:
    trainer = MemoryTrainer(config, SoloRing())
    epochs = {"ours": trainer.epoch, "by hand": by_hand(config, trainer)}
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for epoch in epochs.values():  # compiles
        epoch()
    for number in range(2 * rounds):
        for name in sorted(epochs, reverse=bool(number % 2)):
            seconds[name].append(cpu_seconds(epochs[name]))
    for name, found in seconds.items():
        print(f"  {config.optimizer.name}, {name}: {1e3 * np.median(found) / STEPS:.2f} ms of CPU a step", flush=True)
    return [hand / own for hand, own in zip(seconds["by hand"], seconds["ours"], strict=True)]


def _two_ranks(url: str, rounds: int) -> list[float]:
    launcher = str(Path(sys.executable).parent / "horovodrun")
    command = [launcher, "-np", "2", "--gloo", sys.executable, str(_RANKS), url, str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if "{" in line]
    for part in ("step", "compute", "all-reduce"):
        print(f"  of two ranks, {part}: {1e3 * np.median([row[part] for row in rows]):.2f} ms of CPU", flush=True)
    return [(row["compute"] + row["all-reduce"]) / row["step"] for row in rows]


def _input_wait(url: str) -> tuple[str, list[float], float]:
    """The share of a run's time in which it did not wait for input, and the loader's headroom beside its steps."""
    config = configuration(url, "sgd", HIDDEN["eight layers of 512"])
    loader = Loader(url, split=config.data.train_split, batch_size=BATCH, seed=0)
    trainer = Trainer(replace(config, epochs=4), SoloRing())
    trainer.run()
    begun = time.perf_counter()
    for _ in loader.epoch(0):
        pass
    read = time.perf_counter() - begun
    entries = [entry for entry in trainer.history.step_entries if entry["epoch"] > 0]
    shares = [1 - entry["input_wait_fraction"] for entry in entries]
    headroom = sum(entry["seconds"] for entry in entries) / 3 / read
    return f"share of a run without wait for input, where the loader alone is {headroom:.1f} x as fast", shares, 0.99


def run_start(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratio of two CPU times, measured in turn: `import tensorflow`, and `ringfeed train` to the end of its first step.

    Both count the whole process, with its end.
    """
    config = replace(configuration(write_dataset(folder), "adam", HIDDEN["two layers"]), max_steps=1)
    file = folder / "start.yaml"
    file.write_text(json.dumps(to_tree(config)))
    commands = {
        "import tensorflow": [sys.executable, "-c", "import tensorflow"],
        "ringfeed train": [str(Path(sys.executable).parent / "ringfeed"), "train", "--config", str(file)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds[name].append(_child_cpu_seconds(command))
    for name, found in seconds.items():
        print(f"  {name}: {np.median(found):.2f} s of CPU", flush=True)
    ratios = [alone / start for alone, start in zip(*seconds.values(), strict=True)]
    return [("import tensorflow / start of ringfeed train and its first step", ratios, 0.0)]


def _child_cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
