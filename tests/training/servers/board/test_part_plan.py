"""Each step of each part is done once, whatever workers do in whatever order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ringfeed.training.servers.board.part_plan import OVER, PartPlan, WorkerStep

MOVES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "finish", "finish", "leave"])), max_size=200)


def _play(plan: PartPlan, workers: int, moves: list[tuple[int, str]]) -> tuple[Counter[WorkerStep], list[WorkerStep]]:
    """What was finished, how often; and what dead workers had begun. At the end the first worker does the rest."""
    done: Counter[WorkerStep] = Counter()
    lost, held = [], {}
    for worker, move in moves:
        worker %= workers
        if move == "take":
            step = plan.take(worker)
            if isinstance(step, WorkerStep):
                assert held.get(worker, step) == step
                held[worker] = step
        elif move == "finish" and worker in held:
            plan.finish(worker)
            done[held.pop(worker)] += 1
        elif move == "leave":
            assert plan.leave(worker) == held.get(worker)
            lost += [held.pop(worker)] if worker in held else []
    for worker in range(1, workers):  # they die, and do not return
        plan.leave(worker)
        held.pop(worker, None)
    while plan.take(0) is not OVER:
        done[plan.take(0)] += 1  # type: ignore[index]  # asks twice, and gets the same
        plan.finish(0)
    return done, lost


@given(st.integers(1, 4), st.integers(0, 9), MOVES)
def test_each_step_is_finished_once(workers: int, steps: int, moves: list[tuple[int, str]]) -> None:
    plan = PartPlan(workers, 2, 2 + steps)
    done, _ = _play(plan, workers, moves)
    assert done == Counter(WorkerStep(part, step) for part in range(workers) for step in range(2, 2 + steps))
    assert plan.is_over
    assert plan.done == workers * steps


@given(st.integers(1, 4), st.integers(1, 9), MOVES, MOVES)
def test_a_cut_ends_all_parts_after_the_same_step(
    workers: int, steps: int, moves: list[tuple[int, str]], later: list[tuple[int, str]]
) -> None:
    plan = PartPlan(workers, 0, steps)
    done: Counter[WorkerStep] = Counter()
    held = {}
    for worker, move in moves:
        worker %= workers
        step = plan.take(worker) if move == "take" else None
        if isinstance(step, WorkerStep):
            held[worker] = step
        elif move == "finish" and worker in held:
            plan.finish(worker)
            done[held.pop(worker)] += 1
    stop = plan.cut()
    for worker in held:
        plan.finish(worker)
        done[held[worker]] += 1
    done += _play(plan, workers, later)[0]
    assert done == Counter(WorkerStep(part, step) for part in range(workers) for step in range(stop))
    assert plan.is_over


def test_a_worker_without_work_takes_half_of_what_is_left_and_all_of_a_dead_one() -> None:
    plan = PartPlan(3, 0, 9)
    for _ in range(9):
        plan.take(0)
        plan.finish(0)
    assert plan.take(0) == WorkerStep(1, 4)  # the second half of a part of which nobody has begun
    plan.finish(0)
    plan.leave(2)
    taken = []
    for _ in range(13):
        taken.append(plan.take(0))
        plan.finish(0)
    assert {WorkerStep(2, step) for step in range(9)} <= set(taken)


@given(st.integers(2, 4), st.integers(0, 3), st.integers(1, 9), MOVES)
def test_no_worker_begins_a_step_beyond_the_bound(
    workers: int, bound: int, steps: int, moves: list[tuple[int, str]]
) -> None:
    plan = PartPlan(workers, 0, steps, bound)
    done, held = [0] * workers, set()
    for number, move in moves:
        worker = number % workers
        if worker in held and move == "finish":
            plan.finish(worker)
            held.remove(worker)
            done[worker] += 1
        elif move == "take" and isinstance(step := plan.take(worker), WorkerStep):
            held.add(worker)
            assert step == WorkerStep(worker, done[worker])  # its own part
            slowest = min((d for d in done if d < steps), default=steps)
            assert done[worker] - slowest <= bound
    assert plan.most_ahead <= bound
    while plan.take(0) is not OVER or not plan.is_over:  # nobody waits for ever
        for worker in range(workers):
            if isinstance(plan.take(worker), WorkerStep):
                plan.finish(worker)
    assert plan.done == workers * steps
