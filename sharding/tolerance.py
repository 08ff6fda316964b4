"""What a build does about records that cannot be read: fail at the first, or pass over some and say which.

Bad records are found before anything is counted, so that balance and splits hold over those that stay; and each later
pass leaves out the same ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .dropping import DroppingSource
from .errors import ConfigError, SourceError
from .execute import stream_tasks
from .schema import Schema
from .sources import Part, Source, light
from .sources.base import BadRecord, Checked, Reject, fail_on_bad

__all__ = [
    "REJECTED_NAME", "Budget", "LenientSource", "check_budget", "collect_labels", "encode_rejected", "open_policy",
    "parse_budget", "without_bad_files",
]  # fmt: skip

REJECTED_NAME = "rejected.jsonl"
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


def pass_over(record: BadRecord) -> None:
    """The policy of a pass that meets bad records which another pass has told of."""


def open_policy(budget: Budget) -> Reject:
    """What to do about the bad records that are met while a source is opened: whoever counts meets them again."""
    return fail_on_bad if budget is None else pass_over


@dataclass(frozen=True, slots=True, kw_only=True)
class LenientSource:
    """A source whose bad records are passed over unless another policy is passed in."""

    inner: Source

    @property
    def url(self) -> str:
        """Where the inner source is."""
        return self.inner.url

    @property
    def schema(self) -> Schema:
        """That of the inner source."""
        return self.inner.schema

    @property
    def parts(self) -> Sequence[Part]:
        """Those of the inner source."""
        return self.inner.parts

    @property
    def fingerprint(self) -> str:
        """That of the inner source."""
        return self.inner.fingerprint

    def labels(self, part: Part, reject: Reject = pass_over) -> Iterator[pa.Array]:
        """The labels of the records that can be read."""
        return self.inner.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = pass_over) -> Iterator[pa.RecordBatch]:
        """The records that can be read."""
        return self.inner.drafts(part, reject)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """That of the inner source."""
        return self.inner.sample(part, records)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """As the inner source does."""
        return self.inner.complete(drafts)


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
        f"{len(found):,} records or more cannot be read, and --on-bad-record {allowed} allows fewer; the first is "
        f"{found[0]}"
    )


def without_bad_files(source: Source, budget: Budget, pool: Executor, at_once: int) -> tuple[Source, list[BadRecord]]:
    """A source without the records that `complete` would fail on, as far as it can tell them; and which these are.

    Args:
        source: of all records; what it wraps innermost is looked at.
        budget: how many there may be.
        pool: where to run the tasks.
        at_once: how many of them.
    """
    base = source
    while hasattr(base, "inner"):
        base = base.inner
    if not isinstance(base, Checked):
        return LenientSource(inner=source), []
    dropped = [np.empty(0, np.int64)] * len(base.parts)
    rejected: list[list[BadRecord]] = [[] for _ in base.parts]
    jobs = ((_check_part, (light(base, n), part, budget)) for n, part in enumerate(base.parts))
    for number, (positions, found) in stream_tasks(pool, jobs, at_once):
        dropped[number], rejected[number] = positions, found
    kept = DroppingSource.over(base, dropped)
    return LenientSource(inner=_rebased(source, kept)), [record for found in rejected for record in found]


def _check_part(source: Any, part: Part, budget: Budget) -> tuple[Int64, list[BadRecord]]:
    collector = _Collector(budget)
    positions = [np.asarray(found.to_numpy()) for found in source.check(part, collector)]
    return np.concatenate([np.empty(0, np.int64), *positions]), collector.found


def _rebased(source: Any, base: Source) -> Source:
    return replace(source, inner=_rebased(source.inner, base)) if hasattr(source, "inner") else base


def collect_labels(source: Source, part: Part, budget: Budget) -> tuple[list[pa.Array], Int64, list[BadRecord]]:
    """The labels of a part, the positions of the records that have none, and the bad records met."""
    collector = _Collector(budget)
    labels: list[pa.Array] = []
    missing: list[Int64] = []
    position = 0
    for array in source.labels(part, collector):
        if source.schema.label is not None and array.null_count:
            places = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)) + position
            missing.append(places)
            for place in places.tolist():
                reason = f"it has no value for the label {source.schema.label!r}"
                collector(BadRecord(path=part.path, place=f"record {part.first_record + place}", reason=reason))
        labels.append(array)
        position += len(array)
    return labels, np.concatenate([np.empty(0, np.int64), *missing]), collector.found


def check_budget(rejected: Sequence[BadRecord], kept: int, budget: Budget) -> None:
    """Refuse to go on with more bad records than are allowed.

    Raises:
        SourceError: names the first.
    """
    most = budget * (len(rejected) + kept) if isinstance(budget, Fraction) else budget
    if rejected and most is not None and len(rejected) > most:
        allowed = f"skip:{float(100 * budget):g}%" if isinstance(budget, Fraction) else f"skip:{budget}"
        raise SourceError(_too_many(rejected, allowed))


def encode_rejected(rejected: Iterable[BadRecord]) -> bytes:
    """The lines of `rejected.jsonl`: source, position and reason of each record that was passed over."""
    lines = (
        json.dumps({"source": record.path, "position": record.place, "reason": record.reason}, ensure_ascii=False)
        for record in rejected
    )
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape")
