"""The launcher's part of an elastic run, with ranks that speak its protocol and train nothing."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ringfeed.training.launching.endings import Ending, LauncherSignals
from ringfeed.training.launching.hosts import WantedHosts
from ringfeed.training.launching.process_group import ProcessGroup
from ringfeed.training.launching.restarts import Restarts
from ringfeed.training.launching.supervisor import Supervisor

RANK = """
import json, os, pathlib, signal, socket, sys, time
folder, slot = pathlib.Path(sys.argv[1]), int(os.environ["RINGFEED_SLOT"])
channel = socket.socket(fileno=int(os.environ["RINGFEED_ELASTIC"]))

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.01)
"""


@contextmanager
def _places(hosts: Sequence[str]) -> Iterator[list[dict[str, str]]]:
    yield [{"HOROVOD_RANK": str(rank)} for rank in range(len(hosts))]


def _run(folder: Path, script: str, signals: LauncherSignals | None = None, hosts: str = "") -> Ending:
    """Supervise ranks that run a script; a file in `folder` says how many, unless hosts are named."""
    wanted = WantedHosts(None if hosts else str(folder / "hosts"), hosts, None)
    restarts = Restarts(ranks=wanted.number, least=1, url=str(folder / "run"))
    command, signals = [sys.executable, "-c", RANK + script, str(folder)], signals or LauncherSignals()
    return Supervisor(
        processes=ProcessGroup(command),
        places=_places,
        wanted=wanted,
        restarts=restarts,
        signals=signals,
        patience_seconds=0.5,
    ).run()


def test_a_newcomer_that_dies_while_it_waits_does_not_end_the_ring_and_nor_does_a_mistake_in_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").write_text("h:2")
    script = """
channel.sendall(b'{"step": -1}\\n')
if slot < 2:
    place = json.loads(channel.makefile().readline())["environment"]
    channel.sendall(json.dumps({"joined": int(place["HOROVOD_RANK"])}).encode() + b"\\n")
    (folder / f"joined-{os.getpid()}").touch()
    (folder / "hosts").write_text("h:3")
    wait_for("died")  # a step that is longer than the launcher's patience
    (folder / "hosts").write_text("h:many")
    time.sleep(3.5)
elif not (folder / "died").exists():
    (folder / "died").touch()
    os._exit(1)
else:
    channel.recv(1000)
"""
    assert _run(tmp_path, script) == Ending(status=0)
    assert capfd.readouterr().err == (
        "ringfeed launch: rank 2 ended with status 1; starting another instead\n"
        f"ringfeed launch: {tmp_path}/hosts: needs each host once, as HOST or HOST:RANKS, got 'h:many'; "
        "going on as before\n"
    )
    assert len(list(tmp_path.glob("joined-*"))) == 2  # the same processes to the end


def test_a_newcomer_that_dies_after_each_join_is_not_replaced_for_ever(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").write_text("h:2")
    script = """
lines = channel.makefile()
def join(step):
    channel.sendall(json.dumps({"step": step}).encode() + b"\\n")
    place = json.loads(lines.readline())["environment"]
    channel.sendall(json.dumps({"joined": int(place["HOROVOD_RANK"])}).encode() + b"\\n")
if slot == 0:
    for death in (1, 2, 3):
        join(100 * death)
        wait_for(f"died-{death}")
        join(100 * death + 50)  # progress, alone
        if death < 3:
            assert json.loads(lines.readline()) == {"regroup": True}
else:
    join(-1)
    (folder / f"died-{1 + len(list(folder.glob('died-*')))}").touch()
    os._exit(1)
"""
    assert _run(tmp_path, script) == Ending(status=0)
    assert len(list(tmp_path.glob("died-*"))) == 3
    assert "instead, after three failures in a row: --elastic goes on with 1 rank\n" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("first", "ending"), [("join(7)", Ending(status=0)), ("fail('bad')", Ending(status=1, line="rank 0: bad"))]
)
def test_an_error_of_one_host_ends_the_run_only_if_another_host_has_one_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], first: str, ending: Ending
) -> None:
    script = """
lines = channel.makefile()
def join(step):
    channel.sendall(json.dumps({"step": step}).encode() + b"\\n")
    while "environment" not in (message := json.loads(lines.readline())):
        pass  # asked to regroup
    rank = int(message["environment"]["HOROVOD_RANK"])
    channel.sendall(json.dumps({"joined": rank}).encode() + b"\\n")
def fail(message):
    os.write(int(os.environ["RINGFEED_REPORT"]), json.dumps({"message": message, "status": 1}).encode() + b"\\n")
    os._exit(1)
join(-1)
join(5)
if os.environ["HOROVOD_HOSTNAME"] == "h2":
    fail("no space")
join(5)
"""
    assert _run(tmp_path, script + first, hosts="h1:1,h2:1") == ending
    assert capfd.readouterr().err.splitlines() == [
        "ringfeed launch: going on with 2 ranks from step 5",
        "ringfeed launch: rank 1: no space; starting none instead",
        *["ringfeed launch: going on with 1 ranks from step 5"],
        *["ringfeed launch: going on with 1 ranks from step 7"] * (ending.status == 0),
    ]


class _SignalByFile(LauncherSignals):
    """SIGTERM comes when a file appears."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__()

    @property
    def number(self) -> int:  # type: ignore[override]
        return signal.SIGTERM if self._path.exists() else 0

    @number.setter
    def number(self, _: int) -> None:
        pass


def test_a_terminated_run_ends_with_its_last_process_even_if_that_had_to_go_before(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("h:2")
    script = """
lines = channel.makefile()
channel.sendall(b'{"step": -1}\\n')
rank = int(json.loads(lines.readline())["environment"]["HOROVOD_RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN if rank else signal.SIG_DFL)
channel.sendall(json.dumps({"joined": rank}).encode() + b"\\n")
(folder / "hosts").write_text("h:1")
assert json.loads(lines.readline()) == {"regroup": True}
channel.sendall(b'{"step": 5}\\n')
if json.loads(lines.readline())["environment"] is None:
    (folder / "sigterm").touch()
    time.sleep(1.0)
else:
    channel.recv(1000)
"""
    signals = _SignalByFile(tmp_path / "sigterm")
    assert _run(tmp_path, script, signals) == Ending(status=143, line="interrupted")
