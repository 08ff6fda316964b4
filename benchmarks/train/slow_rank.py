"""Epochs of two ranks of which one is half as fast, with equal shares of the global batch and with `sync.shares=speed`.

    python benchmarks/train/slow_rank.py

A rank's time is made on purpose: it sleeps for each of its samples, rank 1 twice as long. Prints the seconds of each
epoch (of an epoch without the step that compiles) and the shares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SAMPLE_SECONDS = 250e-6
RECORDS, BATCH, EPOCHS = 60_000, 1000, 4


def network(manifest: Any, config: Any) -> Any:
    """The network of both ranks, which sleeps: ringfeed calls it as `slow_rank:network`."""
    import keras
    import tensorflow as tf

    seconds = SAMPLE_SECONDS * (2 if os.environ["HOROVOD_RANK"] == "1" else 1)

    def sleep(samples: Any) -> Any:
        time.sleep(float(samples) * seconds)
        return samples

    class Slow(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            slept = tf.numpy_function(sleep, [tf.cast(tf.shape(inputs)[0], tf.float32)], tf.float32)
            with tf.control_dependencies([slept]):
                return tf.identity(inputs)

    x = keras.Input((), dtype="float32", name="x")
    hidden = keras.layers.Dense(16, activation="relu")(Slow()(keras.ops.expand_dims(x, 1)))
    return keras.Model({"x": x}, keras.layers.Dense(2)(keras.layers.BatchNormalization()(hidden)))


def main() -> None:
    """Build a dataset, train twice and print the epochs."""
    import numpy as np
    import pyarrow as pa

    from ringfeed.sharding import build

    with tempfile.TemporaryDirectory() as folder:
        x = np.random.default_rng(0).normal(size=RECORDS).astype(np.float32)
        build(
            source=pa.table({"x": x, "y": (x > 0).astype(np.int32)}), destination=f"{folder}/data", label="y", shards=8
        )
        for shares in ("equal", "speed"):
            config = {
                "data": {"url": f"{folder}/data", "batch_size": BATCH, "eval_split": None},
                "model": {"name": "slow_rank:network"},
                "sync": {"shares": shares},
                "epochs": EPOCHS,
                "deterministic": False,
                "output": {"metrics": f"{folder}/{shares}.json", "log_every": RECORDS // BATCH},
            }
            Path(f"{folder}/run.yaml").write_text(json.dumps(config))
            command = [sys.executable, "-m", "ringfeed.tools.cli", "launch", "-n", "2", "train"]
            command += ["--config", f"{folder}/run.yaml", "--quiet"]
            subprocess.run(command, cwd=Path(__file__).parent, check=True)
            metrics = json.loads(Path(f"{folder}/{shares}.json").read_text())
            seconds = ", ".join(f"{entry['seconds']:.2f} s" for entry in metrics["history"]["steps"])
            print(f"{shares}: {seconds}; shares at the end {metrics['shares']}", flush=True)


if __name__ == "__main__":
    main()
