"""How long the ranks of an elastic run pause when one of them is killed.

    python benchmarks/train/recovery.py

Prints, of each kill, the seconds until the first step of the survivors, until the first step of all ranks, of which one
is new, and how long training paused for the new one. Times are those of an idle machine only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

RANKS, KILLS, STEPS_BETWEEN = 3, 3, 20
RECORDS, BATCH = 2400, 12


class Step(NamedTuple):
    """A step of a rank, of a ring of `size` ranks."""

    seconds: float
    process: int
    rank: int
    size: int


def network(manifest: Any, config: Any) -> Any:
    """A network whose ranks note their steps; ringfeed calls it as `recovery:network`."""
    import keras
    import tensorflow as tf

    def note(inputs: Any) -> Any:
        with Path(os.environ["STEPS_FILE"]).open("a") as file:
            step = (time.monotonic(), os.getpid(), os.environ["HOROVOD_RANK"], os.environ["HOROVOD_SIZE"])
            file.write(" ".join(map(str, step)) + "\n")
        return inputs

    class Noted(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(note, [inputs], tf.float32, stateful=True), inputs.shape)

    x = keras.Input((), dtype="float32", name="x")
    return keras.Model({"x": x}, keras.layers.Dense(2)(Noted()(keras.ops.expand_dims(x, 1))))


def steps_in(file: Path) -> list[Step]:
    """The steps of all ranks so far."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [Step(float(t), *map(int, rest)) for t, *rest in map(str.split, lines) if len(rest) == 3]


def first(file: Path, process: subprocess.Popen[bytes], size: int, after: float) -> float:
    """The time of the first step of a ring of `size` ranks after a time; waits for it."""
    while process.poll() is None:
        found = [step.seconds for step in steps_in(file) if step.size == size and step.seconds > after]
        if found:
            return min(found)
        time.sleep(0.02)
    raise SystemExit(f"the run ended with status {process.returncode}")


def kill_and_measure(file: Path, process: subprocess.Popen[bytes], number: int) -> None:
    """Kill rank 0, and print how long it took the others."""
    begun = first(file, process, RANKS, time.monotonic())
    while sum(step.seconds > begun for step in steps_in(file)) < STEPS_BETWEEN * RANKS:
        time.sleep(0.1)
    victim = [step for step in steps_in(file) if step.rank == 0][-1].process
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    went_on = first(file, process, RANKS - 1, killed)
    complete = first(file, process, RANKS, went_on)
    paused = complete - max(step.seconds for step in steps_in(file) if step.size == RANKS - 1)
    print(
        f"kill {number}: {RANKS - 1} survivors went on after {went_on - killed:.1f} s, all {RANKS} after "
        f"{complete - killed:.1f} s, with a pause of {paused:.1f} s for the new one",
        flush=True,
    )


def main() -> None:
    """Build a dataset, train and kill."""
    import numpy as np
    import pyarrow as pa

    from ringfeed.sharding import build

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x = np.random.default_rng(0).normal(size=RECORDS).astype(np.float32)
        build(source=pa.table({"x": x, "y": (x > 0).astype(np.int32)}), destination=f"{folder}/data", label="y")
        config = {
            "data": {"url": f"{folder}/data", "batch_size": BATCH, "eval_split": None},
            "model": {"name": "recovery:network"},
            "optimizer": {"name": "sgd", "learning_rate": 0.01},
            "checkpoint": {"url": f"{folder}/run", "every_steps": 50},
            "epochs": 10_000,
        }
        (folder / "run.yaml").write_text(json.dumps(config))
        program = [sys.executable, "-m", "ringfeed.tools.cli", "launch", "-n", str(RANKS), "--elastic", "train", "-q"]
        environment = {**os.environ, "STEPS_FILE": str(folder / "steps")}
        here = Path(__file__).parent
        with subprocess.Popen([*program, "--config", f"{folder}/run.yaml"], cwd=here, env=environment) as process:
            try:
                for number in range(1, KILLS + 1):
                    kill_and_measure(folder / "steps", process, number)
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
