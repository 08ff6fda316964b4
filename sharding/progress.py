"""Progress of a build or an export, reported after every task.

Tested in tests/sharding/building/test_build.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of one stage of a build or an export.

    Attributes:
        stage: ``dedup``, ``count``, ``partition`` or ``write`` in a build, ``export`` in an export.
        done: finished tasks; in ``write`` and ``export``, shards.
        total: all tasks or shards of the stage.
        records: records in the finished tasks.
        resumed: how many of `done` an earlier, killed build had finished.

    >>> from ringfeed.sharding import build
    >>> stages = []
    >>> _ = build(source="flights.parquet", destination="shards", report=lambda progress: stages.append(progress.stage))
    >>> stages[-1]
    'write'
    """

    stage: str
    done: int
    total: int
    records: int
    resumed: int = 0


Report = Callable[[Progress], None]


def ignore(_: object) -> None:
    """Report nothing."""


class StageProgress:
    """Reports the progress of one stage."""

    def __init__(self, report: Report, stage: str, total: int, resumed: int = 0, records: int = 0) -> None:
        self._report = report
        self._progress = Progress(stage=stage, done=resumed, total=total, records=records, resumed=resumed)
        self(0, 0)

    def __call__(self, done: int, records: int) -> None:
        now = self._progress
        self._progress = replace(now, done=now.done + done, records=now.records + records)
        self._report(self._progress)
