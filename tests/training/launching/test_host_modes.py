"""Runs on several hosts beside what should not be there: files that some hosts lack, and garbage on the ports."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.host_runs import CLI, HostRun, training_lab
from tests.helpers.lean import lean_environment
from tests.servers.lab import Host, Lab, missing

pytest.importorskip("horovod", reason="Horovod is built by: make setup")
pytestmark = [pytest.mark.campaign, pytest.mark.skipif(bool(missing()), reason=missing() or "")]

SCAN = """
import sys
from tests.training import test_listeners
import socket
real = socket.create_connection
test_listeners.socket.create_connection = lambda place, seconds: real((sys.argv[1], place[1]), seconds)
for port in map(int, sys.argv[2:]):
    test_listeners.scan(port)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with training_lab(tmp_path_factory.mktemp("lab"), 3) as running:
        yield running


def run(host: Host, *words: str, **environ: str) -> str:
    process = host.start(words, lean_environment(environ))
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def test_a_dataset_that_only_some_hosts_see_is_one_line_that_names_the_host(hosts: Lab) -> None:
    first = hosts.hosts[0]
    run(first, "cp", "-r", "/mnt/data", "/tmp/data")
    words = [*CLI, "launch", "-H", "h1:1,h2:1", "train", "--config", "run.yaml", "--set", "data.url=/tmp/data"]
    process = first.start(words, lean_environment())
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.fullmatch(r"ringfeed launch: error: rank 1 on h2: .*/tmp/data.*", stderr.splitlines()[-1])


def test_garbage_on_every_port_of_a_run_is_no_line_and_ends_nothing(hosts: Lab) -> None:
    scanned = HostRun(hosts, "scanned", "-H", "h1:1,h2:1", "--elastic", PAUSE="30")
    scanned.wait_for_step(3)
    for host in hosts.hosts[:2]:
        places = [line.split()[3] for line in run(host, "ss", "-Hltn").splitlines()]
        ports = [place.rpartition(":")[2] for place in places if not place.endswith(":22")]
        assert {place.rpartition(":")[0] for place in places if not place.endswith(":22")} <= {host.address}
        run(hosts.hosts[2], sys.executable, "-c", SCAN, host.address, *ports, PYTHONPATH=_tree())
    status, stderr = scanned.end()
    assert (status, [line for line in stderr.splitlines() if not line.startswith("epoch")]) == (0, [])


def _tree() -> str:
    return f"{Path(__file__).resolve().parents[3]}:{Path(__file__).resolve().parents[3] / '.src'}"
