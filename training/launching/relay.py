"""Runs one rank on a host for a launcher on another one, to which ssh connects its standard streams.

Messages are lines of JSON. From the launcher: first `RankRequest`, then {"alive": true} all the while, {"channel": ...}
for the rank, and {"terminate": true}. To it: {"address": ...} of this host, {"output": ..., "stream": 1 or 2},
{"channel": ...} of the rank, {"report": ...}, and last {"code": ...}. The rank ends when the launcher's end closes, or
when nothing comes from it any more.
Tested in tests/training/launching/test_host_group.py.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

from ringfeed.sharding.storage.temporary_folder import end_process

from .hosts import address_towards
from .process_group import Lines, Process, ProcessGroup

_LOOPBACK_LAUNCHER = "the launcher's host has a name that only it knows: let the hosts begin with one that all know\n"
_STOPPED_SECONDS = 60.0  # a launcher that a terminal stops for a moment ends no rank
_ANSWER_SECONDS = 5.0
_CLOSED_PORT = 1
_CODEC = "latin-1"  # any bytes, also a part of a character


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRequest:
    """What a relay runs."""

    command: Sequence[str]
    folder: str  # where to run it
    environment: Mapping[str, str]  # variables beside those of this host
    launcher: str  # address of the launcher, as this host sees it
    lost_seconds: float  # time without a word from the launcher, after which its host has to answer
    has_channel: bool  # whether the rank exchanges messages with the launcher

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class _Relay:
    def __init__(self, request: RankRequest, wire: int) -> None:
        self._request, self._wire = request, wire
        self._heard = time.monotonic()

    def run(self) -> int:
        """Run the rank, and return the status of this process."""
        address = address_towards(self._request.launcher)
        self._send(address=address)
        threading.Thread(target=self._end_in_silence, daemon=True).start()
        interface = interface_of(address)
        places = {"HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface}
        with ProcessGroup[int](self._request.command) as group:
            hear = (lambda message: self._send(channel=message)) if self._request.has_channel else None
            outputs = [(stream, *self._captured(stream)) for stream in (1, 2)]
            process = group.start(0, {**places, **self._request.environment}, hear)
            for stream, reader, _ in outputs:
                group.watch(process, reader, functools.partial(self._output, stream))
            launcher, split = os.dup(0), Lines()
            group.watch(process, launcher, lambda data: self._obey(split(data), process))
            while process.code is None and launcher in process.sources:
                group.listen()
            for stream, _, saved in outputs:
                os.dup2(saved, stream)  # which closes this process' end of the pipe
            own = {launcher}
            group.listen_until(lambda: set(process.sources) <= own)
            if process.report:
                self._send(report=asdict(process.report))
            self._send(code=process.code)
        return 0

    def _captured(self, stream: int) -> tuple[int, int]:
        """Let a stream of this process, which the rank inherits, go into a pipe; return its end and the old stream."""
        reader, writer = os.pipe()
        saved = os.dup(stream if stream == 2 else 2)  # the wire is no place for words
        os.dup2(writer, stream)
        os.close(writer)
        return reader, saved

    def _output(self, stream: int, data: bytes) -> None:
        self._send(output=data.decode(_CODEC), stream=stream)

    def _obey(self, messages: Sequence[dict[str, Any]], process: Process) -> None:
        self._heard = time.monotonic()
        for message in messages:
            if "channel" in message:
                process.send(message["channel"])
            elif "terminate" in message:
                process.terminate()

    def _send(self, **message: object) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._wire, data) :]

    def _end_in_silence(self) -> None:
        """End the rank once the launcher's host is lost, or its launcher has been stopped for long."""
        lost, launcher = self._request.lost_seconds, self._request.launcher
        can_tell = _answers(launcher)  # a firewall may drop what asks
        while (silent := time.monotonic() - self._heard) < max(_STOPPED_SECONDS, lost):
            if can_tell and silent > lost and not _answers(launcher):
                break
            time.sleep(1.0)
        end_process(1)  # the rank ends with this process


def _answers(address: str) -> bool:
    """Whether a host answers: its kernel refuses a connection to a closed port, even if all processes are stopped."""
    try:
        socket.create_connection((address, _CLOSED_PORT), _ANSWER_SECONDS).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return True


def interface_of(address: str) -> str:
    import psutil

    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return str(name)
    return "lo"


def main() -> int:
    """Run the rank that the first line of standard input asks for."""
    with open(0, "rb", buffering=0, closefd=False) as stream:  # no buffer: what follows is for the relay
        line = stream.readline()
    if not line.endswith(b"\n"):
        return 1
    request = RankRequest(**json.loads(line))
    try:
        os.chdir(request.folder)
    except OSError as error:
        sys.stderr.write(f"{request.folder}: {error.strerror}\n")
        return 1
    if "SSH_CONNECTION" in os.environ and ip_address(request.launcher).is_loopback:
        sys.stderr.write(_LOOPBACK_LAUNCHER)
        return 1
    wire = os.dup(1)
    return _Relay(request, wire).run()


if __name__ == "__main__":
    sys.exit(main())
