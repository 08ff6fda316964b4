"""The ring of threads that tests run ranks on: what goes wrong on it is an error, and ranks keep their generators."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from ringfeed.training.ring.ring import Ring
from tests.helpers.thread_ring import RingBroken, on_ranks


def _fail_on_last(ring: Ring) -> None:
    if ring.rank == 2:
        raise KeyError("of the last rank")
    ring.barrier()


def _end_early(ring: Ring) -> None:
    if ring.rank != 1:
        ring.barrier()


def _differ(ring: Ring) -> None:
    if ring.rank:
        ring.allgather(np.zeros(1))
    else:
        ring.barrier()


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (_fail_on_last, KeyError, "of the last rank"),
        (_end_early, RingBroken, "rank 0 waits in barrier, other ranks have ended"),
        (_differ, RingBroken, "different collectives: barrier, allgather, allgather"),
    ],
)
def test_ranks_that_do_not_meet_are_an_error(
    work: Callable[[Ring], None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        on_ranks(3, work)


def test_each_rank_draws_as_a_process_of_its_own() -> None:
    def draw(ring: Ring) -> list[float]:
        random.seed(ring.rank)
        ring.barrier()
        first = random.random()
        ring.barrier()
        return [first, random.random()]

    before = random.getstate()
    expected = [[own.random(), own.random()] for own in map(random.Random, range(3))]
    assert on_ranks(3, draw) == expected
    assert random.getstate() == before


def test_compiled_collectives_of_most_ranks_find_threads() -> None:
    @tf.function
    def step(reduce: Callable[..., list[tf.Tensor]], value: tf.Tensor) -> tf.Tensor:
        return reduce([reduce([value])[0] + 1.0])[0]

    assert on_ranks(8, lambda ring: float(step(ring.allreduce_sum, tf.constant(float(ring.rank))))) == [8 * 29.0] * 8
