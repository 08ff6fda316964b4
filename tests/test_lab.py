"""The hosts of the lab: their losses are those of machines, and none outlives the tests."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.servers.lab import Host, Lab, lab, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "")

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
STARTER = """
import sys, time
from pathlib import Path
from tests.servers.lab import lab
with lab(Path(sys.argv[1]), 1) as running:
    print(running.hosts[0].init, flush=True)
    time.sleep(1000)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab(tmp_path_factory.mktemp("lab"), 2) as running:
        yield running


def run(host: Host, *words: str) -> tuple[int, str]:
    process = host.start(words, ENVIRONMENT)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output + errors


def ssh(host: Host, name: str, command: str = "true") -> tuple[int, str]:
    return run(host, "ssh", "-o", "ConnectTimeout=1", name, command)


def test_hosts_share_one_folder_and_nothing_else(hosts: Lab) -> None:
    first, _ = hosts.hosts
    (hosts.shared / "seen").touch()
    (code, output), (_, machine) = ssh(first, "h2", "hostname; ls /mnt /tmp; ps ax"), run(first, "ps", "ax")
    assert (code, output.splitlines()[:4]) == (0, ["h2", "/mnt:", "seen", ""])
    assert len(machine.splitlines()) < 8
    assert os.getpid() not in first.processes()


def test_a_cable_that_is_pulled_says_nothing_and_can_be_put_back(hosts: Lab) -> None:
    first, second = hosts.hosts
    for lose, restore in ((second.cut, second.heal), (second.drop_sent, lambda: second.limit("1gbit"))):
        lose()
        assert ssh(first, "h2") == (255, "ssh: connect to host h2 port 22: Connection timed out\n")
        restore()
        assert ssh(first, "h2") == (0, "")


def test_a_host_that_is_stopped_accepts_connections_and_answers_none(hosts: Lab) -> None:
    first, second = hosts.hosts
    second.pause()
    assert ssh(first, "h2") == (255, "Connection timed out during banner exchange\n")
    second.proceed()
    assert ssh(first, "h2") == (0, "")


def test_a_link_carries_no_more_than_its_rate(hosts: Lab) -> None:
    first, second = hosts.hosts
    second.limit("4mbit")
    before, start = first.received_bytes(), time.monotonic()
    assert run(first, "sh", "-c", "ssh h2 head -c 1000000 /dev/zero | wc -c") == (0, "1000000\n")
    assert time.monotonic() - start > 1.8  # 8 Mbit, less the burst
    assert 1_000_000 < first.received_bytes() - before < 1_200_000


def test_a_host_whose_power_goes_takes_its_processes_along(tmp_path: Path) -> None:
    with lab(tmp_path, 2) as running:
        first, second = running.hosts
        held = first.start(
            ["ssh", "-o", "ServerAliveInterval=1", "-o", "LogLevel=INFO", "h2", "sleep 1000"], ENVIRONMENT
        )
        while not any(line.startswith("sleep") for line in second.processes().values()):
            assert held.poll() is None
        second.power_off()
        _, errors = held.communicate(timeout=60)
        assert errors.splitlines()[-1] == "Timeout, server h2 not responding."
        assert not psutil.pid_exists(second.init)


def test_nothing_of_a_lab_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    init = psutil.Process(int(starter.stdout.readline()))
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    init.wait(timeout=60)
    assert not subprocess.run(["pgrep", "-f", str(tmp_path)], stdout=subprocess.PIPE, text=True).stdout
