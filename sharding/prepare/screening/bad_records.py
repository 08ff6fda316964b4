"""What a build does about records that cannot be read: fail at the first, or pass over some and say which.

Bad records are found before anything is counted, so that balance and splits hold over those that stay; and each later
pass leaves out the same ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...engines.executors import stream_tasks
from ...errors import ConfigError, SourceError
from ...messages import counted
from ...sources import Part, Source, select_part
from ...sources.base import (
    BadRecord,
    CheckableSource,
    Reject,
    WrappedSource,
    fail_on_bad,
    ignore_bad,
    narrow_source,
    rewrap,
    unwrap,
)
from ...sources.dropping_source import DroppingSource
from ...sources.images.image_files import ImageCheck, image_fault
from ...storage.urls import public_url
from ..image_transform import ImageOptions, fault_of_prepared
from .image_checks import faulty_records, image_columns
from .record_origins import find_origins

__all__ = [ "Budget", "LenientSource", "encode_rejected", "open_policy", "parse_budget",
    "without_bad_records",
]  # fmt: skip

Budget = int | Fraction | None  # so many records, a share of all that there are, or none: fail at the first
Int64 = npt.NDArray[np.int64]


def parse_budget(text: str) -> Budget:
    """How many bad records are passed over: ``fail``, ``skip:N`` or ``skip:P%``.

    Raises:
        ConfigError: it is none of these.

    >>> parse_budget("fail"), parse_budget("skip:10"), parse_budget("skip:0.5%")
    (None, 10, Fraction(1, 200))
    """
    if text == "fail":
        return None
    match = re.fullmatch(r"skip:(?:([0-9]+)|([0-9]+(?:\.[0-9]+)?)%)", text)
    share = Fraction(match.group(2)) / 100 if match is not None and match.group(2) else Fraction(0)
    if match is None or share > 1:
        raise ConfigError(f"what to do on a bad record must be fail, skip:N or skip:P%, got {text!r}")
    return share if match.group(2) else int(match.group(1))


def open_policy(budget: Budget) -> Reject:
    """What to do about the bad records that are met while a source is opened: whoever counts meets them again."""
    return fail_on_bad if budget is None else ignore_bad


@dataclass(frozen=True, slots=True, kw_only=True)
class LenientSource(WrappedSource):
    """A source whose bad records are passed over unless another policy is passed in."""

    def labels(self, part: Part, reject: Reject = ignore_bad) -> Iterator[pa.Array]:
        """The labels of the records that can be read."""
        return self.inner.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = ignore_bad) -> Iterator[pa.RecordBatch]:
        """The records that can be read."""
        return self.inner.drafts(part, reject)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """That of the inner source; nothing where it cannot be read."""
        try:
            return self.inner.sample(part, records)
        except SourceError:
            return self.schema.empty


class _Collector:
    """Keeps the bad records of a part, and stops where there are more than all parts together may have."""

    def __init__(self, budget: Budget) -> None:
        self._most = budget if isinstance(budget, int) else None
        self.found: list[BadRecord] = []

    def __call__(self, record: BadRecord) -> None:
        self.found.append(record)
        if self._most is not None and len(self.found) > self._most:
            raise SourceError(_too_many(self.found, f"skip:{self._most}"))


def _too_many(found: Sequence[BadRecord], allowed: str) -> str:
    return (
        f"{counted(len(found), 'record')} or more cannot be read, and --on-bad-record {allowed} allows fewer; the "
        f"first is {found[0]}"
    )


def without_bad_records(
    source: Source,
    budget: Budget,
    images: ImageOptions | None,
    pool: Executor,
    at_once: int | Callable[[], int],
) -> tuple[Source, list[BadRecord]]:
    """A source without the records that cannot be read, hold damaged images or have no label; and which these are.

    Args:
        source: of all records.
        budget: how many there may be.
        images: what is to be done to images; one that it cannot be done to is bad, too. Or None.
        pool: where to run the tasks.
        at_once: how many of them, see `stream_tasks`.

    Raises:
        SourceError: there are more; it names the first.
    """
    base = unwrap(source)
    fault = image_fault if images is None else partial(fault_of_prepared, options=images)
    rejected: list[BadRecord] = []
    if isinstance(base, CheckableSource):  # finds what `complete` would fail on; `drafts` may not read it
        files: Any = base
        dropped, found, _ = _look_over(partial(_check_files, fault), files, budget, pool, at_once)
        source, rejected = rewrap(source, DroppingSource.over(files, dropped)), found
    source = LenientSource(inner=source)
    dropped, found, records = _look_over(partial(_check_records, fault), source, budget, pool, at_once)
    rejected += found
    _check_budget(rejected, records, budget)
    return (DroppingSource.over(source, dropped) if any(map(len, dropped)) else source), rejected


Checks = Callable[[Any, Part, Budget], tuple[Int64, list[BadRecord], int]]


def _look_over(
    check: Checks, source: Source, budget: Budget, pool: Executor, at_once: int | Callable[[], int]
) -> tuple[list[Int64], list[BadRecord], int]:
    """By part, the positions of the drafts to leave out; all bad records; and how many records there are in all."""
    dropped = [np.empty(0, np.int64)] * len(source.parts)
    rejected: list[list[BadRecord]] = [[] for _ in source.parts]
    total = 0
    jobs = ((check, (select_part(source, number), part, budget)) for number, part in enumerate(source.parts))
    with stream_tasks(pool, jobs, at_once) as ended:
        for number, (positions, found, records) in ended:
            dropped[number], rejected[number] = positions, found
            total += records
    return dropped, [record for found in rejected for record in found], total


def _check_files(fault: ImageCheck, source: Any, part: Part, budget: Budget) -> tuple[Int64, list[BadRecord], int]:
    collector = _Collector(budget)
    positions = [np.asarray(found.to_numpy()) for found in source.check(part, collector, fault)]
    return np.concatenate([np.empty(0, np.int64), *positions]), collector.found, 0


def _check_records(fault: ImageCheck, source: Source, part: Part, budget: Budget) -> tuple[Int64, list[BadRecord], int]:
    """The records that have no label or an image at fault; those that cannot be read are met on the way."""
    collector, images = _Collector(budget), image_columns(source, stored=fault is not image_fault)
    faults: dict[int, str] = {}
    label, records = source.schema.label, 0
    tally = _Tally(inner=unwrap(source), counts=[])
    for labels in rewrap(source, tally).labels(part, collector):
        if label is not None and labels.null_count:
            missing = np.flatnonzero(labels.is_null().to_numpy(zero_copy_only=False)) + records
            faults.update(dict.fromkeys(missing.tolist(), f"it has no value for the label {label!r}"))
        records += len(labels)
    total = sum(tally.counts) + len(collector.found)
    for position, reason in faulty_records(source, part, images, fault, ignore_bad):
        faults.setdefault(position, reason)
    positions = np.array(sorted(faults), np.int64)
    if len(positions):
        column = label or images[0]
        for position, place in zip(positions.tolist(), find_origins(source, part, positions, column), strict=True):
            collector(BadRecord(path=part.path, place=place, reason=faults[position]))
    return positions, collector.found, total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tally(WrappedSource):
    """A source that counts what it reads of a part, before any step leaves records out.

    Attributes:
        counts: of the batches that were read; they are added to it.
    """

    counts: list[int]

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Those of the inner source."""
        for labels in self.inner.labels(part, reject):
            self.counts.append(len(labels))
            yield labels

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Those of the inner source."""
        for batch in self.inner.drafts(part, reject):
            self.counts.append(batch.num_rows)
            yield batch

    def narrow(self, columns: Collection[str]) -> Source:
        """The same around the narrowed inner source."""
        return replace(self, inner=narrow_source(self.inner, columns))


def _check_budget(rejected: Sequence[BadRecord], total: int, budget: Budget) -> None:
    most = budget * total if isinstance(budget, Fraction) else budget
    if rejected and most is not None and len(rejected) > most:
        allowed = f"skip:{float(100 * budget):g}%" if isinstance(budget, Fraction) else f"skip:{budget}"
        raise SourceError(_too_many(rejected, allowed))


def encode_rejected(rejected: Iterable[BadRecord]) -> bytes:
    """The lines of `rejected.jsonl`: source, position and reason of each record that was passed over."""
    told = ({"source": public_url(bad.path), "position": bad.place, "reason": bad.reason} for bad in rejected)
    lines = (json.dumps(record, ensure_ascii=False) for record in told)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
