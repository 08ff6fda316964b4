"""Start a server process that cannot outlive the tests: its ports, its log, its end.

Not a general process manager: one process per server, ended with SIGKILL: its data is thrown away.
"""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

GRPC_OFFSET = 10_000
"""SeaweedFS listens for gRPC at port + 10000, so a port is free only if that one is too."""

UNLESS_ORPHANED = '[ "$PPID" = "$0" ] && exec "$@"'
"""Closes the gap in which the parent dies before the kernel was told to tell its child."""

_given: list[socket.socket] = []  # marks of the ports that this process was given


class ServerError(RuntimeError):
    """A server did not come up, or a test needs one that cannot run here."""


def free_ports(count: int) -> list[int]:
    """Return ``count`` distinct ports p such that p and p + 10000 are free on 127.0.0.1.

    Both lie below 32768, out of the range from which the kernel serves outgoing connections: a port found free
    here is not taken by a client before its server binds it. Nor is it given to another process of the tests, or tried
    by it, as long as this one lives.
    """
    ports: list[int] = []
    candidates = random.SystemRandom().sample(range(11_000, 11_000 + GRPC_OFFSET), 2_000)
    for port in candidates:
        if len(ports) == count:
            return ports
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0ringfeed-tests-port-{port}")  # no file: the kernel forgets it with this process
            for number in (port, port + GRPC_OFFSET):
                with socket.socket() as tried:
                    tried.bind(("127.0.0.1", number))
        except OSError:
            mark.close()
            continue
        _given.append(mark)
        ports.append(port)
    raise ServerError(f"found {len(ports)} of {count} free ports among {len(candidates)} tried")


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` in a process group of its own, output appended to ``log``; SIGKILL it at the end.

    ``setpriv --pdeathsig`` has the kernel kill it when the starting thread dies, however that comes about; it is
    used instead of ``preexec_fn``, which may deadlock where other threads run (hdfs-native and s3fs have some).
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "sh", "-c", UNLESS_ORPHANED, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            cwd=cwd,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the process group and reap its leader; nothing happens if it has ended already."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_ready(
    name: str,
    probe: Callable[[], object],
    processes: Mapping[Path, subprocess.Popen[bytes]],
    timeout_seconds: float = 300,
) -> None:
    """Call ``probe`` until it raises nothing.

    Raises:
        ServerError: one of ``processes`` (by its log) has ended, or the time is up; it shows the log's tail.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            probe()
            return
        except Exception as error:  # whatever the client makes of a server that is half up
            cause = error
        for log, process in processes.items():
            if process.poll() is not None:
                raise ServerError(f"{name} ended with status {process.returncode}; {tail(log)}") from cause
        if time.monotonic() > deadline:
            tails = "\n".join(tail(log) for log in processes)
            message = f"{name} was not ready after {timeout_seconds:g} s: {cause!r}; {tails}"
            raise ServerError(message) from cause
        time.sleep(0.1)


def tail(log: Path, lines: int = 30) -> str:
    """Return the log's name and its last lines."""
    text = log.read_text(errors="replace").splitlines()[-lines:] if log.exists() else []
    return "\n".join([f"end of {log}:", *text])
