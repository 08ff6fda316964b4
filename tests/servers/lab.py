"""Hosts of one Linux machine for the tests: each has its own network, name, processes, /tmp and sshd, on one switch.

All of it is namespaces of one process, so no packet leaves them, and nothing remains when that process is killed. The
hosts share the kernel and all files but /tmp; they are no measure of a real network's latency.
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

CLOCKED = ("env", "LD_PRELOAD=/run/lab/clock.so")
"""Words before a command whose processes see the clock of their host, after `Lab.make_clocks`."""

_PATH = {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
_NAMESPACES = ("--net", "--uts", "--mount", "--pid")
_UNSHARE = f"unshare {' '.join(_NAMESPACES)} --fork --kill-child=KILL --mount-proc"
_BURST = ("burst", "64kb", "latency", "50ms")
_NO_SHAPE = ("tc", "qdisc", "del", "root", "dev")
_DISK_BYTES = 64 << 20

# Arguments: the lab's folder, the shared folder, the number of hosts.
_SWITCH = """
set -e
ip link set lo up
ip link add switch type bridge
ip link set switch up
for i in $(seq $3); do sh "$1/boot.sh" "$1" "$2" $i & done
wait
"""

# Arguments: the lab's folder, the shared folder, the host's number. Its link ends with it.
_BOOT = f"""
set -e
{_UNSHARE} sh "$1/host.sh" "$1" "$2" $3 &
while [ /proc/$!/ns/net -ef /proc/self/ns/net ]; do sleep 0.01; done
ip link add port$3 type veth peer name eth0 netns $!
ip link set port$3 master switch up
wait
"""

# Arguments: the lab's folder, the shared folder, the host's number. sshd is the init of the host: all end with it.
_HOST = f"""
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
mount -t tmpfs -o size={_DISK_BYTES} tmpfs /tmp
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


# The clock that most programs read: `Host.set_clock` writes by how many seconds it is ahead. TensorFlow's is left
# alone, whose waits end at a time of the kernel's clock.
_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none = 0;
static volatile const int64_t *ahead = &none;

__attribute__((constructor)) static void open_clock(void) {
    char name[64], path[128];
    gethostname(name, sizeof name);
    snprintf(path, sizeof path, "/run/lab/clock-%s", name);
    int file = open(path, O_RDONLY);
    void *page = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) ahead = page;
}

static int read_clock(clockid_t id, struct timespec *now, void *caller) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(id, now);
    Dl_info file;
    if (id == CLOCK_REALTIME && *ahead && !(dladdr(caller, &file) && strstr(file.dli_fname, "tensorflow")))
        now->tv_sec += *ahead;
    return status;
}

int clock_gettime(clockid_t id, struct timespec *now) { return read_clock(id, now, __builtin_return_address(0)); }

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    int status = read_clock(CLOCK_REALTIME, &precise, __builtin_return_address(0));
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return status;
}

time_t time(time_t *copy) {
    struct timespec precise;
    read_clock(CLOCK_REALTIME, &precise, __builtin_return_address(0));
    if (copy) *copy = precise.tv_sec;
    return precise.tv_sec;
}
"""


@dataclass(slots=True, kw_only=True)
class Host:
    """A host of the lab.

    Attributes:
        name: its host name.
        address: its IPv4 address.
        init: process id of its sshd on the machine.
        switch: process id of a process in the switch's namespaces.
        folder: that of the lab.
        boots: what has started it anew.
    """

    name: str
    address: str
    init: int
    switch: int
    folder: Path
    boots: list["subprocess.Popen[bytes]"] = field(default_factory=list)

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

    def unlimit(self) -> None:
        """Undo `limit` and `drop_sent`."""
        for words in ([*_enter(self.switch), *_NO_SHAPE, self._port], [*_enter(self.init), *_NO_SHAPE, "eth0"]):
            subprocess.run(words, capture_output=True)  # a link without a shape refuses

    def drop_sent(self) -> None:
        """Let what it sends vanish, while it goes on to receive; `unlimit` undoes it."""
        _run([*_enter(self.init), "tc", "qdisc", "replace", "dev", "eth0", "root", "bfifo", "limit", "1"])

    def pause(self) -> None:
        """Stop all of its processes; the kernel, which they share, goes on to acknowledge what arrives."""
        self._signal(signal.SIGSTOP)

    def proceed(self) -> None:
        """Let its processes go on after `pause`."""
        self._signal(signal.SIGCONT)

    def power_off(self) -> None:
        """End all of its processes, without a packet that says so."""
        self._in_switch("ip", "link", "del", self._port)
        os.kill(self.init, signal.SIGKILL)

    def power_on(self) -> None:
        """Start it again after `power_off`: with nothing in /tmp, and the right clock."""
        self.set_clock(0)
        number, shared = self.name.removeprefix("h"), self.folder / "shared"
        words = [*_enter(self.switch), "sh", str(self.folder / "boot.sh"), str(self.folder), str(shared), number]
        log = self.folder / "lab.log"
        with log.open("ab") as output:
            boot = subprocess.Popen(words, env=_PATH, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

        self.boots.append(boot)

        def probe() -> None:
            (inner,) = psutil.Process(boot.pid).children()
            (outer,) = [child for child in inner.children() if child.name() == "unshare"]
            (init,) = outer.children()
            self.init = init.pid
            self.answer()

        wait_until_ready(self.name, probe, {log: boot}, 60)

    def answer(self) -> None:
        """Log in once.

        Raises:
            ServerError: it does not let anyone in.
        """
        _run([*_enter(self.init), "ssh", self.name, "true"])

    def set_clock(self, seconds_ahead: int) -> None:
        """Set the clock that `CLOCKED` processes on it see."""
        path = self.folder / f"clock-{self.name}"
        path.touch()
        with path.open("r+b") as file:  # it is mapped: no moment without these bytes
            file.write(seconds_ahead.to_bytes(8, "little"))

    def fill_disk(self) -> None:
        """Write to its /tmp until no byte is left."""
        subprocess.run(self.command(["sh", "-c", "cat /dev/zero > /tmp/full"]), capture_output=True)

    def free_disk(self) -> None:
        """Undo `fill_disk`."""
        _run(self.command(["rm", "-f", "/tmp/full"]))

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

    def make_clocks(self) -> None:
        """Give each host a clock for its `CLOCKED` processes, which `Host.set_clock` sets."""
        source = self.shared.parent / "clock.c"
        source.write_text(_CLOCK)
        _run(["cc", "-shared", "-fPIC", "-O2", "-o", str(source.with_suffix(".so")), str(source), "-ldl"])
        for host in self.hosts:
            host.set_clock(0)


def missing() -> str | None:
    """Return why no lab can run here; None if one can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    tools = ("ip", "tc", "unshare", "nsenter", "ssh", "sshd")
    if absent := [name for name in tools if not shutil.which(name, path=_PATH["PATH"])]:
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
    texts = {"boot.sh": _BOOT, "host.sh": _HOST, "hosts": hosts, "sshd_config": _SSHD, "ssh_config": _SSH}
    for name, text in texts.items():
        (directory / name).write_text(text)
    _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key")])
    log = directory / "lab.log"
    words = [*_UNSHARE.split(), "sh", "-c", _SWITCH, "switch", str(directory), str(shared), str(count)]
    with running(words, log, _PATH, directory) as outer:
        found: dict[str, Host] = {}

        def probe() -> None:
            (switch,) = psutil.Process(outer.pid).children()
            for boot, (name, address) in zip(switch.children(), names.items(), strict=True):
                (parent,) = [child for child in boot.children() if child.name() == "unshare"]
                (init,) = parent.children()
                host = Host(name=name, address=address, init=init.pid, switch=switch.pid, folder=directory)
                host.answer()
                found[name] = host

        wait_until_ready("a host", probe, {log: outer}, 60)
        yield Lab(hosts=list(found.values()), shared=shared)
    for boot in [boot for host in found.values() for boot in host.boots]:
        boot.wait()


def _enter(pid: int) -> list[str]:
    return ["nsenter", f"--target={pid}", *_NAMESPACES]


def _run(words: Sequence[str]) -> str:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise ServerError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
