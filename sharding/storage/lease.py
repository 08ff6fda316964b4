"""A lease admits one writer to a destination: a file that names the holder, kept fresh by a heartbeat.

A holder on this machine is alive if its process is; one elsewhere is dead if its heartbeat has stopped. Clocks of
different machines are never compared.

A late heartbeat may overwrite the lease file of a process that has taken over. So each is a single attempt, made after
a look at the file, and a holder that cannot rule out that it overwrote another's lease gives up.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import xxhash

from ringfeed.sharding.errors import DestinationError, RingfeedError, StorageError

from .atomic_files import draft_target, remove_dead_drafts
from .retry import RetryPolicy
from .storage import Storage

LEASE_NAME = "_building.json"  # a build's; other tasks name theirs otherwise
TAKEOVER_PREFIX = "_building.takeover-"  # a token and .json follow
_LEFT_SECONDS = 300.0  # a holder here that was silent so long has ended: a notebook that failed to release it
_TAKEOVERS = 10  # attempts; each may fail because of what others do meanwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The content of a lease file: who writes at a destination."""

    token: str  # unique id of the lease
    # `host`, `boot`, `pid`, `started`: the process, by its machine, the machine's boot, its number and its start
    host: str
    boot: str
    pid: int
    started: str
    beat: int = 0  # number of heartbeats
    at: float = 0.0  # time of the last heartbeat, in seconds of the machine's monotonic clock; 0 if unknown
    released: bool = False  # whether the holder ended properly and left work to resume
    plan: str = ""  # fingerprint of what it builds; until that is known, that of the previous holder, or empty
    about: Mapping[str, str]  # description for readers of the file: task, source, spill folder

    def encode(self) -> bytes:
        """The bytes of the file."""
        return json.dumps(asdict(self), indent=1).encode()

    @property
    def task(self) -> str:
        """Its task: ``build``, ``append``, ``repair``, ``clean``, ``export``, ``predict``, ``run`` or ``write``."""
        return self.about.get("task", "build")

    @property
    def unfinished_task(self) -> str:
        """The task that has not ended at the destination: its own, or for a clean the one that it cleans up after."""
        return self.about.get("after", self.task)

    @property
    def is_local(self) -> bool:
        """Whether it is a process of this machine since the last boot, alive or dead."""
        return (self.host, self.boot) == (socket.gethostname(), boot_id())

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        if self.released or not self.is_local:
            return self.released
        if self.pid == os.getpid():
            return self.token not in _held_here
        left = self.at and time.monotonic() - self.at > _LEFT_SECONDS
        return bool(left) or self.started != process_start_ticks(self.pid)

    @classmethod
    def decode(cls, data: bytes) -> Holder:
        """The inverse of `encode`; of a truncated file, or one of another version, whatever can be read."""
        unknown: dict[str, Any] = {"token": f"unreadable-{xxhash.xxh3_64_hexdigest(data)}", "host": "", "boot": ""}
        unknown |= {"pid": 0, "started": "", "about": {}}
        try:
            value = json.loads(data)
            known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
            return cls(**{**unknown, **known, "pid": int(known["pid"]), "at": float(known.get("at", 0))})
        except (ValueError, TypeError, KeyError):
            return cls(**unknown)


_held_here: set[str] = set()  # tokens of the leases that this process holds


def _me(about: Mapping[str, str]) -> Holder:
    return Holder(
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        boot=boot_id(),
        pid=os.getpid(),
        started=process_start_ticks(os.getpid()),
        at=time.monotonic(),
        about=dict(about),
    )


def is_lease_file(name: str, lease: str = LEASE_NAME) -> bool:
    """Whether a file is named as a lease or a takeover is."""
    return name == lease or (name.startswith(_takeover_prefix(lease)) and name.endswith(".json"))


def is_lease_draft(name: str, lease: str = LEASE_NAME) -> bool:
    """Whether a file is named as an unfinished lease file is, whose writer was killed."""
    return is_lease_file(draft_target(name), lease)


def _takeover_prefix(lease: str) -> str:
    """Return what the names of the takeover files of a lease begin with.

    >>> _takeover_prefix(LEASE_NAME) == TAKEOVER_PREFIX
    True
    """
    return f"{lease.removesuffix('.json')}.takeover-"


def boot_id() -> str:
    """Identify the scope of process numbers: a boot of the machine and a container; empty if unknown."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def process_start_ticks(pid: int) -> str:
    """When a process started, in ticks of the kernel; empty if no such process runs."""
    with suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    return ""


def read_holder(storage: Storage, name: str = LEASE_NAME) -> Holder | None:
    """Read who holds, or held, a destination; None without a lease file."""
    try:
        return Holder.decode(storage.read(name))
    except FileNotFoundError:
        return None


def is_held(storage: Storage, holder: Holder, name: str = LEASE_NAME) -> bool:
    """Whether a holder is alive; if only its heartbeat can tell, this takes up to half a minute."""
    if holder.has_ended:
        return False
    if holder.is_local:
        return True
    silent = storage.timings.silent_seconds
    deadline = time.monotonic() + silent
    while time.monotonic() < deadline:
        time.sleep(min(1.0, silent / 10))
        seen = read_holder(storage, name)
        if seen is None or seen.released:
            return False
        if (seen.token, seen.beat) != (holder.token, holder.beat):
            return True
    return False


class Lease:
    """The right to write at a destination, kept fresh in the background; a context manager.

    Attributes:
        previous: the former holder, if it left without cleaning up, or None.
    """

    def __init__(self, storage: Storage, me: Holder, previous: Holder | None, name: str = LEASE_NAME) -> None:
        self._storage, self._name, self._timings = storage, name, storage.timings
        self._once = replace(storage, retries=RetryPolicy(attempts=1))
        self._me = me  # the last known content of the lease file
        self._fresh = time.monotonic()  # start of its last write
        self.previous = previous
        self._lost = ""  # why the lease was lost
        self._stop = threading.Event()
        self._lock = threading.RLock()
        self._thread = threading.Thread(target=self._keep_fresh, name="ringfeed-lease", daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def token(self) -> str:
        """Unique id of the lease."""
        return self._me.token

    def record_plan(self, fingerprint: str) -> None:
        """Record what is built in the lease file; a DestinationError if another process holds the destination."""
        self._storage.run("write", self._name, lambda: self._write(plan=fingerprint))

    def check(self) -> None:
        """Look at the lease file; a DestinationError if another process holds the destination, or may hold it."""
        self._look(self._storage)

    def check_once(self) -> None:
        """`check` in one attempt."""
        self._look(self._once)

    def guard(self) -> None:
        """`check`, unless the lease was renewed a few seconds ago, before which nobody can take over."""
        self.check_known()
        if time.monotonic() - self._fresh > self._timings.silent_seconds / 3:
            self.check()

    def check_known(self) -> None:
        """Raise a DestinationError if the lease is known to be lost, without a request."""
        if self._lost:
            raise DestinationError(self._lost)

    def release(self, *, keep: bool) -> RingfeedError | None:
        """Release the lease; return the error if that fails.

        The drafts of lease files go, too, whose writers were killed before they held the lease.

        Args:
            keep: whether to keep the lease file, marked as released, for a build to resume; else it is removed.
        """
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._storage.local_path is not None:
            with suppress(OSError):  # they do no harm
                remove_dead_drafts(str(self._storage.local_path), partial(is_lease_file, lease=self._name))
        try:
            if keep:
                self._storage.run("write", self._name, lambda: self._write(released=True))
            else:
                self._storage.run("remove", self._name, self._remove)
        except RingfeedError as error:
            return error
        finally:
            _held_here.discard(self._me.token)
        return None

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self._timings.beat_seconds):
            with suppress(RingfeedError, OSError):  # the store is away for a moment; the build itself reports it
                self._write(beat=self._me.beat + 1)
            if self._lost:
                return

    def _look(self, storage: Storage) -> None:
        """Read the lease file, and raise if the lease is lost."""
        with self._lock:
            seen = read_holder(storage, self._name)
            self._lost = self._lost or describe_loss(self._storage, seen, self.token, self._name)
            if seen is not None and not self._lost and seen != self._me:  # a write that reported a failure succeeded
                self._doubt()
                self._me = seen
            self.check_known()

    def _write(self, **changes: Any) -> None:
        """Write the lease file in one attempt, after a look that it is still our own."""
        with self._lock:
            self._look(self._once)
            begun = time.monotonic()
            me = replace(self._me, at=begun, **changes)
            self._once.write(self._name, me.encode())
            if time.monotonic() - begun > self._timings.takeover_seconds:
                self._doubt()
            self._me, self._fresh = me, begun
            self.check_known()

    def _remove(self) -> None:
        with self._lock:
            self._look(self._once)
            self._once.remove(self._name)

    def _doubt(self) -> None:
        """Give up if another process may have taken over, whose lease file we have overwritten."""
        if (silent := time.monotonic() - self._fresh) > self._timings.silent_seconds:
            self._lost = (
                f"another process may have taken {self._storage.locate()} over: {self._name} there could not be "
                f"renewed for {silent:.0f} s; nothing more is written; start the same command again"
            )


def describe_loss(storage: Storage, seen: Holder | None, token: str, name: str = LEASE_NAME) -> str:
    """Explain to a holder why its lease is lost; empty if the lease file is its own.

    Args:
        seen: content of the lease file, or None if it is gone.
    """
    where = storage.locate()
    if seen is None:
        remedy = "start the same command again"
        if name == LEASE_NAME:
            remedy = f"remove leftovers with: shard-dataset clean {shlex.quote(where)}"
        return (
            f"{where} was removed or cleaned up while it was written to: {name} is gone; nothing more is written; "
            f"{remedy}"
        )
    if seen.token != token:
        return f"{where} was taken over by another process while this one stood still; nothing more is written"
    return ""


@contextmanager
def hold_lease(
    storage: Storage, about: Mapping[str, str], name: str = LEASE_NAME, silent_token: str = ""
) -> Iterator[Lease]:
    """Acquire the lease on a destination and keep it fresh for the body; the caller releases it.

    Args:
        silent_token: token of a holder whose heartbeat the caller has missed for half a minute.

    Raises:
        DestinationError: another process writes there.
    """
    me = _me(about)
    previous = None
    absent = storage.absent_folders()
    _held_here.add(me.token)
    try:
        try:
            storage.create(name, me.encode())
        except FileExistsError:
            previous = _take_over(storage, me, name, silent_token)
        except StorageError:
            with suppress(RingfeedError):  # the folder was created for the lease file, which could not be written
                storage.remove_folders(absent)
            raise
        with Lease(storage, _following(me, previous), previous, name) as lease:
            if previous is not None:
                _remove_takeovers(storage, lease, name)
            yield lease
    finally:
        _held_here.discard(me.token)


def _following(me: Holder, previous: Holder | None) -> Holder:
    """A new holder that keeps the plan of the previous one until it has its own."""
    return me if previous is None else replace(me, plan=previous.plan)


def _take_over(storage: Storage, me: Holder, name: str, silent_token: str) -> Holder | None:
    """Take the lease over from a dead holder. Of several processes that try, one succeeds."""
    for _ in range(_TAKEOVERS):
        holder = read_holder(storage, name)
        if holder is None:  # it was released meanwhile: whoever creates the file now holds it
            with suppress(FileExistsError):
                storage.create(name, me.encode())
                return None
            continue
        if holder.token != silent_token:
            check_not_held(storage, holder, name)
        takeover = f"{_takeover_prefix(name)}{holder.token}.json"
        try:
            storage.create(takeover, me.encode())
        except FileExistsError:
            rival = read_holder(storage, takeover)
            check_not_held(storage, rival, takeover)
            storage.remove(takeover)  # left by a process that was killed during its takeover
            continue
        try:
            if storage.run("write", name, partial(_replace, storage, holder, _following(me, holder), name)):
                return holder
        finally:
            storage.remove(takeover)
    raise DestinationError(
        f"cannot tell who writes to {storage.locate()}: {name} there comes and goes, or is a link that leads "
        "nowhere; look at it, and try again"
    )


def _remove_takeovers(storage: Storage, lease: Lease, own: str) -> None:
    """Remove the takeover files of processes that were killed during a takeover."""
    with suppress(RingfeedError):  # they do no harm
        for name in storage.list():
            if is_lease_file(name, own) and name != own:
                lease.guard()
                storage.remove(name)


def _replace(storage: Storage, holder: Holder, me: Holder, name: str) -> bool:
    """Overwrite the lease file of a dead holder in one attempt, if it is still there."""
    once = replace(storage, retries=RetryPolicy(attempts=1))
    seen = read_holder(once, name)
    if seen is None:
        return False
    if seen.token not in (holder.token, me.token):  # our own after a lost reply
        raise DestinationError(f"another process is starting to write to {storage.locate()}; try again")
    once.write(name, me.encode())
    return True


def check_not_held(storage: Storage, holder: Holder | None, name: str = LEASE_NAME) -> None:
    """Raise a DestinationError if the holder is alive; see `is_held`."""
    if holder is not None and is_held(storage, holder, name):
        where = f"process {holder.pid} on {holder.host}" if holder.pid else "another process"
        raise DestinationError(
            f"another {holder.task} is writing to {storage.locate()} ({where}); wait for it, or stop it first"
        )
