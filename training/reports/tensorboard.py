"""The history of a run for TensorBoard: event files that `tf.summary` writes; TensorBoard itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from .events import RunBegan, RunEnded, StepsLogged
from .tracker import GROUPS, EntryTracker, scalars

_SUFFIX = ".ringfeed"


class TensorBoard(EntryTracker):
    """Numbers by step, as `train/...` and `evaluation/...`, in a folder on a disk.

    A resumed run writes its file anew from the history, since TensorBoard would draw repeated steps twice.
    """

    name = "tensorboard"

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, event: RunBegan) -> None:
        """Open a new file in place of earlier processes' files."""
        for path in Path(self._folder).glob(f"events.out.tfevents.*{_SUFFIX}"):
            path.unlink()
        self._writer = tf.summary.create_file_writer(self._folder, filename_suffix=_SUFFIX)

    def write(self, kind: str, entry: Mapping[str, Any]) -> None:
        numbers = scalars(entry).items()
        values = [{"tag": f"{GROUPS[kind]}/{name}", "simple_value": value} for name, value in numbers]
        summary = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(**value) for value in values])
        with self._writer.as_default():  # `tf.summary.scalar` would need TensorBoard
            tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=entry["step"])

    def steps(self, event: StepsLogged) -> None:
        super().steps(event)
        self.flush()

    def flush(self) -> None:
        self._writer.flush()

    def close(self, event: RunEnded) -> None:
        self._writer.close()
