"""A watchdog: names the rank that the others wait for, which Horovod's stall check does not.

A thread of each rank reports to rank 0, at least every two seconds, how many batches its main thread has begun, and
where the user's code stands; a step costs one addition. Rank 0 judges, and its answers carry the verdict. Ranks whose
rank 0 does not answer judge that themselves.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .ring import Ring
from .run_lines import Connection, LineServer, connect

_PERIODS = 10  # a rank reports at least so often before it counts as stalled
_LONGEST_PERIOD = 2.0  # seconds
_GIVE_UP = 5  # all ranks may stay so many times longer at one batch: they compile, save a checkpoint, or start
_REMEDY = "if they are at work, raise watchdog_seconds"
_INSTALLED = re.compile("[/\\\\](site|dist)-packages[/\\\\]|^<")
_PACKAGE = Path(__file__).parents[2]
_FOREIGN = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(_PACKAGE))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What rank 0 knows of a rank."""

    batches: int  # number of batches that it has begun
    place: str  # where its user's code stands; empty if nowhere
    seen: float  # when it last reported
    # When it last began a batch; before the first, also when its main thread was last seen at another place
    moved: float
    own_place: str = ""  # where its main thread stands in ringfeed; empty if nowhere


def silent_ranks(reports: Mapping[int, RankReport], now: float, seconds: float) -> list[int]:
    """Return the ranks that have not reported for some seconds."""
    return [rank for rank, report in reports.items() if now - report.seen > seconds]


def judge(reports: Mapping[int, RankReport], now: float, seconds: float) -> str | None:
    """Return which rank has stalled, in words; None if none has.

    >>> at_work = RankReport(batches=7, place="", seen=100, moved=50)
    >>> judge({0: at_work, 1: RankReport(batches=6, place="net.py:3 in f", seen=100, moved=49)}, 100, 60) is None
    True
    >>> judge({0: at_work, 1: RankReport(batches=6, place="net.py:3 in f", seen=100, moved=49)}, 111, 60)
    'rank 1 has stalled in net.py:3 in f: the others have waited for 61 s, at batch 7 of this process'
    """
    if silent := silent_ranks(reports, now, seconds):
        return _silence(silent, now - min(reports[rank].seen for rank in silent))
    idle = now - max(report.moved for report in reports.values())
    if idle <= seconds:
        return None
    last, first = (end(report.batches for report in reports.values()) for end in (min, max))
    behind = [rank for rank, report in reports.items() if report.batches == last]
    if last == first:
        behind = [rank for rank, report in reports.items() if report.place]
        if len(behind) in (0, len(reports)) and idle <= _GIVE_UP * seconds:
            return None
        behind = behind or list(reports)
    if len(behind) == len(reports):
        where = _places(reports)
        if last == 0:
            return f"no rank has begun its first batch, or come closer to it for {idle:.0f} s{where}; {_REMEDY}"
        return f"no rank has begun a batch for {idle:.0f} s, after batch {last} of this process{where}"
    culprit = next((rank for rank in behind if reports[rank].place), None)
    place = "" if culprit is None else f" in {reports[culprit].place}"
    waited = f"the others have waited for {idle:.0f} s, at batch {first} of this process"
    return f"{_names(behind)} stalled{place}: {waited}"


def _silence(ranks: list[int], seconds: float) -> str:
    return f"{_names(ranks)} not answered for {seconds:.0f} s: stopped, or its machine is gone"


def _names(ranks: list[int], one: str = "has", many: str = "have") -> str:
    return f"rank {ranks[0]} {one}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} {many}"


def _places(reports: Mapping[int, RankReport]) -> str:
    """Where the ranks stand, the rarest places first: the others probably wait for these ranks.

    >>> places = enumerate(["a.py:0", "a.py:0", "a.py:1"])
    >>> _places({rank: RankReport(batches=7, place="", seen=0, moved=0, own_place=place) for rank, place in places})
    ': rank 2 is in a.py:1, ranks 0, 1 are in a.py:0'
    """
    found: dict[str, list[int]] = {}
    for rank, report in reports.items():
        found.setdefault(report.place or report.own_place, []).append(rank)
    rarest_first = sorted(found.items(), key=lambda item: len(item[1]))
    words = [f"{_names(ranks, 'is', 'are')} in {place}" for place, ranks in rarest_first if place]
    return f": {', '.join(words)}" if words else ""


class Watchdog:
    """Watches the ranks of a run, which all make one (a collective), from a thread of its own.

    There it calls `end`, with which rank has stalled for `seconds`, to end this process, and `lose`, with the ranks
    that have not reported for `lost_seconds`, to leave this ring.
    """

    def __init__(
        self,
        ring: Ring,
        seconds: float,
        end: Callable[[str], None],
        *,
        lost_seconds: float | None = None,
        lose: Callable[[list[int]], None] | None = None,
    ) -> None:
        self._rank, self._seconds, self._end, self._lose = ring.rank, seconds, end, lose
        self._silence = lost_seconds or seconds
        self._period = min(_LONGEST_PERIOD, seconds / _PERIODS, self._silence / _PERIODS)
        self._closed = threading.Event()
        self._batches = 0
        self._reports: dict[int, RankReport] = {}
        self._verdict: str | list[int] | None = None  # which rank has stalled, or the ranks that are lost
        server = LineServer(_own_address(ring), self._answer) if ring.rank == 0 else None
        self._address: str = ring.allgather_object(server.address if server else None)[0]
        if server:
            start = time.monotonic()
            self._reports = {
                rank: RankReport(batches=0, place="", seen=start, moved=start) for rank in range(ring.size)
            }
            self._start(self._serve, server)
        self._start(self._watch)

    def beat(self) -> None:
        """Count a batch of the main thread."""
        self._batches += 1

    def close(self) -> None:
        """Watch no more, as when the ring is left."""
        self._closed.set()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="ringfeed-watchdog", daemon=True).start()

    # -- every rank ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        verdict: str | list[int] | None = None
        try:
            with connect(self._address, self._silence) as line, line.makefile("rb") as reader:
                connection = Connection(reader, line)
                answers = iter(connection)
                while verdict is None and not self._closed.is_set():
                    connection.send([self._rank, self._batches, user_place(), _own_place()])
                    verdict = next(answers)
                    self._closed.wait(self._period)  # rank 0 ends only after the others have their answers
        except (ConnectionError, StopIteration):  # rank 0 has ended, and so will this rank
            return
        except OSError:  # no answer, or no way to its machine
            verdict = _silence([0], self._silence) if self._lose is None else [0]
        if self._closed.is_set():
            return
        if self._lose is not None and isinstance(verdict, list):
            self._lose(verdict)
        else:
            self._end(str(verdict))

    # -- rank 0 --------------------------------------------------------------------------------------------------

    def _serve(self, server: LineServer) -> None:
        with server:
            server.timeout = self._period
            while not self._closed.is_set():
                server.handle_request()
                reports, now = dict(self._reports), time.monotonic()
                lost = silent_ranks(reports, now, self._silence) if self._lose is not None else []
                self._verdict = lost or judge(reports, now, self._seconds)

    def _answer(self, connection: Connection) -> None:
        for rank, batches, place, own_place in connection:
            now, before = time.monotonic(), self._reports[rank]
            starts = batches == 0 and (place, own_place) != (before.place, before.own_place)
            moved = now if batches > before.batches or starts else before.moved
            self._reports[rank] = RankReport(batches=batches, place=place, seen=now, moved=moved, own_place=own_place)
            connection.send(self._verdict)


def _own_address(ring: Ring) -> str:
    """The address of this rank for the others: the launcher chose its network interface."""
    if ring.local_size == ring.size:
        return "127.0.0.1"
    import psutil

    addresses = psutil.net_if_addrs().get(os.environ.get("HOROVOD_GLOO_IFACE", ""), [])
    found = [entry.address for entry in addresses if entry.family == socket.AF_INET]
    return found[0] if found else socket.gethostbyname(socket.gethostname())


def user_place() -> str:
    """Return where user code stands in any thread, as ``FILE:LINE in FUNCTION``; empty if none runs."""
    for frame in sys._current_frames().values():
        for step in reversed(traceback.extract_stack(frame)):
            foreign = _INSTALLED.search(step.filename) or step.filename.startswith(_FOREIGN) or step.name == "<module>"
            if not foreign:
                return f"{step.filename}:{step.lineno} in {step.name}"
    return ""


def _own_place() -> str:
    """Where the main thread stands in this package, outside of `ring`; empty if nowhere."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        code = frame.f_code
        path = Path(code.co_filename)
        if path.is_relative_to(_PACKAGE) and path.parent != Path(__file__).parent:
            return f"{path.relative_to(_PACKAGE)}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""
