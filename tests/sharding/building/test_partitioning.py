"""Reading ahead keeps the order of items and errors, and is at most one item ahead."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.building.partitioning import read_ahead


@given(st.lists(st.integers()))
def test_items_keep_their_order(items: list[int]) -> None:
    assert list(read_ahead(iter(items))) == items


def test_only_the_next_item_is_read_ahead() -> None:
    taken: list[int] = []
    second = threading.Event()

    def items() -> Iterator[int]:
        for number in range(4):
            taken.append(number)
            if number == 1:
                second.set()
            yield number

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert second.wait(60)
    assert taken == [0, 1]
    ahead.close()
    assert taken == [0, 1]


def test_an_error_keeps_its_place() -> None:
    def items() -> Iterator[int]:
        yield 0
        raise OSError("the disk is gone")

    ahead = read_ahead(items())
    assert next(ahead) == 0
    with pytest.raises(OSError, match="the disk is gone"):
        next(ahead)


def test_the_iterator_is_closed_when_the_reader_stops_early() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.set()

    ahead = read_ahead(items())
    next(ahead)
    ahead.close()
    del ahead
    assert closed.wait(60)
