"""The profile of a run: its verdict and its figures, and how a terminal and a notebook show them.

Tested in tests/tools/verdict/test_run_verdict.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringfeed.tools.charts.shown import Shown, Table
from ringfeed.tools.console import human_seconds
from ringfeed.tools.measure.run_records import RunRecords
from ringfeed.tools.verdict.run_verdict import RankTimes, RunVerdict, judge_run, rank_times

_SHOWN_RANKS = 32
_HEADER = ("rank", "input ms", "compute ms", "waits for others ms", "collective ms", "loop ms", "last in", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfile(Shown):
    """A run of `ringfeed train`, as its ranks recorded it: the newest launch, without its first step, which compiles.

    Attributes:
        folder: folder of the records.
        ranks: number of ranks.
        missing_ranks: those without records.
        earlier_launches: launches before, which are not judged.
        first_step, last_step: numbers of the first and last step that all ranks recorded; -1 without one.
        total_steps: steps of the whole run.
        ended: whether all ranks ended by themselves.
        seconds: seconds of the steps.
        samples_per_second: of all ranks, during the steps.
        first_batch_seconds: wait of the slowest rank for its first batch.
        evaluation_seconds, checkpoint_seconds: time of all evaluations and checkpoints, on rank 0.
        rank_times: means of each rank.
        verdict: what limits the run.
    """

    folder: str
    ranks: int
    missing_ranks: tuple[int, ...]
    earlier_launches: int
    first_step: int
    last_step: int
    total_steps: int
    ended: bool
    seconds: float
    samples_per_second: float
    first_batch_seconds: float
    evaluation_seconds: float
    checkpoint_seconds: float
    rank_times: tuple[RankTimes, ...]
    verdict: RunVerdict

    def headlines(self) -> list[str]:
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        if self.last_step < 0:
            return [self.verdict.headline, f"{self.folder}: {ranks}, no step yet"]
        steps = f"steps {self.first_step} to {self.last_step} of {self.total_steps}"
        apart = [
            f"{human_seconds(seconds)} of {name}"
            for name, seconds in (("evaluation", self.evaluation_seconds), ("checkpoints", self.checkpoint_seconds))
            if seconds
        ]
        besides = f"; besides, {' and '.join(apart)}" if apart else ""
        return [
            self.verdict.headline,
            f"{self.folder}: {ranks}, {steps}: {self.samples_per_second:,.0f} samples/s over "
            f"{human_seconds(self.seconds)}; the first batch came after {self.first_batch_seconds:.2f} s{besides}",
        ]

    def tables(self) -> list[Table]:
        return [(_HEADER, self._rows())] if self.rank_times else []

    def _rows(self) -> list[Sequence[str]]:
        shown = sorted(self.rank_times, key=lambda each: -each.own_seconds)[:_SHOWN_RANKS]
        return [
            (
                str(each.rank), *(f"{1000 * seconds:,.2f}" for seconds in each.parts.values()),
                f"{each.last_share:.0%}" if self.ranks > 1 else "", each.host,
            )
            for each in sorted(shown, key=lambda each: each.rank)
        ]  # fmt: skip

    def conclusions(self) -> list[str]:
        lines = []
        if len(self.rank_times) > _SHOWN_RANKS:
            lines.append(f"shown are the {_SHOWN_RANKS} slowest of {self.ranks} ranks")
        if self.missing_ranks:
            names = ", ".join(map(str, self.missing_ranks))
            lines.append(f"there are no records of rank {names}: put the files of all hosts into one folder")
        if self.earlier_launches:
            lines.append(f"{self.earlier_launches} earlier launches of the run are not judged")
        if not self.ended:
            lines.append("the run is under way, or was killed")
        gain = "" if self.verdict.gain is None else f" (up to {self.verdict.gain:.2f} x the rate)"
        return [*lines, f"bottleneck: {self.verdict.bottleneck}: {self.verdict.advice}{gain}"]


def profile_records(records: RunRecords) -> RunProfile:
    """Judge a run's records, and sum them up."""
    seconds = float(records.step_seconds.mean(axis=0) @ records.weights) if records.steps.size else 0.0
    samples = float(records.weights.sum()) * records.launches[0].batch_size
    apart = {
        name: sum(each.seconds for each in records.activities if each.name == name and each.rank == records.ranks[0])
        for name in ("evaluation", "checkpoint")
    }
    return RunProfile(
        folder=records.folder, ranks=records.launches[0].ranks, missing_ranks=records.missing,
        earlier_launches=records.earlier_launches, first_step=int(records.steps[0]) if records.steps.size else -1,
        last_step=int(records.steps[-1]) if records.steps.size else -1, total_steps=records.launches[0].total_steps,
        ended=records.ended, seconds=seconds, samples_per_second=samples / seconds if seconds else 0.0,
        first_batch_seconds=records.first_input_seconds, evaluation_seconds=apart["evaluation"],
        checkpoint_seconds=apart["checkpoint"], rank_times=rank_times(records) if records.steps.size else (),
        verdict=judge_run(records),
    )  # fmt: skip
