"""The watchdog: which rank has stalled, by what ranks report, and over real sockets."""

from __future__ import annotations

import threading
from queue import Queue

import pytest

from ringfeed.training.ring.watchdog import RankReport, Watchdog, judge
from tests.helpers.thread_ring import on_ranks


def _report(batches: int, place: str = "", seen: float = 100.0, moved: float = 40.0, own_place: str = "") -> RankReport:
    return RankReport(batches=batches, place=place, seen=seen, moved=moved, own_place=own_place)


@pytest.mark.parametrize(
    ("reports", "verdict"),
    [
        ([_report(5), _report(5)], None),  # perhaps both compile, or one saves a checkpoint
        ([_report(5), _report(4, moved=95)], None),
        ([_report(5), _report(4)], "rank 1 has stalled: the others have waited for 60 s, at batch 5 of this process"),
        ([_report(5), _report(4, "net.py:3 in f"), _report(4)], "ranks 1, 2 have stalled in net.py:3 in f: the others"),
        ([_report(5, "net.py:3 in f"), _report(5)], "rank 0 has stalled in net.py:3 in f: the others"),
        ([_report(5), _report(5, seen=45)], "rank 1 has not answered for 55 s: stopped, or its machine is gone"),
        (
            [_report(5, moved=-200), _report(5, moved=-200)],
            "no rank has begun a batch for 300 s, after batch 5 of this process",
        ),
        (
            [_report(5, moved=-200, own_place=f"run/{'save' if rank == 1 else 'step'}.py:3 in f") for rank in range(3)],
            "no rank has begun a batch for 300 s, after batch 5 of this process: rank 1 is in run/save.py:3 in f",
        ),
        (
            [_report(5, moved=-200), _report(5, moved=-200, place="net.py:3 in f")],
            "rank 1 has stalled in net.py:3 in f: the others have waited for 300 s",
        ),
        (
            [_report(5, "net.py:3 in f", moved=-200), _report(5, "net.py:3 in f", moved=-200)],
            "no rank has begun a batch for 300 s, after batch 5 of this process: ranks 0, 1 are in net.py:3 in f",
        ),
        ([_report(0, moved=-149), _report(0, moved=-200)], None),  # a start may take long
        (
            [_report(0, moved=-151, own_place=f"run/{'inputs' if rank else 'resume'}.py:3 in f") for rank in range(3)],
            "no rank has begun its first batch, or come closer to it for 251 s: rank 0 is in run/resume.py:3 in f, "
            "ranks 1, 2 are in run/inputs.py:3 in f; if they are at work, raise watchdog_seconds",
        ),
    ],
)
def test_the_rank_that_others_wait_for_has_stalled(reports: list[RankReport], verdict: str | None) -> None:
    found = judge(dict(enumerate(reports)), 100.0, 50.0)
    assert (found or "").startswith(verdict or "")
    assert (found is None) == (verdict is None)


def _verdict_on(beats: tuple[int, int], seconds: float) -> str:
    """What both of two ranks hear that have begun so many batches, and begin no more."""
    verdicts: Queue[str] = Queue()
    dogs = on_ranks(2, lambda ring: Watchdog(ring, seconds, verdicts.put))
    for dog, count in zip(dogs, beats, strict=True):
        for _ in range(count):
            dog.beat()
    found = [verdicts.get(timeout=120) for _ in dogs]
    assert found[0] == found[1]
    return found[0]


def test_all_ranks_get_the_verdict_over_sockets() -> None:
    verdict = _verdict_on((3, 1), 3.0)  # a busy machine may silence a thread for one
    assert verdict.startswith("rank 1 has stalled")
    assert "at batch 3 of this process" in verdict
    assert not [thread for thread in threading.enumerate() if thread.name == "ringfeed-watchdog" and not thread.daemon]
