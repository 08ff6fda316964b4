"""When a run that fails goes on with fewer ranks, and when it ends."""

from __future__ import annotations

from pathlib import Path

from ringfeed.training.launching.restarts import Restarts


def test_failures_without_progress_lower_the_number_of_ranks_and_then_end_the_run(tmp_path: Path) -> None:
    restarts = Restarts(ranks=3, least=2, url=str(tmp_path))
    assert [restarts.after_failure("dead", step) for step in (0, 0, 5, 5, 5)] == [None] * 5
    assert restarts.ranks == 2
    reasons = [restarts.after_failure("dead", 5) for _ in range(3)]
    assert reasons == [None, None, f"dead; this was failure 3 in a row without a new checkpoint in {tmp_path}"]


def test_a_place_whose_ranks_die_soon_after_they_join_is_given_up_while_the_others_make_progress(
    tmp_path: Path,
) -> None:
    restarts = Restarts(ranks=3, least=2, url=str(tmp_path))
    lives = [(1, 5.0), (1, 5.0), (2, 5.0), (1, 600.0), (1, 0.0), (1, 5.0)]
    steps = iter(range(100))
    assert [restarts.after_failure("dead", next(steps), *life) for life in lives] == [None] * 6
    assert restarts.ranks == 3
    assert [restarts.after_failure("dead", next(steps), *life) for life in [(1, 5.0), (1, 5.0), (1, 5.0)]] == [None] * 3
    assert restarts.ranks == 2
    assert restarts.after_failure("dead", next(steps), 1, 5.0) == (
        "dead; this was failure 3 in a row within 60 s of a start in this place"
    )


def test_a_file_that_asks_for_fewer_ranks_than_the_least_is_lowered_no_further(tmp_path: Path) -> None:
    restarts = Restarts(ranks=1, least=2, url=str(tmp_path))
    assert [restarts.after_failure("dead") is None for _ in range(3)] == [True, True, False]
    assert restarts.ranks == 1


def test_a_store_that_is_gone_hides_progress_and_ends_nothing(tmp_path: Path) -> None:
    restarts = Restarts(ranks=3, least=2, url="hdfs://127.0.0.1:1/run")
    assert [restarts.after_failure("dead", step) for step in (0, 0, 5, 5, 5)] == [None] * 5
    assert restarts.ranks == 2
