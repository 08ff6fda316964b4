"""One writer at a destination, to build, append, repair or clean: a file says who it is, kept fresh while it writes.

A holder on this machine that is no more is known at once, by its process; one elsewhere by its beat, which has stopped.
No clocks are compared between machines.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import DestinationError, RingfeedError
from .storage import Storage

__all__ = [
    "LEASE_NAME", "Holder", "Lease", "boot_id", "held_by", "hold", "is_held", "is_lease_draft", "is_mark",
    "read_holder",
]  # fmt: skip

LEASE_NAME = "_building.json"
_TAKEOVER_NAME = "_building.takeover-{token}.json"
_BEAT_SECONDS = 5.0
_SILENT_SECONDS = 30.0  # a holder elsewhere whose beat stands still for so long is gone: six beats


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who writes at a destination.

    Attributes:
        token: of this holding, and no other.
        host, boot, pid, started: the process: its machine, that machine's boot, and when the process started there.
        beat: grows as long as the process lives.
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
    released: bool = False
    plan: str = ""
    about: Mapping[str, str]

    def encode(self) -> bytes:
        """The bytes of the file."""
        return json.dumps(asdict(self), indent=1).encode()

    @property
    def task(self) -> str:
        """What it does there: ``build``, ``append``, ``repair`` or ``clean``."""
        return self.about.get("task", "build")

    @property
    def here(self) -> bool:
        """Whether it is, or was, a process of this machine since its last boot."""
        return (self.host, self.boot) == (socket.gethostname(), boot_id())

    @property
    def gone(self) -> bool:
        """Whether it is known to have ended."""
        return self.released or (self.here and self.started != _start_of(self.pid))


def _me(about: Mapping[str, str]) -> Holder:
    return Holder(
        token=secrets.token_hex(8),
        host=socket.gethostname(),
        boot=boot_id(),
        pid=os.getpid(),
        started=_start_of(os.getpid()),
        about=dict(about),
    )


def is_mark(name: str) -> bool:
    """Whether a file of a folder is one of these that say who writes there."""
    prefix, suffix = _TAKEOVER_NAME.split("{token}")
    return name == LEASE_NAME or (name.startswith(prefix) and name.endswith(suffix))


def is_lease_draft(name: str) -> bool:
    """Whether a file of a folder is what a builder leaves that was killed at its very first write."""
    return name.startswith(f".{LEASE_NAME}.") and name.endswith(".part")


def boot_id() -> str:
    """What process numbers are good for: a start of the machine, a container. Empty where the kernel is silent."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty if none of that number runs."""
    with suppress(OSError, IndexError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    return ""


def read_holder(storage: Storage, name: str = LEASE_NAME) -> Holder | None:
    """Who holds, or held, a destination; None if nobody does."""
    try:
        value = json.loads(storage.read(name))
        return Holder(**value)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # cut short, or of another version: known by its silence alone
        return Holder(token="unreadable", host="", boot="", pid=0, started="", about={})


def is_held(storage: Storage, holder: Holder, name: str = LEASE_NAME) -> bool:
    """Whether a holder lives; where only its beat can tell, this takes up to half a minute."""
    if holder.gone:
        return False
    if holder.here:
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
        self._me = me
        self.previous = previous
        self._lost = self._missing = False
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep_fresh, name="ringfeed-lease", daemon=True)

    def __enter__(self) -> Lease:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def tell_plan(self, fingerprint: str) -> None:
        """Write down what is being built."""
        self._write(plan=fingerprint)

    def check(self) -> None:
        """Refuse to go on once another holds the destination.

        Raises:
            DestinationError: it does.
        """
        seen = read_holder(self._storage)
        self._missing = seen is None
        self._lost = self._lost or seen is None or seen.token != self._me.token
        self.check_known()

    def check_known(self) -> None:
        """Refuse to go on once it is known that another holds the destination; asks nobody.

        Raises:
            DestinationError: it is.
        """
        if not self._lost:
            return
        where = self._storage.locate()
        if self._missing:
            raise DestinationError(
                f"{where} was removed or cleaned up while it was written to, for {LEASE_NAME} is gone; nothing more is "
                f"written; be rid of what is left with: shard-dataset clean {shlex.quote(where)}"
            )
        raise DestinationError(
            f"{where} was taken over by another process while this one stood still; nothing more is written"
        )

    def release(self, *, keep: bool) -> None:
        """Give it back: with no trace, or as one whose work is to be gone on with."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        with suppress(RingfeedError):
            self.check()
            if keep:
                self._write(released=True)
            else:
                self._storage.remove(LEASE_NAME)

    def _keep_fresh(self) -> None:
        while not self._stop.wait(_BEAT_SECONDS):
            with suppress(RingfeedError, OSError):  # the store is away for a moment; what builds will say so
                self.check()
                self._write(beat=self._me.beat + 1)
            if self._lost:
                return

    def _write(self, **changes: Any) -> None:
        with self._lock:
            self._me = replace(self._me, **changes)
            self._storage.write(LEASE_NAME, self._me.encode())


@contextmanager
def hold(storage: Storage, about: Mapping[str, str]) -> Iterator[Lease]:
    """Take a destination for one's own; the caller releases it.

    Raises:
        DestinationError: another process writes there.
        StorageError: the store refuses.
    """
    me = _me(about)
    previous = None
    try:
        storage.create(LEASE_NAME, me.encode())
    except FileExistsError:
        previous = _take_over(storage, me)
    with Lease(storage, _following(me, previous), previous) as lease:
        yield lease


def _following(me: Holder, previous: Holder | None) -> Holder:
    """A holder that has nothing to tell yet but what the one before it built."""
    return me if previous is None else replace(me, plan=previous.plan)


def _take_over(storage: Storage, me: Holder) -> Holder | None:
    """Put oneself in the place of a holder that is gone. Of several that try, one succeeds."""
    holder = read_holder(storage)
    if holder is None:  # it was given back meanwhile: whoever creates it now has it
        try:
            storage.create(LEASE_NAME, me.encode())
            return None
        except FileExistsError:
            return _take_over(storage, me)
    if is_held(storage, holder):
        raise DestinationError(held_by(storage, holder))
    name = _TAKEOVER_NAME.format(token=holder.token)
    try:
        storage.create(name, me.encode())
    except FileExistsError as error:
        rival = read_holder(storage, name)
        if rival is not None and is_held(storage, rival, name):
            raise DestinationError(held_by(storage, rival)) from error
        storage.remove(name)  # of one that was killed in the midst of this
        return _take_over(storage, me)
    try:
        seen = read_holder(storage)
        if seen is not None and seen.token != holder.token:
            raise DestinationError(f"another process is starting to write to {storage.locate()}; try again")
        if seen is not None:
            storage.write(LEASE_NAME, _following(me, holder).encode())
            return holder
    finally:
        storage.remove(name)
    return _take_over(storage, me)


def held_by(storage: Storage, holder: Holder) -> str:
    """What to tell who would write where another does."""
    where = f"process {holder.pid} on {holder.host}" if holder.pid else "another process"
    return f"another {holder.task} is writing to {storage.locate()} ({where}); wait for it, or stop it first"
