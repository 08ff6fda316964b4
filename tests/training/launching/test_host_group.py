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
    run = HostRun(hosts, "undisturbed", "-H", "h1:1,h2:2", SECRET="planted")
    run.wait_for_step(1)
    for host in hosts.hosts:
        assert "planted" not in " ".join(host.processes().values())
    assert {(seen.host, seen.rank) for seen in run.seen()} == {("h1", 0), ("h2", 1), ("h2", 2)}
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
    run = HostRun(hosts, loss, "-H", "h1:1,h2:1,h3:1", "--elastic", PAUSE="20")
    run.wait_for_step(7)
    LOSSES[loss](hosts.hosts[2])
    start = time.monotonic()
    run.wait_for(lambda: any(seen.size == 2 for seen in run.seen()))
    seconds = time.monotonic() - start
    print(f"{loss}: the others went on after {seconds:.1f} s")
    assert seconds < LOST_SECONDS + 10
    if loss != "powered_off":
        hosts.hosts[2].heal()
        hosts.hosts[2].limit("1gbit")
        hosts.hosts[2].proceed()
    status, stderr = run.end()
    assert status == 0, stderr
    assert re.search("ringfeed launch: rank 2 on h3(:| does not).* answer.*; starting none instead\n", stderr)
    run.assert_whole()
    for name, array in undisturbed.items():
        np.testing.assert_allclose(run.weights()[name], array, rtol=1e-5, atol=1e-7)


@pytest.mark.campaign
def test_a_rank_that_dies_is_named_with_its_host_and_all_end(hosts: Lab) -> None:
    run = HostRun(hosts, "killed", "-H", "h1:1,h2:1", PAUSE="20")
    run.wait_for_step(1)
    (rank,) = [pid for pid, line in hosts.hosts[1].processes().items() if "tools.cli train" in line]
    os.kill(rank, signal.SIGKILL)
    line = "rank 1 on h2 was killed by SIGKILL (as the kernel does when memory runs out)"
    status, stderr = run.end()
    assert (status, stderr.splitlines()[-1]) == (1, f"ringfeed launch: error: {line}")
    _wait_until_no_rank_runs(hosts)


def test_the_ranks_end_with_a_launcher_that_is_killed_and_save_when_it_is_asked_to_end(hosts: Lab) -> None:
    run = HostRun(hosts, "asked", "-H", "h1:1,h2:1", PAUSE="20")
    run.wait_for_step(6)
    run.launcher().terminate()
    status, stderr = run.end()
    assert status == 75, stderr
    assert "stopped by SIGTERM; the checkpoint of step " in stderr.splitlines()[-1]
    again = HostRun(hosts, "asked", "-H", "h1:1,h2:1", PAUSE="20")
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
