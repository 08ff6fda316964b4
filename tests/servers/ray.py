"""A real Ray for the tests: a head node, and its client server, on loopback."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from .process import free_ports, kill, running, wait_until_ready

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # else it reports outside
    "RAY_AUTH_MODE": "disabled",  # else it keeps a secret in the home folder
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_enable_metrics_collection": "0",
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "1",  # not 30 s, in which the server of a lost client stays
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """A running node."""

    address: str
    client_port: int
    head: subprocess.Popen[bytes]

    @property
    def engine(self) -> str:
        """As `--engine` takes it."""
        return f"ray://127.0.0.1:{self.client_port}"

    @property
    def environment(self) -> dict[str, str]:
        """In which `ray://auto` is this cluster."""
        return {**SETTINGS, "RAY_ADDRESS": self.address}

    def busy_workers(self) -> list[psutil.Process]:
        """The worker processes that run a task now."""
        found = []
        for process in psutil.Process(self.head.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if any("ray::run_remotely" in word for word in process.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """SIGKILL all of it."""
        _kill_descendants(self.head.pid)
        kill(self.head)


@contextmanager
def ray_cluster(directory: Path, processors: int) -> Iterator[RayCluster]:
    """Start a cluster of one node whose logs lie in a directory."""
    port, client_port, agent_port = free_ports(3)
    log = directory / "ray.log"
    files = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # the paths of its sockets must be short
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
        f"--ray-client-server-port={client_port}", "--node-ip-address=127.0.0.1", f"--num-cpus={processors}",
        "--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={agent_port}",
        "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={files}",
        f"--object-store-memory={80 << 20}",
    ]  # fmt: skip
    try:
        with running(command, log, SETTINGS, directory) as head:
            try:
                wait_until_ready("Ray", lambda: _answers(client_port), {log: head})
                yield RayCluster(address=f"127.0.0.1:{port}", client_port=client_port, head=head)
            finally:
                _kill_descendants(head.pid)
    finally:
        shutil.rmtree(files, ignore_errors=True)


def _answers(port: int) -> None:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=2)


def _kill_descendants(pid: int) -> None:
    """SIGKILL what a process started: Ray's have sessions of their own."""
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
