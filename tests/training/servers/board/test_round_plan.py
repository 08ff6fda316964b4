"""Every step ends with as many gradients as it needs, whoever is late or dies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ringfeed.training.servers.board.part_plan import WorkerStep
from ringfeed.training.servers.board.round_plan import RoundPlan

MOVES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["go", "go", "go", "leave"])), max_size=200)


class _Worker:
    """A worker that does one thing at a time: take, vote, add, finish."""

    def __init__(self, plan: RoundPlan, number: int) -> None:
        self.plan, self.number = plan, number
        self.state = "idle"

    def go(self, applied: list[int]) -> bool:
        """Do the next thing; return whether there was one."""
        if self.state == "idle":
            step = self.plan.take(self.number)
            if not isinstance(step, WorkerStep):
                return False
            self.state, self.step = "computed", step.step
        elif self.state == "computed":
            self.state = "granted" if self.plan.vote(self.number) else "through"
        elif self.state == "granted":
            if self.plan.add(self.number):
                applied.append(self.step)
            self.state = "through"
        else:
            self.plan.finish(self.number)
            self.state = "idle"
        return True


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 6), MOVES)
def test_each_step_is_applied_and_in_order(workers: int, needed: int, steps: int, moves: list[tuple[int, str]]) -> None:
    needed = min(needed, workers)
    plan = RoundPlan(workers, needed, 3, 3 + steps)
    all_workers = [_Worker(plan, number) for number in range(workers)]
    applied: list[int] = []
    for number, move in moves:
        worker = all_workers[number % workers]
        if move == "go":
            worker.go(applied)
        else:
            plan.leave(worker.number)
            worker.state = "idle"
    while any(worker.go(applied) for worker in all_workers):
        pass
    assert plan.is_over
    assert plan.steps_done == steps
    assert sorted(set(applied)) == list(range(3, 3 + steps))
    if not any(move == "leave" for _, move in moves):
        assert applied == list(range(3, 3 + steps))
