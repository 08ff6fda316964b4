"""Class balance as pure arithmetic."""

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline.order import class_balance as balance
from ringfeed.pipeline.order.class_balance import ClassSchedule, RecordSampler, balanced_word

pytestmark = pytest.mark.usefixtures("implementation")


@st.composite
def schedules(draw: st.DrawFn) -> ClassSchedule:
    raw = np.array(draw(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any)), float)
    sizes = draw(st.integers(1, 200)), draw(st.integers(1, 80))
    return ClassSchedule(raw / raw.sum(), *sizes, draw(st.integers(0, 9)), draw(st.integers(0, 99)))


@given(schedules())
def test_every_batch_and_every_epoch_is_within_one_of_the_target(schedule: ClassSchedule) -> None:
    seats = schedule.seats(np.arange(schedule.steps))
    target = schedule.weights * schedule.batch_size
    assert (seats.sum(axis=1) == schedule.batch_size).all()
    assert np.abs(seats - target).max() < 1 + 1e-6
    assert np.abs(seats.sum(axis=0) - target * schedule.steps).max() < 1 + 1e-6
    assert (seats[:, schedule.weights == 0] == 0).all()


@given(schedules())
def test_the_seats_of_an_epoch_are_those_of_its_batches(schedule: ClassSchedule) -> None:
    seats = schedule.seats(np.arange(schedule.steps))
    for found, expected in zip(
        schedule.seats_of_epoch(), (seats.sum(axis=0), seats.min(axis=0), seats.max(axis=0)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_over_many_epochs_a_class_meets_a_target_of_less_than_a_seat_in_each() -> None:
    weights = np.array([0.002, 0.1, 0.25, 0.6, 0.048])
    epochs = [ClassSchedule(weights, 4, 2, key=5, epoch=epoch).seats_of_epoch()[0] for epoch in range(1000)]
    assert np.abs(np.sum(epochs, axis=0) - weights * 8 * 1000).max() < 5


def test_reading_in_parts_builds_each_word_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.arange(1, 1001) / (1000 * 1001 / 2)
    whole = ClassSchedule(weights, 512, 300, 7).classes_at(np.arange(150), range(512))
    made: list[object] = []

    def noted(seats: tuple[int, ...]) -> npt.NDArray[np.integer]:
        made.append(seats)
        return balanced_word(seats)

    monkeypatch.setattr(balance, "balanced_word", noted)
    schedule = ClassSchedule(weights, 512, 300, 7)
    parts = [schedule.classes_at(np.arange(first, first + 50), range(512)) for first in (0, 50, 100, 50, 0, 100)]
    assert len(made) <= 150
    np.testing.assert_array_equal(np.concatenate(parts[:3]), whole)
    np.testing.assert_array_equal(np.concatenate([parts[4], parts[3], parts[5]]), whole)


def test_memory_grows_linearly_with_the_classes() -> None:
    classes = 100_000
    weights = np.arange(1, classes + 1) / (classes * (classes + 1) / 2)
    tracemalloc.start()
    try:
        schedule = ClassSchedule(weights, 1024, 5000, 7)
        whole = schedule.classes_at(np.arange(40), range(1024))
        totals, fewest, most = schedule.seats_of_epoch()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
    assert np.abs(totals - weights * 1024 * 5000).max() < 1 + 1e-6
    assert (fewest.min(), most.max()) == (0, 1)
    np.testing.assert_array_equal(np.bincount(whole[7], minlength=classes), schedule.seats(np.array([7]))[0])


@given(schedules())
def test_the_positions_of_a_batch_hold_its_seats(schedule: ClassSchedule) -> None:
    steps = np.arange(schedule.steps)
    classes = schedule.classes_at(steps, range(schedule.batch_size))
    counted = np.stack([np.bincount(row, minlength=len(schedule.weights)) for row in classes])
    np.testing.assert_array_equal(counted, schedule.seats(steps))


@given(schedules(), st.data())
def test_a_part_of_the_steps_and_positions_is_a_part_of_the_whole(schedule: ClassSchedule, data: st.DataObject) -> None:
    step = data.draw(st.integers(0, schedule.steps - 1))
    place = data.draw(st.integers(0, schedule.batch_size - 1))
    whole = schedule.classes_at(np.arange(schedule.steps), range(schedule.batch_size))
    assert schedule.classes_at(np.array([step]), range(place, place + 1)) == whole[step, place]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any), st.data())
def test_any_stretch_of_a_balanced_word_is_balanced(seats: list[int], data: st.DataObject) -> None:
    word = balanced_word(tuple(seats))
    start = data.draw(st.integers(0, len(word)))
    stop = data.draw(st.integers(start, len(word)))
    counted = np.bincount(word[start:stop], minlength=len(seats))
    expected = np.array(seats) / sum(seats) * (stop - start)
    assert np.abs(counted - expected).max() < 2 + len(seats) / 2  # of order one, where a shuffle has order sqrt(n)


class_lists = st.lists(st.integers(0, 4), min_size=5, max_size=200)


@given(class_lists, class_lists, st.integers(0, 9))
def test_draws_serve_the_wanted_class_and_repeat_records_evenly(held: list[int], asked: list[int], key: int) -> None:
    class_ids = np.array(held, np.int32)
    wanted = np.array([c for c in asked if c in held], np.int32)
    drawn = RecordSampler(class_ids, 5, key).draw(wanted)
    np.testing.assert_array_equal(class_ids[drawn], wanted)
    times = np.bincount(drawn, minlength=len(class_ids))
    for value in set(held):
        assert np.ptp(times[class_ids == value]) <= 1


@given(class_lists, class_lists, st.integers(0, 9), st.integers(0, 200), st.integers(0, 200))
def test_draws_continue_after_earlier_or_skipped_draws(
    held: list[int], asked: list[int], key: int, first: int, second: int
) -> None:
    class_ids = np.array(held, np.int32)
    wanted = np.array([c for c in asked if c in held], np.int32)
    first, second = sorted((min(first, len(wanted)), min(second, len(wanted))))
    drawers = [RecordSampler(class_ids, 5, key) for _ in range(2)]
    whole = drawers[0].draw(wanted)
    np.testing.assert_array_equal(drawers[1].draw(wanted[:first]), whole[:first])
    drawers[1].skip(wanted[first:second])
    np.testing.assert_array_equal(drawers[1].draw(wanted[second:]), whole[second:])


def test_a_record_repeats_only_after_all_others_of_its_class() -> None:
    drawer = RecordSampler(np.repeat(np.arange(2, dtype=np.int32), (100, 3)), 2, key=1)
    drawn = drawer.draw(np.zeros(300, np.int32)).reshape(3, 100)
    assert sorted(drawn[0].tolist()) == list(range(100)) != drawn[0].tolist()
    np.testing.assert_array_equal(drawn[1:], drawn[[0, 0]])
