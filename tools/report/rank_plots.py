"""Plots of a run's records: where the ranks' time goes, and which rank the others wait for, over the run.

Tested in tests/tools/profile/test_run_command.py.
"""

from __future__ import annotations

import numpy as np

from ringfeed.sharding.errors import ConfigError
from ringfeed.tools.charts.drawing import COLOURS, HATCHES, Drawing, Plot, curves
from ringfeed.tools.measure.run_records import RunRecords
from ringfeed.tools.verdict.run_verdict import judge_run, rank_times, step_parts

__all__ = ["plot_rank_lateness", "plot_rank_waits", "plot_step_parts"]

_PARTS = ("input", "computing", "slowest rank", "all-reduce", "loop")
_MOST_LINES = 8
_POINTS = 100


def plot_rank_waits(records: RunRecords) -> Plot:
    """The parts of a mean step of each rank, as bars: what it waits for, and for how long it computes."""
    _require_steps(records)
    times, verdict = rank_times(records), judge_run(records)
    parts = np.array(
        [
            [each.input_seconds, each.compute_seconds, each.wait_seconds, each.collective_seconds, each.host_seconds]
            for each in times
        ]
    )
    drawing = Drawing(0.36 * len(times) + 1.5)
    places, begun = np.arange(len(times)), np.zeros(len(times))
    for i, name in enumerate(_PARTS):
        colour, hatch = COLOURS[(1, 0, 3, 2, 7)[i]], HATCHES[(1, 0, 2, 3, 4)[i]]
        drawing.axes.barh(
            places, 1000 * parts[:, i], left=1000 * begun, color=colour, edgecolor="white", hatch=hatch, label=name
        )
        begun += parts[:, i]
    drawing.axes.set_yticks(places, [f"rank {each.rank}" for each in times])
    drawing.axes.invert_yaxis()
    drawing.axes.grid(visible=False)
    drawing.legend()
    return drawing.finish(_title(verdict.headline), "ms of a step", "")


def plot_rank_lateness(records: RunRecords) -> Plot:
    """How long the first rank in the all-reduce of each step waits for each rank, over the run.

    Of more than eight ranks, the ones that are late for longest.
    """
    _require_steps(records)
    late = 1000 * (records.collective_seconds.max(axis=0) - records.collective_seconds)
    order = np.argsort(-late.mean(axis=1))
    lines = {
        f"rank {records.ranks[place]}": _smoothed(records.steps, late[place])
        for place in sorted(order[:_MOST_LINES].tolist())
    }
    worst = order[0]
    if len(records.ranks) == 1:
        title = "One rank: no other waits for it"
    else:
        share = rank_times(records)[worst].last_share
        title = f"Rank {records.ranks[worst]} is latest on average: the last in {share:.0%} of the steps"
    return curves(lines, title, "step", "ms after the first rank")


def plot_step_parts(records: RunRecords) -> Plot:
    """The parts of a step over the run, as the verdict counts them: the slowest rank of a step is left out."""
    _require_steps(records)
    names = dict(zip(("input", "compute", "straggler", "collective", "overhead"), _PARTS, strict=True))
    parts = {names[part]: seconds for part, seconds in step_parts(records).items()}
    sums = {name: float(seconds @ records.weights) for name, seconds in parts.items()}
    longest = max(sums, key=sums.__getitem__)
    lines = {name: _smoothed(records.steps, 1000 * seconds) for name, seconds in parts.items()}
    share = sums[longest] / sum(sums.values())
    return curves(lines, f"The longest part of a step is {longest!r}: {share:.0%}", "step", "ms")


def _smoothed(steps: np.ndarray, values: np.ndarray) -> tuple[list[float], list[float]]:
    """At most 100 points, each a mean."""
    groups = min(_POINTS, len(steps))
    return (
        [float(each.mean()) for each in np.array_split(steps, groups)],
        [float(each.mean()) for each in np.array_split(values, groups)],
    )


def _title(headline: str) -> str:
    return headline.partition(";")[0].rstrip(".")


def _require_steps(records: RunRecords) -> None:
    if not records.steps.size:
        raise ConfigError(f"{records.folder}: the records hold no steps after the first yet")
