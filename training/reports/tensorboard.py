"""The history of a run for TensorBoard: event files that `tf.summary` writes; TensorBoard itself is not needed.

Tested in tests/training/reports/test_trackers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from .events import EvaluationDone, RunBegan, RunEnded, StepsLogged
from .tracker import Tracker
from .values import scalars

__all__ = ["TensorBoard"]

_SUFFIX = ".ringfeed"


class TensorBoard(Tracker):
    """Numbers by step, as `train/...` and `evaluation/...`.

    A resumed run writes its file anew from the history, since TensorBoard would draw repeated steps twice.

    Args:
        folder: path of a folder on a disk.
    """

    name = "tensorboard"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def begin(self, event: RunBegan) -> None:
        """Write the history so far."""
        for path in Path(self._folder).glob(f"events.out.tfevents.*{_SUFFIX}"):
            path.unlink()
        self._writer = tf.summary.create_file_writer(self._folder, filename_suffix=_SUFFIX)
        for entry in event.history.get("steps", ()):
            self._write("train", entry)
        for entry in event.history.get("evaluations", ()):
            self._write("evaluation", entry)
        self._writer.flush()

    def _write(self, group: str, entry: Mapping[str, Any]) -> None:
        values = [{"tag": f"{group}/{name}", "simple_value": value} for name, value in scalars(entry).items()]
        summary = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(**value) for value in values])
        with self._writer.as_default():  # `tf.summary.scalar` would need TensorBoard
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=entry["step"])

    def steps(self, event: StepsLogged) -> None:
        """Write the numbers."""
        self._write("train", event.entry)
        self._writer.flush()

    def evaluation(self, event: EvaluationDone) -> None:
        """Write the numbers."""
        self._write("evaluation", event.entry)
        self._writer.flush()

    def close(self, event: RunEnded) -> None:
        """Close the file."""
        self._writer.close()
