"""`ringfeed launch -H` on hosts that can be lost: real ssh, real ranks, one line that names host, rank and cause."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.helpers.host_runs import CLI, LOST_SECONDS, HostRun, training_lab
from tests.helpers.lean import lean_environment
from tests.servers.lab import Host, Lab, missing

pytest.importorskip("horovod", reason="Horovod is built by: make setup")
pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with training_lab(tmp_path_factory.mktemp("lab"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(hosts: Lab) -> dict[str, Any]:
    """The weights of a run to which nothing happens."""
    run = HostRun(hosts, "undisturbed", "-H", "h1:1")
    status, stderr = run.end()
    assert status == 0, stderr
    run.assert_whole()
    return run.weights()


LOSSES: dict[str, Callable[[Host], None]] = {
    "cut": Host.cut,
    "stopped": Host.pause,
    "deaf": Host.drop_sent,
    "powered_off": Host.power_off,
}


@pytest.mark.parametrize(
    "loss", [pytest.param(name, marks=() if name == "cut" else pytest.mark.campaign) for name in LOSSES]
)
def test_the_others_go_on_from_the_last_commit_without_a_host_that_says_nothing(
    hosts: Lab, undisturbed: dict[str, Any], loss: str
) -> None:
    (hosts.shared / "hosts").write_text("h1:1\nh2:1\nh3:1\n")
    run = HostRun(hosts, loss, "--hosts-file", "hosts", "--elastic", pause_seconds=0.2)
    run.wait_for_step(7)
    LOSSES[loss](hosts.hosts[2])
    start = time.monotonic()
    run.wait_for(lambda: any(seen.size == 2 for seen in run.seen()))
    seconds = time.monotonic() - start
    print(f"{loss}: the others went on after {seconds:.1f} s")
    assert seconds < LOST_SECONDS + 60  # the silence is noticed, and a new ring made, on a busy machine
    if loss != "powered_off":
        hosts.hosts[2].heal()
        hosts.hosts[2].unlimit()
        hosts.hosts[2].proceed()
    if loss == "cut":
        _exchange_hosts(hosts, run)
    status, stderr = run.end()
    assert status == 0, stderr
    assert re.search("ringfeed launch: rank 2 on h3(:| does not).* answer.*; starting none instead\n", stderr)
    run.assert_whole()
    for name, array in undisturbed.items():
        np.testing.assert_allclose(run.weights()[name], array, rtol=1e-5, atol=1e-7)


def _exchange_hosts(hosts: Lab, run: HostRun) -> None:
    """Let another host leave, and the lost one come back, while the first trains on in the same process."""
    run.pause(1.5)
    (hosts.shared / "hosts").write_text("h1:1\n")
    run.wait_for(lambda: any(seen.size == 1 for seen in run.seen()))
    (hosts.shared / "hosts").write_text("h1:1\nh3:1\n")
    run.wait_for(lambda: {(seen.host, seen.size) for seen in run.seen()[-2:]} == {("h1", 2), ("h3", 2)})
    assert len(list(hosts.shared.glob("seen-h1-*"))) == 1
    run.pause(0.0)


@pytest.mark.campaign
def test_a_rank_that_dies_is_named_with_its_host_and_all_end(hosts: Lab) -> None:
    run = HostRun(hosts, "killed", "-H", "h1:1,h2:1", pause_seconds=0.2)
    run.wait_for_step(1)
    (rank,) = [pid for pid, line in hosts.hosts[1].processes().items() if "tools.cli train" in line]
    os.kill(rank, signal.SIGKILL)
    line = "rank 1 on h2 was killed by SIGKILL (as the kernel does when memory runs out)"
    status, stderr = run.end()
    line = f"ringfeed launch: error: {line}; the same command resumes from {run.name}"
    assert (status, stderr.splitlines()[-1]) == (1, line)
    _wait_until_no_rank_runs(hosts)


def test_the_ranks_end_with_a_launcher_that_is_killed_and_save_when_it_is_asked_to_end(hosts: Lab) -> None:
    run = HostRun(hosts, "asked", "-H", "h1:1,h2:2", pause_seconds=0.2, SECRET="planted")
    run.wait_for_step(6)
    for host in hosts.hosts:
        assert "planted" not in " ".join(host.processes().values())
    assert {(seen.host, seen.rank) for seen in run.seen()} == {("h1", 0), ("h2", 1), ("h2", 2)}
    run.launcher().terminate()
    status, stderr = run.end()
    assert status == 75, stderr
    assert "stopped by SIGTERM; the checkpoint of step " in stderr.splitlines()[-1]
    again = HostRun(hosts, "asked", "-H", "h1:1,h2:1", pause_seconds=0.2)
    again.wait_for_step(8)
    assert min(seen.step for seen in again.seen()) > 5
    again.launcher().kill()
    again.process.communicate(timeout=60)
    _wait_until_no_rank_runs(hosts)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("h1:1,10.78.0.1:1", "host 10.78.0.1: Network is unreachable"),
        ("h1:1,root@h2:1", "rank 1 on root@h2: /tmp/only-here: No such file or directory"),
        ("h1:1:2", "-H: needs each host once, as HOST or HOST:RANKS, got 'h1:1:2'"),
    ],
)
def test_what_cannot_start_is_one_line(hosts: Lab, names: str, line: str) -> None:
    words = [*CLI, "launch", "-H", names, "bench-ring"]
    command = f"mkdir -p /tmp/only-here && cd /tmp/only-here && exec {' '.join(words)}"
    process = hosts.hosts[0].start(["sh", "-c", command], lean_environment())
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr.count("\n")) == (1, 1)
    assert stderr.endswith(f"error: {line}\n")


def _wait_until_no_rank_runs(hosts: Lab) -> None:
    deadline = time.monotonic() + 60
    while any("ringfeed" in line for host in hosts.hosts for line in host.processes().values()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
