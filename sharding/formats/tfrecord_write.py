"""Frames messages that come in pieces as TFRecords.

The kernels assemble frames in runs that stay in the processor's cache until they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.arrays import Int64, UInt8

from .arrow_binary import data_of, join_binary, offsets_of
from .tfrecord import FOOTER_BYTES, HEADER_BYTES, frame_records

_RUN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Frames:
    """Consecutive frames of some records."""

    # Bytes of the frames, in order, cut anywhere. They can be iterated once, as a run may overwrite the one before.
    runs: Iterable[UInt8]
    lengths: Int64  # length of each frame in bytes, int64 [records]

    @classmethod
    def joined(cls, frames: pa.LargeBinaryArray) -> Frames:
        """Frames that an array holds."""
        offsets = offsets_of(frames)
        return cls([np.frombuffer(data_of(frames), np.uint8)[offsets[0] : offsets[-1]]], np.diff(offsets))


def frame_pieces(pieces: Sequence[pa.LargeBinaryArray], *, run_bytes: int = _RUN_BYTES) -> Frames:
    """Put each message into a TFRecord frame.

    Args:
        pieces: pieces of the messages, without nulls: a message is its elements of all arrays, end to end.
        run_bytes: frames that the kernels assemble at a time.
    """
    if not kernels.are_compiled():
        return Frames.joined(frame_records(join_binary(pieces)))
    columns = [(np.frombuffer(data_of(piece), np.uint8), offsets_of(piece)) for piece in pieces]
    lengths: Int64 = np.sum([np.diff(offsets) for _, offsets in columns], axis=0, dtype=np.int64)
    lengths += HEADER_BYTES + FOOTER_BYTES
    ends = np.concatenate([[0], np.cumsum(lengths)])
    cuts = np.searchsorted(ends, np.arange(0, ends[-1], run_bytes))
    return Frames(kernels.frame_columns(columns, np.unique(np.append(cuts, len(lengths)))), lengths)
