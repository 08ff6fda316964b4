"""Shared rates and thread pools against queueing theory, and against processor sharing written out step by step."""

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline.fetch.adaptive_limit import AdaptiveLimit
from ringfeed.tools.predict.resources import Barrier, Buffer, Pool, Process, SharedRate

JOBS = st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 5), st.integers(1, 3)), min_size=1, max_size=8)


def shared_ends(jobs: list[tuple[float, float, int]], capacity: float, per_job: float) -> list[float]:
    """When each job ends, by advancing all of them from event to event."""
    left = [amount for _, amount, _ in jobs]
    ends, now = [0.0] * len(jobs), 0.0
    while any(rest > 0 for rest in left):
        active = [i for i, (begin, _, _) in enumerate(jobs) if begin <= now and left[i] > 0]
        later = [begin for begin, _, _ in jobs if begin > now]
        if not active:
            now = min(later)
            continue
        rate = min(per_job, capacity / sum(jobs[i][2] for i in active))
        ending = min(left[i] for i in active) / rate
        step = min([ending, *(begin - now for begin in later)])
        now += step
        for i in active:
            left[i] = 0.0 if left[i] - rate * step < 1e-12 else left[i] - rate * step
            ends[i] = now
    return ends


@given(JOBS, st.floats(0.5, 4), st.floats(0.5, 2))
def test_jobs_share_a_rate_evenly(jobs: list[tuple[float, float, int]], capacity: float, per_job: float) -> None:
    env = simpy.Environment()
    shared, ends = SharedRate(env, capacity, per_job), [0.0] * len(jobs)

    def job(number: int, begin: float, amount: float, threads: int) -> Process:
        yield env.timeout(begin)
        yield shared.work(amount, threads)
        ends[number] = env.now

    for number, given_job in enumerate(jobs):
        env.process(job(number, *given_job))
    env.run()
    assert ends == pytest.approx(shared_ends(jobs, capacity, per_job), rel=1e-6, abs=1e-6)
    assert shared.done == pytest.approx(sum(amount * threads for _, amount, threads in jobs))


def arrivals(rate: float, number: int) -> list[float]:
    return np.cumsum(np.random.default_rng(7).exponential(1 / rate, number)).tolist()


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_processor_sharing_has_the_mean_time_of_theory(load: float) -> None:
    """M/G/1-PS: E[T] = E[S] / (1 - load), whatever the distribution of S (Kleinrock 1967)."""
    env = simpy.Environment()
    shared, times = SharedRate(env, 1.0, 1.0), []
    sizes = np.random.default_rng(3).choice([0.2, 1.8], 20_000).tolist()  # of mean 1

    def job(begin: float, amount: float) -> Process:
        yield env.timeout(begin)
        yield shared.work(amount)
        times.append(env.now - begin)

    for begin, amount in zip(arrivals(load, len(sizes)), sizes, strict=True):
        env.process(job(begin, amount))
    env.run()
    assert np.mean(times) == pytest.approx(1 / (1 - load), rel=0.1)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_fetch_thread_is_an_md1_queue(load: float) -> None:
    """M/D/1: E[wait] = load / (2 (1 - load)) times the service (Pollaczek and Khinchine)."""
    env = simpy.Environment()
    pool, waits = Pool(env, AdaptiveLimit(1, 1)), []

    def service() -> Process:
        yield env.timeout(1.0)

    def job(begin: float) -> Process:
        yield env.timeout(begin)
        yield pool.submit(0, service, 1)
        waits.append(env.now - begin - 1.0)

    for begin in arrivals(load, 20_000):
        env.process(job(begin))
    env.run()
    assert np.mean(waits) == pytest.approx(load / (2 * (1 - load)), rel=0.1)


def test_the_most_urgent_task_comes_first() -> None:
    env, done = simpy.Environment(), []

    def task(name: int) -> Process:
        yield env.timeout(1)
        done.append(name)

    pool = Pool(env, AdaptiveLimit(1, 1))
    for step in (5, 3, 1, 4):  # the first finds the thread idle
        pool.submit(step, lambda step=step: task(step), 1)  # type: ignore[misc]
    env.run()
    assert done == [5, 1, 3, 4]


def test_a_barrier_opens_for_all_at_once_after_the_last() -> None:
    env, opened = simpy.Environment(), []
    barrier = Barrier(env, 3)

    def rank(pace: float) -> Process:
        for _ in range(2):
            yield env.timeout(pace)
            yield barrier.arrive(0.5)
            opened.append(env.now)

    for pace in (1.0, 2.0, 3.0):
        env.process(rank(pace))
    env.run()
    assert opened == [3.5] * 3 + [7.0] * 3


def test_a_buffer_gives_batches_to_those_who_asked_first_and_the_rest_at_the_end() -> None:
    env, taken = simpy.Environment(), []
    buffer = Buffer(env, 5)

    def consumer() -> Process:
        for _ in range(2):
            yield from buffer.take(3)
            taken.append(env.now)

    def producer() -> Process:
        for _ in range(5):
            yield env.timeout(1)
            buffer.put(1)

    env.process(consumer())
    env.process(producer())
    env.run()
    assert taken == [3, 5]
