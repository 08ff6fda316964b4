"""Hosts of one Linux machine for the tests: each has its own network, name, processes, /tmp and sshd, on one switch.

All of it is namespaces of one process, so no packet leaves them, and nothing remains when that process is killed. The
hosts share the kernel, its clock, and all files but /tmp; they are no measure of a real network's latency.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from .process import ServerError, running, wait_until_ready

SHARED = Path("/mnt")
"""Where all hosts see the folder `Lab.shared`, as they would a network file system."""

_NAMESPACES = ("--net", "--uts", "--mount", "--pid")
_UNSHARE = f"unshare {' '.join(_NAMESPACES)} --fork --kill-child=KILL --mount-proc"
_BURST = ("burst", "64kb", "latency", "50ms")

# Arguments: the lab's folder, the shared folder, the number of hosts.
_SWITCH = f"""
set -e
ip link set lo up
ip link add switch type bridge
ip link set switch up
for i in $(seq $3); do
    {_UNSHARE} sh "$1/host.sh" "$1" "$2" $i &
    while [ /proc/$!/ns/net -ef /proc/self/ns/net ]; do sleep 0.01; done
    ip link add port$i type veth peer name eth0 netns $!
    ip link set port$i master switch up
done
wait
"""

# Arguments: the lab's folder, the shared folder, the host's number. sshd is the init of the host: all end with it.
_HOST = """
set -e
until ip link show eth0 >&- 2>&-; do sleep 0.01; done
hostname h$3
ip link set lo up
ip addr add 10.77.0.$3/24 dev eth0
ip link set eth0 up
mount -t tmpfs tmpfs /run
mkdir /run/sshd /run/lab
mount --bind "$1" /run/lab
mount --bind "$2" /mnt
mount --bind /run/lab/hosts /etc/hosts
mount --bind /run/lab/ssh_config /etc/ssh/ssh_config
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /dev/shm
exec $(command -v sshd || echo /usr/sbin/sshd) -D -e -f /run/lab/sshd_config
"""

_SSHD = """
HostKey /run/lab/key
AuthorizedKeysFile /run/lab/key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
MaxStartups 100
"""

_SSH = """
Host *
    IdentityFile /run/lab/key
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
    LogLevel ERROR
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host of the lab.

    Attributes:
        name: its host name.
        address: its IPv4 address.
        init: process id of its sshd on the machine.
        switch: process id of a process in the switch's namespaces.
    """

    name: str
    address: str
    init: int
    switch: int

    @property
    def _port(self) -> str:
        return f"port{self.name.removeprefix('h')}"

    def command(self, words: Sequence[str], folder: Path = SHARED) -> list[str]:
        """Return the words that run a command on this host, in one of its folders."""
        return [*_enter(self.init), f"--wdns={folder}", *words]

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
        """Start a command in the shared folder, its output in pipes."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            self.command(words), env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def cut(self) -> None:
        """Pull its cable: packets vanish, and nobody is told."""
        self._in_switch("ip", "link", "set", self._port, "down")

    def heal(self) -> None:
        """Put its cable back."""
        self._in_switch("ip", "link", "set", self._port, "up")

    def limit(self, rate: str) -> None:
        """Limit its link to a rate such as ``100mbit``, in both directions."""
        shape = ("root", "tbf", "rate", rate, *_BURST)
        self._in_switch("tc", "qdisc", "replace", "dev", self._port, *shape)
        _run([*_enter(self.init), "tc", "qdisc", "replace", "dev", "eth0", *shape])

    def drop_sent(self) -> None:
        """Let what it sends vanish, while it goes on to receive; `limit` undoes it."""
        _run([*_enter(self.init), "tc", "qdisc", "replace", "dev", "eth0", "root", "bfifo", "limit", "1"])

    def pause(self) -> None:
        """Stop all of its processes; the kernel, which they share, goes on to acknowledge what arrives."""
        self._signal(signal.SIGSTOP)

    def proceed(self) -> None:
        """Let its processes go on after `pause`."""
        self._signal(signal.SIGCONT)

    def power_off(self) -> None:
        """End all of its processes, without a packet that says so."""
        self.cut()
        os.kill(self.init, signal.SIGKILL)

    def processes(self) -> dict[int, str]:
        """Return the command lines of the processes that run on it, by their ids on the machine."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it ends meanwhile
                if os.path.samefile(folder / "ns/pid", f"/proc/{self.init}/ns/pid"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def received_bytes(self) -> int:
        """Return how many bytes have come over its link."""
        (link,) = json.loads(_run([*_enter(self.init), "ip", "-json", "-stats", "link", "show", "eth0"]))
        return int(link["stats64"]["rx"]["bytes"])

    def _in_switch(self, *words: str) -> None:
        _run([*_enter(self.switch), *words])

    def _signal(self, number: int) -> None:
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """The hosts h1, h2 and so on, and the folder that all of them see at `SHARED`."""

    hosts: list[Host] = field(default_factory=list)
    shared: Path


def missing() -> str | None:
    """Return why no lab can run here; None if one can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if absent := [
        name for name in ("ip", "tc", "unshare", "nsenter", "ssh", "sshd") if not shutil.which(name, path=path)
    ]:
        return f"hosts in namespaces need {', '.join(absent)}: apt-get install iproute2 openssh-server openssh-client"
    if any(Path(folder).resolve().is_relative_to("/tmp") for folder in (sys.prefix, __file__)):
        return "hosts have a /tmp of their own, and this environment lies in the machine's"
    tried = subprocess.run([*_UNSHARE.split(), "ip", "link", "add", "switch", "type", "bridge"], capture_output=True)
    return "namespaces are not allowed here" if tried.returncode else None


@contextmanager
def lab(directory: Path, count: int) -> Iterator[Lab]:
    """Run some hosts, whose files lie in a directory.

    Raises:
        ServerError: a host did not start.
    """
    shared = directory / "shared"
    shared.mkdir(parents=True)
    names = {f"h{number}": f"10.77.0.{number}" for number in range(1, count + 1)}
    hosts = "".join(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **names}.items())
    for name, text in {"host.sh": _HOST, "hosts": hosts, "sshd_config": _SSHD, "ssh_config": _SSH}.items():
        (directory / name).write_text(text)
    _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key")])
    log = directory / "lab.log"
    words = [*_UNSHARE.split(), "sh", "-c", _SWITCH, "switch", str(directory), str(shared), str(count)]
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    with running(words, log, {"PATH": path}, directory) as outer:
        found: dict[str, Host] = {}

        def probe() -> None:
            (switch,) = psutil.Process(outer.pid).children()
            for parent, (name, address) in zip(switch.children(), names.items(), strict=True):
                (init,) = parent.children()
                found[name] = Host(name=name, address=address, init=init.pid, switch=switch.pid)
                _run([*_enter(init.pid), "ssh", name, "true"])

        wait_until_ready("a host", probe, {log: outer}, 60)
        yield Lab(hosts=list(found.values()), shared=shared)


def _enter(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", *_NAMESPACES]


def _run(words: Sequence[str]) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
