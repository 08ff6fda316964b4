"""Processes of a run: their reports, their signals, and that none outlives the launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import psutil

from ringfeed.training.launching.endings import Ending, LauncherSignals
from ringfeed.training.launching.process_group import ProcessGroup, run_together

HEAD = """
import json, os, signal, socket, sys, time
def report(**fields):
    os.write(int(os.environ["RINGFEED_REPORT"]), json.dumps(fields).encode() + b"\\n")
name = os.environ["NAME"]
"""


def _command(script: str) -> list[str]:
    return [sys.executable, "-c", HEAD + script]


def _together(script: str, ranks: int = 2, signals: LauncherSignals | None = None) -> Ending:
    places = nullcontext([{"NAME": str(rank)} for rank in range(ranks)])
    return run_together(ProcessGroup(_command(script)), places, signals or LauncherSignals())


def test_ranks_that_all_succeed_end_without_a_line() -> None:
    assert _together("pass") == Ending(status=0)


def test_a_rank_that_fails_is_named_by_its_report_and_the_others_are_killed(tmp_path: Path) -> None:
    script = f"""
if name == "1":
    while not os.path.exists({str(tmp_path / "0")!r}):
        time.sleep(0.01)
    report(message="no column x", status=1)
    sys.exit(1)
with open({str(tmp_path / "part")!r}, "w") as file:
    file.write(str(os.getpid()))
os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "0")!r})
time.sleep(1000)
"""
    assert _together(script) == Ending(status=1, line="rank 1: no column x")
    assert not psutil.pid_exists(int((tmp_path / "0").read_text()))


def test_a_rank_that_is_killed_is_named_with_its_signal() -> None:
    ending = _together('os.kill(os.getpid(), signal.SIGKILL) if name == "1" else time.sleep(1000)')
    assert ending.line.startswith("rank 1 was killed by SIGKILL")
    assert ending.was_killed


class _Terminated(LauncherSignals):
    """SIGTERM comes when there is a file."""

    def __init__(self, path: Path, save_seconds: float = 60.0) -> None:
        self._path = path
        super().__init__(save_seconds)

    @property
    def number(self) -> int:  # type: ignore[override]
        return signal.SIGTERM if self._path.exists() else 0

    @number.setter
    def number(self, _: int) -> None:
        pass


def test_sigterm_is_passed_on_and_the_run_ends_as_its_ranks_say(tmp_path: Path) -> None:
    script = f"""
def stop(*_):
    report(message="stopped; the same command resumes", status=75)
    os._exit(75)
signal.signal(signal.SIGTERM, stop)
open({str(tmp_path / "ready")!r}, "w")
time.sleep(1000)
"""
    ending = _together(script, 1, _Terminated(tmp_path / "ready"))
    assert ending == Ending(status=75, line="stopped; the same command resumes")


def test_ranks_that_stay_after_sigterm_are_killed(tmp_path: Path) -> None:
    script = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(tmp_path / "ready")!r}, "w")
time.sleep(1000)
"""
    ending = _together(script, 1, _Terminated(tmp_path / "ready", save_seconds=0.25))
    assert ending == Ending(status=143, line="killed, since the ranks still ran 0 s after SIGTERM")


def test_what_a_process_says_on_its_own_channel_arrives_and_its_end_is_seen() -> None:
    said: list[object] = []
    script = """
channel = socket.socket(fileno=int(os.environ["RINGFEED_ELASTIC"]))
channel.sendall(b'"hel')
channel.sendall(b'lo"\\n' + channel.recv(99))
report(message="first", status=75)
report(message="second", status=75)
sys.exit(75)
"""
    with ProcessGroup[str](_command(script)) as group:
        process = group.start("a", {"NAME": "a"}, said.append)
        process.send({"back": 1})
        assert group.listen_until(lambda: not process.sources, 60.0)
        assert process.popen.wait() == 75
        assert (said, process.report) == (["hello", {"back": 1}], group.first_report)
        assert group.reports()["a"].message == "first"
        group.drop("a")
        assert group.processes == {}


def test_the_processes_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    """By `end_with_launcher`, which each of them calls."""
    pids = tmp_path / "pids"
    rank = f"""
from ringfeed.training.ring.launched import end_with_launcher
end_with_launcher()
with open({str(pids)!r}, "a") as file:
    file.write(f"{{os.getpid()}} ")
time.sleep(1000)
"""
    launcher = f"""
import sys
from contextlib import nullcontext
from ringfeed.training.launching.endings import LauncherSignals
from ringfeed.training.launching.process_group import ProcessGroup, run_together
command = [sys.executable, "-c", {HEAD + rank!r}]
run_together(ProcessGroup(command), nullcontext([{{"NAME": "0"}}, {{"NAME": "1"}}]), LauncherSignals())
"""
    process = subprocess.Popen([sys.executable, "-c", launcher])
    while not (pids.exists() and len(pids.read_text().split()) == 2):
        assert process.poll() is None
        os.sched_yield()
    process.kill()
    process.wait()
    ranks = [psutil.Process(int(pid)) for pid in pids.read_text().split() if psutil.pid_exists(int(pid))]
    _, alive = psutil.wait_procs(ranks, timeout=60)
    assert alive == []
