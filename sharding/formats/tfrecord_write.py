"""Frames messages that come in pieces as TFRecords.

The kernels assemble frames in runs that stay in the processor's cache until they are written. Without kernels, large
values are not copied but written from where they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute import kernels

from .arrow_binary import binary_rows, data_of, join_binary, offsets_of
from .tfrecord import FOOTER_BYTES, HEADER_BYTES, frame_records, mask_crcs, record_headers

_RUN_BYTES = 1 << 20
_LARGE_BYTES = 2048  # mean size of pieces from which a view (1 us) costs less than a join by Arrow (0.5 ns per byte)

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Frames:
    """Consecutive frames of some records."""

    # Runs of pieces of the frames' bytes, in order, cut anywhere. They can be iterated once, as a run may overwrite the
    # one before.
    runs: Iterable[Sequence[Bytes]]
    lengths: npt.NDArray[np.int64]  # length of each frame in bytes, int64 [records]

    @classmethod
    def joined(cls, frames: pa.LargeBinaryArray) -> Frames:
        """Frames that an array holds."""
        return cls([[_bytes(frames)]], np.diff(offsets_of(frames)))


def frame_pieces(
    pieces: Sequence[pa.LargeBinaryArray], *, run_bytes: int = _RUN_BYTES, large_bytes: int = _LARGE_BYTES
) -> Frames:
    """Put each message into a TFRecord frame.

    Args:
        pieces: pieces of the messages, without nulls: a message is its elements of all arrays, end to end.
        run_bytes: frames that the kernels assemble at a time.
        large_bytes: mean size of pieces that are written as they are, without the kernels.
    """
    if kernels.are_compiled():
        return _framed(pieces, run_bytes)
    is_large = partial(_is_large, large_bytes=large_bytes)
    if not any(map(is_large, pieces)):
        return Frames.joined(frame_records(join_binary(pieces)))
    columns: list[tuple[bool, pa.LargeBinaryArray]] = []
    for large, group in groupby(pieces, is_large):
        run = list(group)
        columns += [(True, piece) for piece in run] if large else [(False, join_binary(run))]
    lengths: npt.NDArray[np.int64] = np.sum([np.diff(offsets_of(c)) for _, c in columns], axis=0, dtype=np.int64)
    headers = binary_rows(record_headers(lengths))
    footers = binary_rows(mask_crcs(_crcs([column for _, column in columns], len(lengths))))
    small = join_binary([headers, *(column for large, column in columns if not large), footers])
    cuts, position = [], offsets_of(small)[:-1] + HEADER_BYTES
    for large, column in columns:
        if large:
            cuts.append(position)
        else:
            position = position + np.diff(offsets_of(column))
    between = [0, *np.stack(cuts, axis=1).reshape(-1).tolist(), int(offsets_of(small)[-1])]
    views: list[Bytes] = [_EMPTY] * (2 * len(between) - 3)
    views[0::2] = _views(_bytes(small), between)
    values = [column for large, column in columns if large]
    for number, column in enumerate(values):
        views[2 * number + 1 :: 2 * len(values)] = _column_views(column)
    return Frames([views], lengths + (HEADER_BYTES + FOOTER_BYTES))


def _framed(pieces: Sequence[pa.LargeBinaryArray], run_bytes: int) -> Frames:
    columns = [(_data(piece), offsets_of(piece)) for piece in pieces]
    lengths: npt.NDArray[np.int64] = np.sum([np.diff(offsets) for _, offsets in columns], axis=0, dtype=np.int64)
    lengths += HEADER_BYTES + FOOTER_BYTES
    ends = np.concatenate([[0], np.cumsum(lengths)])
    cuts = np.searchsorted(ends, np.arange(0, ends[-1], run_bytes))
    bounds = np.unique(np.append(cuts, len(lengths)))
    return Frames(([frames] for frames in kernels.frame_columns(columns, bounds)), lengths)


_EMPTY = np.empty(0, np.uint8)


def _is_large(piece: pa.LargeBinaryArray, large_bytes: int) -> bool:
    offsets = offsets_of(piece)
    return bool(offsets[-1] - offsets[0] >= large_bytes * max(1, len(piece)))


def _crcs(columns: Sequence[pa.LargeBinaryArray], records: int) -> npt.NDArray[np.uint32]:
    """The CRC of each payload."""
    crcs = [0] * records
    for column in columns:
        crcs = list(map(google_crc32c.extend, crcs, _column_views(column)))
    return np.array(crcs, np.uint32)


def _column_views(column: pa.LargeBinaryArray) -> list[Bytes]:
    return _views(_data(column), offsets_of(column).tolist())


def _views(data: Bytes, bounds: Sequence[int]) -> list[Bytes]:
    return [data[start:end] for start, end in pairwise(bounds)]


def _data(array: pa.LargeBinaryArray) -> Bytes:
    return np.frombuffer(data_of(array), np.uint8)


def _bytes(array: pa.LargeBinaryArray) -> Bytes:
    offsets = offsets_of(array)
    return _data(array)[offsets[0] : offsets[-1]]
