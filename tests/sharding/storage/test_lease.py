"""One writer at a destination, however the previous one ended."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ringfeed.sharding import DestinationError, StorageError
from ringfeed.sharding.destination.clean import clean
from ringfeed.sharding.storage import lease as module
from ringfeed.sharding.storage.atomic_files import draft_name
from ringfeed.sharding.storage.lease import LEASE_NAME, TAKEOVER_PREFIX, Holder, hold_lease, read_holder
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings
from tests.servers.proxy import Fault, Proxy, proxied
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

HOLD = """
import sys, time
from ringfeed.sharding.storage.lease import hold_lease
from ringfeed.sharding import Storage
with hold_lease(Storage(sys.argv[1]), {}):
    print("held", flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True)
class Remote:
    """A folder on S3, as it is, and through a proxy without faults at first."""

    near: Storage
    far: Storage
    proxy: Proxy

    def timed(self, **timings: float) -> tuple[Storage, Storage]:
        """Both with other timings."""
        return replace(self.near, timings=StoreTimings(**timings)), replace(self.far, timings=StoreTimings(**timings))


@pytest.fixture
def remote(s3_server: S3Server, s3_bucket: str) -> Iterator[Remote]:
    url = f"s3://{s3_bucket}/{uuid.uuid4().hex}"
    with proxied(s3_server.endpoint_url) as proxy:
        far = replace(s3_server, endpoint_url=proxy.url).storage_options
        yield Remote(Storage(url, s3_server.storage_options), Storage(url, far), proxy)


def beat_of(storage: Storage) -> int:
    holder = read_holder(storage)
    assert holder is not None
    return holder.beat


def edit(folder: Path, **changes: object) -> None:
    path = folder / LEASE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_living_holder_excludes_others_and_a_killed_one_does_not(store: Store) -> None:
    storage = Storage(store.url)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, store.url], env={**os.environ, **store.env}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        wanted = rf"another build is writing to .* \(process {holder.pid} on "
        with pytest.raises(DestinationError, match=wanted), hold_lease(storage, {}):
            pass
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with hold_lease(storage, {}) as lease:
            assert lease.previous is not None
            assert lease.previous.pid == holder.pid
            lease.release(keep=False)
        assert store.list() == []
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()


def test_one_of_many_concurrent_starts_wins(tmp_path: Path) -> None:
    def start(_: int) -> bool:
        try:
            with hold_lease(Storage(str(tmp_path)), {}):
                barrier.wait(60)
                return True
        except DestinationError:
            barrier.wait(60)
            return False

    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(start, range(8))) == 1


@pytest.mark.parametrize("beating", [True, False])
def test_a_holder_elsewhere_is_judged_by_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beating: bool
) -> None:
    timings = StoreTimings(silent_seconds=60 if beating else 1.0, beat_seconds=0.1 if beating else 60)
    storage = Storage(str(tmp_path), timings=timings)
    real = module.Holder.is_local
    with hold_lease(storage, {}) as lease:
        monkeypatch.setattr(module.Holder, "is_local", property(lambda self: False))
        if beating:
            with pytest.raises(DestinationError, match="another build is writing"), hold_lease(storage, {}):
                pass
            lease.check()
        else:
            with hold_lease(storage, {}) as second:
                second.check()
                with pytest.raises(
                    DestinationError, match="was taken over by another process while this one stood still"
                ):
                    lease.check()
        monkeypatch.setattr(module.Holder, "is_local", real)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(kind="reply", method="PUT", path=LEASE_NAME, times=10**6), "was taken over by another process"),
        (
            Fault(kind="stall", method="PUT", path=LEASE_NAME, seconds=3),
            "another process may have taken .* over: _building",
        ),
    ],
)
def test_a_late_heartbeat_does_not_overwrite_the_lease_of_a_new_holder(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, fault: Fault, told: str
) -> None:
    near, far = remote.timed(silent_seconds=1.0, beat_seconds=0.2)
    with hold_lease(far, {}) as first:
        monkeypatch.setattr(module.Holder, "is_local", property(lambda self: False))
        remote.proxy.begin(fault)
        while not remote.proxy.happened[fault]:
            time.sleep(0.05)
        while fault.kind == "stall" and first._thread.is_alive() and beat_of(near) == first._me.beat:
            time.sleep(0.05)  # the store has it by then, and only the reply is late
        unbeaten = replace(near, timings=replace(near.timings, beat_seconds=600))  # a late beat of it is no matter
        with hold_lease(unbeaten, {}) as second:
            first._thread.join(120)
            remote.proxy.begin()
            with pytest.raises(DestinationError, match=told):
                first.check_known()
            with pytest.raises(DestinationError, match=told):
                first.record_plan("abc")
            first.release(keep=True)
            second.check()


def test_a_heartbeat_that_succeeds_late_may_have_overwritten_another_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    timings = StoreTimings(beat_seconds=600)
    with hold_lease(Storage(str(tmp_path), timings=timings), {}) as lease:
        edit(tmp_path, beat=1)
        lease.check()
        now += timings.silent_seconds + 1
        lease.check()
        edit(tmp_path, beat=2)
        with pytest.raises(DestinationError, match=r"another process may have taken .* over: _building"):
            lease.check()


def test_an_outage_of_the_store_does_not_lose_the_lease(remote: Remote) -> None:
    # The takeover is long, because this machine may stand still over a write.
    near, far = remote.timed(silent_seconds=0.5, beat_seconds=0.1, takeover_seconds=60)
    fault = Fault(kind="reply", method="PUT", path=LEASE_NAME, times=10)
    with hold_lease(far, {}) as lease:
        remote.proxy.begin(fault)
        lease.record_plan("abc")
        while remote.proxy.happened[fault] < fault.times:
            time.sleep(0.1)
        lease.release(keep=True)
    holder = read_holder(near)
    assert holder is not None
    assert (holder.released, holder.plan) == (True, "abc")


def test_a_write_with_a_lost_reply_keeps_the_lease(remote: Remote) -> None:
    fault = Fault(kind="lose reply", method="PUT", path=LEASE_NAME)
    with hold_lease(remote.far, {}) as lease:
        remote.proxy.begin(fault)
        lease.record_plan("abc")
        assert remote.proxy.happened[fault] == 1
        lease.check()
        lease.release(keep=False)
    assert read_holder(remote.near) is None


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_lease_that_could_not_be_released_is_no_longer_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """By the process itself at once; by others on the machine when its beat has stood still for long."""
    storage = Storage(str(tmp_path))
    with hold_lease(storage, {}) as lease, monkeypatch.context() as away:
        away.setattr(Storage, "read", lambda *_: refuse())
        lease.release(keep=True)
    if elsewhere:
        parent = os.getppid()
        edit(tmp_path, pid=parent, started=module.process_start_ticks(parent))
        with pytest.raises(DestinationError, match=rf"another build is writing to .* \(process {parent} on "):
            take(storage)
        edit(tmp_path, at=time.monotonic() - module._LEFT_SECONDS - 1)
    assert take(storage) is not None


class KeepsMarks(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A store that lets everything be removed but a mark."""

    protocol = "keepsmarks"

    def rm_file(self, path: str) -> None:
        if path.endswith(LEASE_NAME):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        super().rm_file(path)


@pytest.mark.parametrize("task", ["build", "export"])
def test_clean_reports_a_lease_file_that_it_may_not_remove(task: str) -> None:
    fsspec.register_implementation("keepsmarks", KeepsMarks, clobber=True)
    target = Storage(f"keepsmarks://{task}")
    room = target if task == "build" else Storage("keepsmarks://.export.exporting")
    with hold_lease(room, {"task": task}) as lease:
        lease.release(keep=True)
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"cannot remove {room.url}/{LEASE_NAME}: permission denied"):
            clean(target)


def refuse() -> bytes:
    raise StorageError("the store is away")


def take(storage: Storage) -> Holder | None:
    """Who held it before."""
    with hold_lease(storage, {}) as lease:
        lease.release(keep=False)
        return lease.previous


@pytest.mark.parametrize("more", [{"region": "eu"}, {"token": 7, "pid": [], "beat": {}}, None])
def test_a_holder_of_another_version_is_judged_by_its_heartbeat(tmp_path: Path, more: dict[str, object] | None) -> None:
    storage = Storage(str(tmp_path), timings=StoreTimings(silent_seconds=60))
    path, ended = tmp_path / LEASE_NAME, threading.Event()
    mark = {"token": "other", "host": "elsewhere", "boot": "b", "pid": 1, "started": "1", "about": {}}

    def beat() -> None:
        number = 0
        while not ended.wait(0.1):
            number += 1
            whole = {**mark, "beat": number, "count": number, **(more or {})}
            storage.write(LEASE_NAME, json.dumps(whole).encode()[: None if more else -5])

    storage.write(LEASE_NAME, b"")
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(DestinationError, match="another build is writing"):
            take(storage)
    finally:
        ended.set()
        thread.join()
    assert path.exists()
    assert take(replace(storage, timings=StoreTimings(silent_seconds=1.0))) is not None


def test_a_released_lease_is_taken_over_without_waiting(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with hold_lease(storage, {"source": "x"}) as lease:
        lease.record_plan("abc")
        lease.release(keep=True)
    holder = read_holder(storage)
    assert holder is not None
    assert (holder.released, holder.plan) == (True, "abc")
    with hold_lease(storage, {}) as second:
        assert second.previous is not None
        assert second.previous.plan == "abc"


@pytest.mark.parametrize("name", [LEASE_NAME, f"{TAKEOVER_PREFIX}0123456789abcdef.json"])
def test_the_draft_of_a_process_that_was_killed_before_it_had_the_lease_is_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / draft_name(name)).write_bytes(b"{")
    with hold_lease(Storage(str(tmp_path)), {}) as lease:
        lease.release(keep=False)
    assert list(tmp_path.iterdir()) == []


def test_the_takeover_file_of_a_killed_process_is_removed(store: Store) -> None:
    storage = Storage(store.url)
    with hold_lease(storage, {}) as lease:
        lease.release(keep=True)
    storage.write(f"{TAKEOVER_PREFIX}0123456789abcdef.json", b"{}")  # from a holder before that one
    with hold_lease(storage, {}) as second:
        assert store.list() == [LEASE_NAME]
        second.release(keep=False)


def test_a_process_that_reuses_the_number_of_a_dead_holder_is_not_the_holder(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    with hold_lease(storage, {}):
        pass
    edit(tmp_path, started="12345")
    with hold_lease(storage, {}) as second:
        assert second.previous is not None


def test_an_unreadable_lease_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / LEASE_NAME).symlink_to("nowhere")
    with pytest.raises(DestinationError, match=f"cannot tell who writes to {tmp_path}: {LEASE_NAME} there"):
        take(Storage(str(tmp_path)))


def test_a_broken_link_is_no_lease_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for folder in ("link", "link/sub"):
        with pytest.raises(StorageError, match="a name in its path belongs to a file, or to a link that leads nowhere"):
            take(Storage(str(tmp_path / folder)))


def test_no_folder_remains_where_no_lease_file_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for folder in ("there", "new/sub"):
        with pytest.raises(StorageError, match="the disk is full"):
            take(Storage(str(tmp_path / folder)))
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]
