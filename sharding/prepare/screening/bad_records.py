"""What a build does about bad records: fail at the first, or skip up to a budget and list them.

Bad records are found before anything is counted, so that balance and splits hold for the others, and each later pass
skips the same ones.
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
import pyarrow as pa

from ringfeed.sharding.compute.arrays import Int64
from ringfeed.sharding.engines.executors import stream_tasks
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import counted
from ringfeed.sharding.prepare.image_transform import ImageOptions, fault_of_prepared
from ringfeed.sharding.sources import Part, Source, select_part
from ringfeed.sharding.sources.base import (
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
from ringfeed.sharding.sources.dropping_source import DroppingSource
from ringfeed.sharding.sources.images.image_files import ImageCheck, image_fault
from ringfeed.sharding.url_secrets import public_url

from .image_checks import faulty_records, image_columns
from .record_origins import find_origins

Budget = int | Fraction | None  # a number of records, a share of all records, or None: fail at the first


def parse_budget(text: str) -> Budget:
    """Parse how many bad records to skip: ``fail``, ``skip:N`` or ``skip:P%``.

    Raises:
        ConfigError: the text is none of these.

    >>> parse_budget("fail"), parse_budget("skip:10"), parse_budget("skip:0.5%")
    (None, 10, Fraction(1, 200))
    """
    if text == "fail":
        return None
    match = re.fullmatch(r"skip:(?:([0-9]+)|([0-9]+(?:\.[0-9]+)?)%)", text)
    share = Fraction(match.group(2)) / 100 if match is not None and match.group(2) else Fraction(0)
    if match is None or share > 1:
        raise ConfigError(f"on_bad_record must be fail, skip:N or skip:P%, got {text!r}")
    return share if match.group(2) else int(match.group(1))


def open_policy(budget: Budget) -> Reject:
    """The policy for bad records while a source is opened; if some may be skipped, the counting pass rejects them."""
    return fail_on_bad if budget is None else ignore_bad


@dataclass(frozen=True, slots=True, kw_only=True)
class LenientSource(WrappedSource):
    """A source that skips its bad records unless another policy is passed in."""

    def labels(self, part: Part, reject: Reject = ignore_bad) -> Iterator[pa.Array]:
        """The labels of the good records."""
        return self.inner.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = ignore_bad) -> Iterator[pa.RecordBatch]:
        """The good records."""
        return self.inner.drafts(part, reject)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The sample of the inner source; empty if it cannot be read."""
        try:
            return self.inner.sample(part, records)
        except SourceError:
            return self.schema.empty


class _Collector:
    """Collects the bad records of a part; fails once they exceed the budget of all parts."""

    def __init__(self, budget: Budget) -> None:
        self._most = budget if isinstance(budget, int) else None
        self.found: list[BadRecord] = []

    def __call__(self, record: BadRecord) -> None:
        self.found.append(record)
        if self._most is not None and len(self.found) > self._most:
            raise SourceError(_too_many(self.found, f"skip:{self._most}"))


def _too_many(bad: Sequence[BadRecord], allowed: str) -> str:
    return (
        f"at least {counted(len(bad), 'bad record')}, more than --on-bad-record {allowed} allows; the first is {bad[0]}"
    )


def without_bad_records(
    source: Source, budget: Budget, images: ImageOptions | None, pool: Executor, task_limit: int | Callable[[], int]
) -> tuple[Source, list[BadRecord]]:
    """A source without bad records, and the bad records: unreadable ones, damaged images, missing labels.

    Args:
        images: transformation of images, or None; an image that cannot be transformed is bad as well.
        task_limit: how many tasks to keep submitted, see `stream_tasks`.

    Raises:
        SourceError: there are more bad records; the message shows the first.
    """
    base = unwrap(source)
    fault = image_fault if images is None else partial(fault_of_prepared, options=images)
    rejected: list[BadRecord] = []
    if isinstance(base, CheckableSource):  # finds what `complete` would fail on; `drafts` may not read it
        files: Any = base
        dropped, bad, _ = _check_parts(partial(_check_files, fault), files, budget, pool, task_limit)
        source, rejected = rewrap(source, DroppingSource.over(files, dropped)), bad
    source = LenientSource(inner=source)
    dropped, bad, records = _check_parts(partial(_check_records, fault), source, budget, pool, task_limit)
    rejected += bad
    _check_budget(rejected, records, budget)
    return (DroppingSource.over(source, dropped) if any(map(len, dropped)) else source), rejected


Checks = Callable[[Any, Part, Budget], tuple[Int64, list[BadRecord], int]]


def _check_parts(
    check: Checks, source: Source, budget: Budget, pool: Executor, task_limit: int | Callable[[], int]
) -> tuple[list[Int64], list[BadRecord], int]:
    """Check all parts: the positions of the drafts to drop in each, all bad records, and the number of records."""
    dropped = [np.empty(0, np.int64)] * len(source.parts)
    rejected: list[list[BadRecord]] = [[] for _ in source.parts]
    total = 0
    jobs = ((check, (select_part(source, number), part, budget)) for number, part in enumerate(source.parts))
    with stream_tasks(pool, jobs, task_limit) as ended:
        for number, (positions, bad, records) in ended:
            dropped[number], rejected[number] = positions, bad
            total += records
    return dropped, [record for bad in rejected for record in bad], total


def _check_files(fault: ImageCheck, source: Any, part: Part, budget: Budget) -> tuple[Int64, list[BadRecord], int]:
    collector = _Collector(budget)
    positions = [np.asarray(bad_rows.to_numpy()) for bad_rows in source.check(part, collector, fault)]
    return np.concatenate([np.empty(0, np.int64), *positions]), collector.found, 0


def _check_records(fault: ImageCheck, source: Source, part: Part, budget: Budget) -> tuple[Int64, list[BadRecord], int]:
    """Find the records of a part without a label or with a bad image, and on the way the unreadable ones."""
    collector, images = _Collector(budget), image_columns(source, stored=fault is not image_fault)
    faults: dict[int, str] = {}
    label, records = source.schema.label, 0
    counting = _CountingSource(inner=unwrap(source), counts=[])
    for labels in rewrap(source, counting).labels(part, collector):
        if label is not None and labels.null_count:
            missing = np.flatnonzero(labels.is_null().to_numpy(zero_copy_only=False)) + records
            faults.update(dict.fromkeys(missing.tolist(), f"it has no value for the label {label!r}"))
        records += len(labels)
    total = sum(counting.counts) + len(collector.found)
    for position, reason in faulty_records(source, part, images, fault, ignore_bad):
        faults.setdefault(position, reason)
    positions = np.array(sorted(faults), np.int64)
    if len(positions):
        column = label or images[0]
        for position, place in zip(positions.tolist(), find_origins(source, part, positions, column), strict=True):
            collector(BadRecord(path=part.path, place=place, reason=faults[position]))
    return positions, collector.found, total


@dataclass(frozen=True, slots=True, kw_only=True)
class _CountingSource(WrappedSource):
    """A source that counts the records it reads, before any step drops some."""

    counts: list[int]  # records of each batch that was read; appended to

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        for labels in self.inner.labels(part, reject):
            self.counts.append(len(labels))
            yield labels

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        for batch in self.inner.drafts(part, reject):
            self.counts.append(batch.num_rows)
            yield batch

    def narrow(self, columns: Collection[str]) -> Source:
        """The same source around the narrowed inner one."""
        return replace(self, inner=narrow_source(self.inner, columns))


def _check_budget(rejected: Sequence[BadRecord], total: int, budget: Budget) -> None:
    most = budget * total if isinstance(budget, Fraction) else budget
    if rejected and most is not None and len(rejected) > most:
        allowed = f"skip:{float(100 * budget):g}%" if isinstance(budget, Fraction) else f"skip:{budget}"
        raise SourceError(_too_many(rejected, allowed))


def encode_rejected(rejected: Iterable[BadRecord]) -> bytes:
    """The lines of `rejected.jsonl`: source, position and reason of each record that was skipped."""
    records = ({"source": public_url(bad.path), "position": bad.place, "reason": bad.reason} for bad in rejected)
    lines = (json.dumps(record, ensure_ascii=False) for record in records)
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
