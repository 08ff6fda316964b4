"""Processes that need not import TensorFlow: forks of a server that has, and has used nothing of it.

Each is a process of its own, to be signalled and killed, with its own environment, folder and streams; nothing of one
reaches another. Only the import is shared, and the seed of Python's hashes. Where one of them is a launcher, its
processes are forks of it, so that `/proc` shows the command and environment of the server for all.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.forks import ForkedRank
from tests.helpers.lean import lean_environment

_ROOT = Path(__file__).resolve().parents[2]
_IMPORTED = ("ringfeed.training.train", "ringfeed.training.run.trainer", "ringfeed.training.serving.trained")


class WarmProcess:
    """A process, with what the tests use of `subprocess.Popen`; its output is in a file.

    Attributes:
        pid: its process id.
        returncode: its exit status, minus the signal that killed it; None: it still ran when last asked.
    """

    def __init__(self, connection: socket.socket, output: Path) -> None:
        self._lines, self._output = connection.makefile("r"), output
        connection.close()  # which is that of the file from now on
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None if it still runs."""
        return self.wait(0.0)

    def wait(self, timeout: float) -> int | None:
        """Return the exit status; None if it has not ended in time."""
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._lines, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = int(self._lines.readline())
                    self._lines.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def communicate(self, timeout: float = 0.0) -> tuple[str, None]:
        """Wait for the end, and return standard output and errors."""
        if self.wait(timeout) is None:
            self._lines.close()  # kills it
            raise subprocess.TimeoutExpired(str(self.pid), timeout, self._output.read_bytes())
        return self._output.read_text(), None


@dataclass(frozen=True, slots=True)
class WarmServer:
    """Where the server listens."""

    address: str

    def start(
        self, arguments: Sequence[str], *, folder: Path, output: Path, environ: Mapping[str, str] | None = None
    ) -> WarmProcess:
        """Start ``python -m`` with these arguments, whose output is appended to a file."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.address)
        request = {"arguments": list(arguments), "folder": str(folder), "environ": lean_environment(environ)}
        with output.open("ab") as file:
            data = json.dumps(request).encode()
            socket.send_fds(connection, [len(data).to_bytes(8, "big")], [file.fileno()])
            connection.sendall(data)
        return WarmProcess(connection, output)


@contextmanager
def warm_server(folder: Path) -> Iterator[WarmServer]:
    """Run a server, whose socket is in a folder, during the body; its processes end with it."""
    address = str(folder / "socket")
    command = [sys.executable, "-m", "tests.helpers.warm", address]
    environment = lean_environment({"PYTHONPATH": f"{_ROOT / 'tests/helpers/lean'}:{os.environ.get('PYTHONPATH', '')}"})
    server = subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE, start_new_session=True)
    deadline = time.monotonic() + 240
    while not os.path.exists(address):
        assert server.poll() is None, "the server of warm processes has ended"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    try:
        yield WarmServer(address)
    finally:
        assert server.stdin is not None
        server.stdin.close()
        server.wait(60)


@dataclass(frozen=True, slots=True)
class _Request:
    """What a process is to run."""

    arguments: list[str]
    folder: str
    environ: dict[str, str]
    output: int


class _Server:
    """Forks a process for each connection, tells it pid and status, and kills the process when it closes."""

    def __init__(self, address: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{address}.new")
        self._listener.listen(64)
        os.rename(f"{address}.new", address)
        self._selector.register(self._listener, selectors.EVENT_READ, self._begin)
        self._selector.register(0, selectors.EVENT_READ, self._end)
        self._pids: dict[int, tuple[int, socket.socket]] = {}  # by the file that is readable once the process has ended
        self._is_over = False

    def serve(self) -> _Request | None:
        """Return in each process its request, and in the server nothing, when standard input closes."""
        while not self._is_over:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is key:  # an earlier one may have removed it
                    request: _Request | None = key.data(key.fileobj)
                    if request is not None:
                        return request
        return None

    def _begin(self, listener: socket.socket) -> _Request | None:
        connection, _ = listener.accept()
        size, (output,), _, _ = socket.recv_fds(connection, 8, 1)
        data = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            for key in [key for key in self._selector.get_map().values() if key.fd != 0]:
                os.close(key.fd)
            self._selector.close()
            os.close(connection.detach())
            return _Request(**json.loads(data), output=output)
        os.close(output)
        connection.sendall(f"{pid}\n".encode())
        end = os.pidfd_open(pid)
        self._pids[end] = (pid, connection)
        self._selector.register(end, selectors.EVENT_READ, self._report)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: os.kill(pid, signal.SIGKILL))
        return None

    def _report(self, end: int) -> None:
        pid, connection = self._pids.pop(end)
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(end)
        self._selector.unregister(connection)
        os.close(end)
        with suppress(OSError):  # nobody may want to know
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        connection.close()

    def _end(self, _: int) -> None:
        for pid, _ in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        self._is_over = True


def _become(request: _Request) -> None:
    """Run the request in this process, as if it had just started."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environ)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (request.output, 1), (request.output, 2)):
        os.dup2(source, target)
    random.seed()
    subprocess.Popen = ForkedRank  # type: ignore[misc]
    module, *arguments = request.arguments
    sys.argv = [module, *arguments]
    sys.path[0] = request.folder
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import_all() -> None:
    from importlib import import_module

    from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow

    with quiet_tensorflow():
        for name in _IMPORTED:
            import_module(name)
        with suppress(ImportError):  # then tests of several ranks are skipped
            import_module("horovod.tensorflow")
    from tensorflow.python.eager import context

    assert context.context()._context_handle is None, "TensorFlow has started: its threads do not outlive a fork"
    gc.collect()
    gc.freeze()


def main(address: str) -> None:
    """Serve; in each process, run what it is asked for."""
    _import_all()
    request = _Server(address).serve()
    if request is not None:
        _become(request)


if __name__ == "__main__":
    main(sys.argv[1])
