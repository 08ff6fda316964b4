"""Damage reports: what is wrong with a file, where, and how to put it in words. Pure values; reads nothing.

Tested in tests/sharding/verifying/test_verify.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ringfeed.sharding.messages import listed

_RUNS_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A file that differs from what was written or, found by a deep check, was written wrong.

    Attributes:
        path: path relative to the dataset's root.
        problem: what is wrong, and where, in words.
        kind: ``missing``; ``truncated``, ``extended``, ``altered``: too short, too long, of the right size;
            ``swapped``: the bytes of another file of the dataset; ``stale``: an index of other records.
            From a deep check: ``unparsable``, ``mislabelled``, ``miscounted``.
        split: split of the shard.
        record: number of the first damaged record, or of the first record in the damaged row group.
        records: all damaged records of a TFRecord shard, as half-open ranges; empty if unknown.
        row_group: first damaged row group of a Parquet shard.
        column: first damaged column in that row group.
        offset: byte offset of the first damaged record, column or byte in the file; in the decompressed data if a
            record of a compressed TFRecord shard is damaged.

    >>> from ringfeed.sharding import verify
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> [(damage.kind, damage.split, damage.path == shard.name) for damage in verify("flights")]
    [('truncated', 'train', True)]
    """

    path: str
    problem: str
    kind: str
    split: str | None = None
    record: int | None = None
    records: tuple[tuple[int, int], ...] = ()
    row_group: int | None = None
    column: str | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A remark on the folder that reports no damage, such as a file unknown to the dataset.

    >>> from ringfeed.sharding import check_dataset
    >>> from pathlib import Path
    >>> _ = Path("flights/notes.txt").write_text("mine")
    >>> [note.path for note in check_dataset("flights").notes]
    ['notes.txt']
    """

    path: str
    remark: str


def kind_of_size(actual_bytes: int, expected_bytes: int) -> str:
    """Return the kind of damage that the sizes show.

    >>> kind_of_size(9, 10), kind_of_size(11, 10), kind_of_size(10, 10)
    ('truncated', 'extended', 'altered')
    """
    if actual_bytes == expected_bytes:
        return "altered"
    return "truncated" if actual_bytes < expected_bytes else "extended"


def content_problem(actual_bytes: int, expected_bytes: int) -> str:
    """Describe a file with a wrong checksum by its size.

    >>> content_problem(9, 10), content_problem(10, 10)
    ('it has 9 bytes, 10 were written', 'its checksum does not match')
    """
    if actual_bytes != expected_bytes:
        return f"it has {actual_bytes} bytes, {expected_bytes} were written"
    return "its checksum does not match"


def first_difference(actual: memoryview | bytes, expected: memoryview | bytes) -> int | None:
    """Return the offset of the first byte that differs between two files, or the end of the shorter if it is a prefix.

    >>> first_difference(b"abcd", b"abxd"), first_difference(b"ab", b"abc"), first_difference(b"ab", b"ab")
    (2, 2, None)
    """
    common = min(len(actual), len(expected))
    differ = np.flatnonzero(np.frombuffer(actual, np.uint8)[:common] != np.frombuffer(expected, np.uint8)[:common])
    if len(differ):
        return int(differ[0])
    return None if len(actual) == len(expected) else common


def runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return ascending numbers as half-open ranges.

    >>> runs([1, 2, 3, 7])
    ((1, 4), (7, 8))
    """
    result: list[tuple[int, int]] = []
    for number in numbers:
        if result and result[-1][1] == number:
            result[-1] = (result[-1][0], number + 1)
        else:
            result.append((number, number + 1))
    return tuple(result)


def runs_text(runs: Iterable[tuple[int, int]]) -> str:
    """Return the first few half-open ranges as text.

    >>> runs_text([(1, 4), (7, 8)])
    '1-3, 7'
    """
    words = [str(start) if stop == start + 1 else f"{start}-{stop - 1}" for start, stop in runs]
    return listed(words, _RUNS_SHOWN)
