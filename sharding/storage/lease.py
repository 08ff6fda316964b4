"""One writer at a destination, to build, append, repair, clean or export: a file says who it is, kept fresh meanwhile.

A holder on this machine that is no more is known at once, by its process; one elsewhere by its beat, which has stopped.
No clocks are compared between machines.

A beat that comes late may come when another has taken over, and cover its mark. So each is one attempt, made once it is
known that the mark is still the own; and who cannot tell whether it covered another's gives up.
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

from ..errors import DestinationError, RingfeedError, StorageError
from .atomic_files import draft_target
from .retry import RetryPolicy
from .storage import Storage

__all__ = [
    "LEASE_NAME",
    "TAKEOVER_PREFIX",
    "Holder",
    "Lease",
    "boot_id",
    "describe_holder",
    "describe_loss",
    "hold_lease",
    "is_held",
    "is_lease_draft",
    "is_lease_file",
    "process_start_ticks",
    "read_holder",
]  # fmt: skip

LEASE_NAME = "_building.json"
TAKEOVER_PREFIX = "_building.takeover-"  # a token and .json follow
_BEAT_SECONDS = 5.0
_SILENT_SECONDS = 30.0  # a holder elsewhere whose beat stands still for so long is gone: six beats
_LEFT_SECONDS = 300.0  # and one here, whose process lives on, as a notebook's does that could not give it back
_TAKEOVER_SECONDS = 2.0  # which one needs at least to look at the destination that it took over
_TAKEOVERS = 10  # attempts, each of which fails for what others did meanwhile, or left


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who writes at a destination.

    Attributes:
        token: of this holding, and no other.
        host, boot, pid, started: the process: its machine, that machine's boot, and when the process started there.
        beat: grows as long as the process lives.
        at: when that was, in seconds of its machine's clock; 0: it does not say.
        released: it ended in good order, and left work to be gone on with.
        plan: fingerprint of what it builds; until that is known, of what the holder before it built, or empty.
        about: for whoever finds the file.
    """

    token: str
    host: str
    boot: str
    pid: int
    started: str
    beat: int = 0
    at: float = 0.0
    released: bool = False
    plan: str = ""
    about: Mapping[str, str]

    def encode(self) -> bytes:
        """The bytes of the file."""
        return json.dumps(asdict(self), indent=1).encode()

    @property
    def task(self) -> str:
        """What it does there: ``build``, ``append``, ``repair``, ``clean`` or ``export``."""
        return self.about.get("task", "build")

    @property
    def unfinished_task(self) -> str:
        """What was begun there and has not ended: its task; of one that cleans, that of the one it cleans up after."""
        return self.about.get("after", self.task)

    @property
    def is_local(self) -> bool:
        """Whether it is, or was, a process of this machine since its last boot."""
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
        """The inverse of `encode`; of a file that was cut short, or is of another version, what can be told."""
        unknown: dict[str, Any] = {"token": f"unreadable-{xxhash.xxh3_64_hexdigest(data)}", "host": "", "boot": ""}
        unknown |= {"pid": 0, "started": "", "about": {}}
        try:
            value = json.loads(data)
            known = {field.name: value[field.name] for field in fields(cls) if field.name in value}
            return cls(**{**unknown, **known, "pid": int(known["pid"]), "at": float(known.get("at", 0))})
        except (ValueError, TypeError, KeyError):
            return cls(**unknown)


_held_here: set[str] = set()  # tokens of this process


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


def is_lease_file(name: str) -> bool:
    """Whether a file of a folder is one of these that say who writes there."""
    return name == LEASE_NAME or (name.startswith(TAKEOVER_PREFIX) and name.endswith(".json"))


def is_lease_draft(name: str) -> bool:
    """Whether a file of a folder is what one leaves that was killed as it wrote one of these marks."""
    return is_lease_file(draft_target(name))


def boot_id() -> str:
    """What process numbers are good for: a start of the machine, a container. Empty where the kernel is silent."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def process_start_ticks(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty if none of that number runs."""
    with suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    return ""


def read_holder(storage: Storage, name: str = LEASE_NAME) -> Holder | None:
    """Who holds, or held, a destination; None if nobody does."""
    try:
        return Holder.decode(storage.read(name))
    except FileNotFoundError:
        return None


def is_held(storage: Storage, holder: Holder, name: str = LEASE_NAME) -> bool:
    """Whether a holder lives; where only its beat can tell, this takes up to half a minute."""
    if holder.has_ended:
        return False
    if holder.is_local:
        return True
    deadline = time.monotonic() + _SILENT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(1.0, _SILENT_SECONDS / 10))
        seen = read_holder(storage, name)
        if seen is None or seen.released:
            return False
        if (seen.token, seen.beat) != (holder.token, holder.beat):
            return True
    return False


class Lease:
    """The right to write at a destination, kept fresh in the background; use as a context manager.

    Attributes:
        previous: who held it before and left without tidying up, or None.
    """

    def __init__(self, storage: Storage, me: Holder, previous: Holder | None) -> None:
        self._storage = storage
        self._once = replace(storage, retries=RetryPolicy(attempts=1))
        self._me = me  # as the mark is known to say
        self._fresh = time.monotonic()  # when it was begun to be written
        self.previous = previous
        self._lost = ""  # or why
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
        """Of this holding, and no other."""
        return self._me.token

    def record_plan(self, fingerprint: str) -> None:
        """Write down what is being built.

        Raises:
            DestinationError: another holds the destination.
            StorageError: the store refuses.
        """
        self._storage.run("write", LEASE_NAME, lambda: self._write(plan=fingerprint))

    def check(self) -> None:
        """Refuse to go on once another holds the destination.

        Raises:
            DestinationError: it does, or may.
            StorageError: the store refuses.
        """
        self._look(self._storage)

    def check_once(self) -> None:
        """`check`, at one attempt."""
        self._look(self._once)

    def guard(self) -> None:
        """`check`, where the mark was not renewed for some seconds: nobody takes over before.

        Raises:
            DestinationError: as there.
            StorageError: as there.
        """
        self.check_known()
        if time.monotonic() - self._fresh > _SILENT_SECONDS / 3:
            self.check()

    def check_known(self) -> None:
        """Refuse to go on once it is known that another holds the destination; asks nobody.

        Raises:
            DestinationError: it is.
        """
        if self._lost:
            raise DestinationError(self._lost)

    def release(self, *, keep: bool) -> RingfeedError | None:
        """Give it back: with no trace, or as one whose work is to be gone on with; or return what was in the way."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        try:
            if keep:
                self._storage.run("write", LEASE_NAME, lambda: self._write(released=True))
            else:
                self._storage.run("remove", LEASE_NAME, self._remove)
        except RingfeedError as error:
            return error
        finally:
            _held_here.discard(self._me.token)
        return None

    def _keep_fresh(self) -> None:
        while not self._stop.wait(_BEAT_SECONDS):
            with suppress(RingfeedError, OSError):  # the store is away for a moment; what builds will say so
                self._write(beat=self._me.beat + 1)
            if self._lost:
                return

    def _look(self, storage: Storage) -> None:
        """See whose the mark is."""
        with self._lock:
            seen = read_holder(storage)
            self._lost = self._lost or describe_loss(self._storage, seen, self.token)
            if seen is not None and not self._lost and seen != self._me:  # a write that seemed to fail came to pass
                self._doubt()
                self._me = seen
            self.check_known()

    def _write(self, **changes: Any) -> None:
        """Write the mark, at one attempt, where it is known to be the own."""
        with self._lock:
            self._look(self._once)
            begun = time.monotonic()
            me = replace(self._me, at=begun, **changes)
            self._once.write(LEASE_NAME, me.encode())
            if time.monotonic() - begun > _TAKEOVER_SECONDS:
                self._doubt()
            self._me, self._fresh = me, begun
            self.check_known()

    def _remove(self) -> None:
        with self._lock:
            self._look(self._once)
            self._once.remove(LEASE_NAME)

    def _doubt(self) -> None:
        """Give up if another may have taken over, and its mark was covered."""
        if (silent := time.monotonic() - self._fresh) > _SILENT_SECONDS:
            self._lost = (
                f"another process may have taken {self._storage.locate()} over, for {LEASE_NAME} there could not be "
                f"renewed for {silent:.0f} s; nothing more is written; start the same command again"
            )


def describe_loss(storage: Storage, seen: Holder | None, token: str) -> str:
    """What to tell a holder of a token, if the mark that is seen is not its own; empty if it is."""
    where = storage.locate()
    if seen is None:
        return (
            f"{where} was removed or cleaned up while it was written to, for {LEASE_NAME} is gone; nothing more is "
            f"written; be rid of what is left with: shard-dataset clean {shlex.quote(where)}"
        )
    if seen.token != token:
        return f"{where} was taken over by another process while this one stood still; nothing more is written"
    return ""


@contextmanager
def hold_lease(storage: Storage, about: Mapping[str, str]) -> Iterator[Lease]:
    """Take a destination for one's own; the caller releases it.

    Raises:
        DestinationError: another process writes there.
        StorageError: the store refuses.
    """
    me = _me(about)
    previous = None
    absent = storage.absent_folders()
    _held_here.add(me.token)
    try:
        try:
            storage.create(LEASE_NAME, me.encode())
        except FileExistsError:
            previous = _take_over(storage, me)
        except StorageError:
            with suppress(RingfeedError):  # it was made for the mark, which nobody may ever write
                storage.remove_folders(absent)
            raise
        with Lease(storage, _following(me, previous), previous) as lease:
            if previous is not None:
                _remove_takeovers(storage, lease)
            yield lease
    finally:
        _held_here.discard(me.token)


def _following(me: Holder, previous: Holder | None) -> Holder:
    """A holder that has nothing to tell yet but what the one before it built."""
    return me if previous is None else replace(me, plan=previous.plan)


def _take_over(storage: Storage, me: Holder) -> Holder | None:
    """Put oneself in the place of a holder that is gone. Of several that try, one succeeds."""
    for _ in range(_TAKEOVERS):
        holder = read_holder(storage)
        if holder is None:  # it was given back meanwhile: whoever creates it now has it
            with suppress(FileExistsError):
                storage.create(LEASE_NAME, me.encode())
                return None
            continue
        if is_held(storage, holder):
            raise DestinationError(describe_holder(storage, holder))
        name = f"{TAKEOVER_PREFIX}{holder.token}.json"
        try:
            storage.create(name, me.encode())
        except FileExistsError as error:
            rival = read_holder(storage, name)
            if rival is not None and is_held(storage, rival, name):
                raise DestinationError(describe_holder(storage, rival)) from error
            storage.remove(name)  # of one that was killed in the midst of this
            continue
        try:
            if storage.run("write", LEASE_NAME, partial(_replace, storage, holder, _following(me, holder))):
                return holder
        finally:
            storage.remove(name)
    raise DestinationError(
        f"cannot tell who writes to {storage.locate()}: {LEASE_NAME} there comes and goes, or is a link that leads "
        "nowhere; see what it is, and try again"
    )


def _remove_takeovers(storage: Storage, lease: Lease) -> None:
    """Remove the marks of those who were killed when they had just taken over from a holder before this one."""
    with suppress(RingfeedError):  # they are in nobody's way
        for name in storage.list():
            if is_lease_file(name) and name != LEASE_NAME:
                lease.guard()
                storage.remove(name)


def _replace(storage: Storage, holder: Holder, me: Holder) -> bool:
    """Write one's mark over that of a holder, at one attempt, if that is still there."""
    once = replace(storage, retries=RetryPolicy(attempts=1))
    seen = read_holder(once)
    if seen is None:
        return False
    if seen.token not in (holder.token, me.token):  # the own, where a reply was lost
        raise DestinationError(f"another process is starting to write to {storage.locate()}; try again")
    once.write(LEASE_NAME, me.encode())
    return True


def describe_holder(storage: Storage, holder: Holder) -> str:
    """What to tell who would write where another does."""
    where = f"process {holder.pid} on {holder.host}" if holder.pid else "another process"
    return f"another {holder.task} is writing to {storage.locate()} ({where}); wait for it, or stop it first"
