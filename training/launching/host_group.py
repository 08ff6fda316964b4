"""The processes of a run on several hosts: each behind a connection of ssh, which a relay on the host serves.

A secret of the environment goes through the connection, never onto a command line. What ssh itself says is the cause
when a host cannot be reached. A host that does not answer ends its connections, as the options of ssh say.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ringfeed.training.ring.launched import EndReport

from .hosts import address_towards, is_this_machine
from .process_group import Key, Lines, Process, ProcessGroup
from .relay import RankRequest

_ALIVE_SECONDS = 2.0  # between two signs of life to each relay
_PROBES = 4  # ssh asks a silent host three times, after as many quarters of the time, and ends after the fourth
_CONNECT_SECONDS = 10
_RELAY = ("-m", "ringfeed.training.launching.relay")
_OF_THIS_MACHINE = re.compile("SSH_|XDG_|BASH_FUNC_|(HOSTNAME|DISPLAY|XAUTHORITY|OLDPWD|PWD|SHLVL|TERM|_)$")
_HOST = "HOROVOD_HOSTNAME"
_LOOPBACK = "127.0.0.1"


@dataclass(slots=True, kw_only=True)
class RemoteProcess(Process):
    """A process behind a relay."""

    host: str
    silence_seconds: float  # time after which ssh ends a connection whose host does not answer
    ended: int | None = None  # its exit status, as the relay said
    words: str = ""  # what ssh has said

    @property
    def code(self) -> int | None:
        """Its exit status; the status of ssh if the connection ended first."""
        status = self.popen.poll()
        return self.ended if self.ended is not None else status

    @property
    def loss(self) -> str | None:
        """Why the connection to the host ended before the process did, in words; None if it did not."""
        if self.ended is not None or self.popen.poll() is None:
            return None
        lines = [line.strip() for line in self.words.splitlines() if line.strip()]
        return lines[-1] if lines else f"no answer for {self.silence_seconds:g} s: stopped, off, or cut off"

    def terminate(self) -> None:
        self.tell({"terminate": True})

    def send(self, message: object) -> None:
        self.tell({"channel": message})

    def tell(self, message: object) -> None:
        assert self.popen.stdin is not None
        with suppress(OSError, ValueError):  # it has ended
            os.write(self.popen.stdin.fileno(), json.dumps(message).encode() + b"\n")


class HostGroup(ProcessGroup[Key]):
    """Processes of one command on several hosts, by the names that ssh knows; a ConfigError if there is no way to one.

    They reach this machine at its `address`; `peers` are theirs, as they connect. A host that does not answer for
    `silence_seconds` is lost.
    """

    def __init__(self, command: Sequence[str], hosts: Sequence[str], silence_seconds: float) -> None:
        super().__init__(command)
        self._silence = silence_seconds
        others = [host for host in hosts if not is_this_machine(host)]
        self.address = address_towards((others or list(hosts))[0])  # hosts that join later reach it there, too
        self.peers = {_LOOPBACK, self.address}
        self._told = time.monotonic()

    def start(
        self, key: Key, environment: Mapping[str, str], hear: Callable[[Any], None] | None = None
    ) -> RemoteProcess:
        """Start a process on the host that its environment names in HOROVOD_HOSTNAME."""
        host = environment[_HOST]
        popen = subprocess.Popen(
            self._connection(host),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        self.processes[key] = process = RemoteProcess(popen=popen, host=host, silence_seconds=self._silence)
        passed = {name: text for name, text in os.environ.items() if not _OF_THIS_MACHINE.match(name)}
        request = RankRequest(
            command=self._command,
            folder=os.getcwd(),
            environment={**passed, **environment},
            launcher=self.address,
            lost_seconds=self._silence,
            has_channel=hear is not None,
        )
        assert popen.stdin is not None
        assert popen.stdout is not None
        assert popen.stderr is not None
        with suppress(OSError):  # ssh has ended, which its status says
            popen.stdin.write(request.encode())
            popen.stdin.flush()
        split = Lines()

        def take(data: bytes) -> None:
            for message in split(data):
                self._take(process, message, hear)

        def take_words(data: bytes) -> None:
            process.words = (process.words + data.decode(errors="replace"))[-1000:]

        self.watch(process, popen.stdout, take)
        self.watch(process, popen.stderr, take_words)
        return process

    def _connection(self, host: str) -> list[str]:
        """Return the command that runs a relay on a host."""
        relay = [sys.executable, *_RELAY]
        if is_this_machine(host):
            return relay
        path = [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if os.environ.get("PYTHONPATH") else []
        seconds = max(1, round(self._silence / _PROBES))
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": _CONNECT_SECONDS,
            "ServerAliveInterval": seconds,
            "ServerAliveCountMax": _PROBES - 1,
            "LogLevel": "ERROR",
        }
        words = [word for name, setting in options.items() for word in ("-o", f"{name}={setting}")]
        return ["ssh", "-T", *words, host, shlex.join(["env", *path, *relay])]

    def _take(self, process: RemoteProcess, message: dict[str, Any], hear: Callable[[Any], None] | None) -> None:
        if "output" in message:
            stream = sys.stdout if message["stream"] == 1 else sys.stderr
            stream.write(message["output"].encode("latin-1").decode(errors="replace"))
            stream.flush()
        elif "channel" in message and hear is not None:
            hear(message["channel"])
        elif "address" in message:
            self.peers.add(message["address"])
        elif "report" in message:
            process.report = process.report or EndReport(**message["report"])
            self.first_report = self.first_report or process.report
        elif "code" in message:
            process.ended = message["code"]

    def listen(self, seconds: float = ProcessGroup.POLL_SECONDS) -> None:
        """Take what the processes say, as a group of this machine does, and tell the relays that this one lives."""
        now = time.monotonic()
        if now - self._told > _ALIVE_SECONDS:
            self._told = now
            for process in self.processes.values():
                if isinstance(process, RemoteProcess) and process.popen.poll() is None:
                    process.tell({"alive": True})
        super().listen(seconds)
