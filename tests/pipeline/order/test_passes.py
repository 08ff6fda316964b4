"""Passes over a dataset's records, drawn by streams that advance unevenly. Covers `passes` and `seat_ledger`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline.order.class_balance import ClassSchedule
from ringfeed.pipeline.order.passes import Draws, Passes
from ringfeed.pipeline.order.seat_ledger import SeatLedger

STEPS, BATCH, CYCLE = 7, 12, 3
Int64 = npt.NDArray[np.int64]


def _one_by_one(streams: list[int], sizes: list[int]) -> list[tuple[int, int, int]]:
    """Pass, part and position of each draw, by the rule as it is written."""
    found, number, taken = [], 0, [0] * len(sizes)
    for stream in streams:
        if taken == sizes:
            number, taken = number + 1, [0] * len(sizes)
        left = [size - used for size, used in zip(sizes, taken, strict=True)]
        part = stream if left[stream] else left.index(max(left))
        found.append((number, part, taken[part]))
        taken[part] += 1
    return found


def _tuples(draws: Draws) -> list[tuple[int, int, int]]:
    return list(zip(draws.passes.tolist(), draws.parts.tolist(), draws.positions.tolist(), strict=True))


@given(st.data())
def test_each_record_is_drawn_once_in_a_pass_whatever_the_streams_do(data: st.DataObject) -> None:
    streams, piece, steps = (data.draw(st.integers(1, most)) for most in (4, 3, 20))
    records = data.draw(st.integers(streams, 40))
    sizes = np.diff(np.arange(streams + 1) * records // streams)
    seats = np.array(data.draw(st.lists(st.booleans(), min_size=(n := streams * piece * steps), max_size=n)))
    seats = seats.reshape(steps, streams * piece)
    cut = data.draw(st.integers(0, steps))
    passes, every = Passes(sizes), np.arange(streams * piece)
    drawn = _tuples(passes.draw(seats[:cut], every)) + _tuples(passes.draw(seats[cut:], every))
    assert drawn == _one_by_one((np.flatnonzero(seats) % (streams * piece) // piece).tolist(), sizes.tolist())
    for number in range(len(drawn) // records):
        assert len({place[1:] for place in drawn[number * records : (number + 1) * records]}) == records
    some = np.unique(data.draw(st.lists(st.sampled_from(every.tolist()), min_size=1)))
    own = np.flatnonzero(np.isin(np.flatnonzero(seats) % (streams * piece), some))
    assert _tuples(Passes(sizes).draw(seats, some)) == [drawn[place] for place in own]


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 90), st.integers(1, 60), st.sampled_from([1, 2, 4]), st.integers(0, 4), st.data())
def test_a_pass_resumes_before_any_step(
    records: int, percent: int, streams: int, changing: int, data: st.DataObject
) -> None:
    """As counted from the first epoch on, for shares that change in the first epochs."""

    def schedule(epoch: int) -> ClassSchedule:
        share = percent / 100 / (1 + max(changing - epoch, 0))
        return ClassSchedule(np.array([share, 1 - share]), BATCH, STEPS, key=3, epoch=epoch % CYCLE)

    epoch, step = data.draw(st.integers(0, 14)), data.draw(st.integers(0, STEPS - 1))
    ledger = SeatLedger(schedule, changing=changing, cycle=CYCLE, epoch=epoch, streams=streams)
    sizes = np.diff(np.arange(streams + 1) * records // streams)
    counted, every = Passes(sizes), np.arange(BATCH)
    for each in range(epoch + 1):
        steps = np.arange(step if each == epoch else STEPS)
        counted.draw(schedule(each).classes_at(steps, range(BATCH)) == 0, every)
    seats = schedule(epoch).classes_at(np.arange(step, STEPS), range(BATCH)) == 0
    resumed = Passes.at(sizes, ledger, 0, epoch, step)
    assert _tuples(resumed.draw(seats, every)) == _tuples(counted.draw(seats, every))
