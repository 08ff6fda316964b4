"""When a run that fails goes on with fewer ranks, and when it ends."""

from __future__ import annotations

from pathlib import Path

from ringfeed.training.elastic.restarts import Restarts


def test_failures_without_progress_lower_the_number_of_ranks_and_then_end_the_run(tmp_path: Path) -> None:
    restarts = Restarts(ranks=3, least=2, url=str(tmp_path))
    assert [restarts.after_failure("dead", step) for step in (0, 0, 5, 5, 5)] == [None] * 5
    assert restarts.ranks == 2
    reasons = [restarts.after_failure("dead", 5) for _ in range(3)]
    assert reasons == [None, None, f"dead; this was failure 3 in a row without a new checkpoint in {tmp_path}"]


def test_a_file_that_asks_for_fewer_ranks_than_the_least_is_lowered_no_further(tmp_path: Path) -> None:
    restarts = Restarts(ranks=1, least=2, url=str(tmp_path))
    assert [restarts.after_failure("dead") is None for _ in range(3)] == [True, True, False]
    assert restarts.ranks == 1
