"""The hosts of a run over several machines, with the number of ranks that each can take: a list, or a file."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from ringfeed.sharding.errors import ConfigError, RingfeedError
from ringfeed.sharding.storage.untrusted_files import read_untrusted

_MOST_BYTES = 1 << 20
_HOST = re.compile(r"(?P<name>[A-Za-z0-9_@][A-Za-z0-9_.@-]*)(?::(?P<slots>[0-9]{1,4})|\s+slots=(?P<mpi>[0-9]{1,4}))?")
_DISCARD_PORT = 9  # nothing is sent to it


def parse_hosts(text: str, where: str) -> dict[str, int]:
    """Return the number of ranks for each host, from entries between commas or line ends, comments after ``#``.

    Entries are such as ``h1:2``, ``h1 slots=2``, or ``h1`` for one rank. A ConfigError, which says `where` the text is
    from, refuses others, and a host that is named twice.

    >>> parse_hosts("h1:2,h2", "-H")
    {'h1': 2, 'h2': 1}
    """
    hosts: dict[str, int] = {}
    for entry in re.split("[,\n]", re.sub("#.*", "", text)):
        if not (entry := entry.strip()):
            continue
        match = _HOST.fullmatch(entry)
        slots = int(match["slots"] or match["mpi"] or 1) if match else 0
        if match is None or slots < 1 or match["name"] in hosts:
            raise ConfigError(f"{where}: needs each host once, as HOST or HOST:RANKS, got {entry[:60]!r}")
        hosts[match["name"]] = slots
    return hosts


class WantedHosts:
    """The hosts that are wanted, with the ranks of each, and their `number`: of a file, which may change, or of a list.

    There are `most` ranks; None: as many as the hosts take. A ConfigError says that no host is named, or what is none.
    """

    def __init__(self, path: str | None, text: str, most: int | None) -> None:
        self._path, self._most = path, most
        self.hosts: Mapping[str, int] = {}
        if path is None:
            self._take(text, "-H")
        else:
            self.has_changed()
        if not self.hosts:
            raise ConfigError(f"{path or '-H'} names no host")

    def has_changed(self) -> bool:
        """Read the file, and return whether its hosts are others; an empty file is one that is being written."""
        if self._path is None:
            return False
        try:
            text = read_untrusted(self._path, _MOST_BYTES).decode(errors="replace")
        except RingfeedError as error:
            raise ConfigError(f"--hosts-file: {error}") from error
        return self._take(text, self._path)

    def _take(self, text: str, where: str) -> bool:
        before, self.hosts = self.hosts, parse_hosts(text, where) or self.hosts
        self.number = min(self._most or 2**31, sum(self.hosts.values()))
        return self.hosts != before

    def by_rank(self) -> list[str]:
        """Return the host of each rank, those of a host side by side."""
        return [host for host, slots in self.hosts.items() for _ in range(slots)][: self.number]


def address_towards(host: str) -> str:
    """Return the address of this machine from which it reaches another one; a ConfigError if there is no way to it."""
    name = host.rpartition("@")[2]
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((name, _DISCARD_PORT))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"host {name}: {error.strerror or error}") from error


def is_this_machine(host: str) -> bool:
    """Return whether a name is this machine's: whether one can listen at its address."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host.rpartition("@")[2], 0))
    except OSError:
        return False
    return True
