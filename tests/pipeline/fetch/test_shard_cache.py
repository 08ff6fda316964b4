"""The cache: it fetches once, keeps its limit, and recovers from damage, kills and full disks."""

import fcntl
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from ringfeed.pipeline import Cache, Loader, MemoryCache
from ringfeed.pipeline.fetch import disk_cache, shard_cache
from ringfeed.pipeline.fetch.disk_cache import STATE_NAME, CacheFolder, CacheKey
from ringfeed.pipeline.fetch.shard_cache import write_pieces
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding import ConfigError, CorruptionError, StorageError
from ringfeed.sharding.common.checksums import checksum
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.files import contents
from tests.servers.proxy import Fault, Proxy
from tests.servers.seaweedfs import S3Server

Make = Callable[..., str]
KIB = 1024
SHARDS = 7
EVERY_READ = Fault(kind="stall", method="GET", path=r"train-", times=10**9, seconds=0.02)


def content(number: int, size: int = 40 * KIB) -> bytes:
    return bytes([number % 251]) * size


def key_of(data: bytes, name: str = "x", dataset: str = "s3://b/d") -> CacheKey:
    return CacheKey(dataset=dataset, path=name, size=len(data), checksum=checksum(data))


def fetch_from(cache: Cache | MemoryCache, data: bytes, counters: Counters | None = None) -> tuple[pa.Buffer, bool]:
    """What the cache hands out for some content, and whether it was fetched for it."""
    fetched: list[bool] = []

    def fetch() -> pa.Buffer:
        fetched.append(True)
        return pa.py_buffer(data)

    got = cache.get(key_of(data), fetch, counters or Counters())
    assert got.to_pybytes() == data
    return got, bool(fetched)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the cache has logged: others may still have threads that try again what they were reading."""
    return [record.message for record in caplog.records if record.name == "ringfeed.pipeline.fetch.shard_cache"]


def on_disk(folder: Path) -> int:
    """Bytes of all files, in use or not, by blocks."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def on_disk_at_once(folder: Path) -> int:
    """`on_disk` while others use it: nobody makes room between the looks at two files; a renamed one counts once."""
    blocks = {}
    with (folder / STATE_NAME).open() as state:
        fcntl.flock(state, fcntl.LOCK_EX)
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                blocks[status.st_ino] = status.st_blocks * 512 if stat.S_ISREG(status.st_mode) else 0
    return sum(blocks.values())


def debris(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


def entry_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*@*") if path.is_file())


def ids(loader: Loader, epoch: int = 0) -> list[int]:
    return np.concatenate([np.array(columns["id"]) for _, columns in loader.chunks(epoch)]).tolist()  # a copy


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def remote(
    make_dataset: Make, s3_server: S3Server, s3_bucket: str, s3_env: dict[str, str], proxy: Proxy, tmp_path: Path
) -> Storage:
    """A dataset on the real S3, seen through the proxy."""
    proxy.begin()
    local = Path(make_dataset(1000, shards=SHARDS))
    storage = Storage(f"s3://{s3_bucket}/{tmp_path.name}", replace(s3_server, endpoint_url=proxy.url).storage_options)
    for path, data in contents(local).items():
        storage.write(path, data)
    return storage


class TestLoading:
    def test_batches_are_the_same_with_any_cache_and_a_second_epoch_reads_no_source(
        self, make_dataset: Make, tmp_path: Path
    ) -> None:
        url = make_dataset(1000, shards=SHARDS)
        expected = [ids(Loader(url, batch_size=60), epoch) for epoch in range(2)]
        for cache in ("memory", tmp_path / "a", str(tmp_path / "b"), Cache(tmp_path / "c", 200 * KIB)):
            loader = Loader(url, batch_size=60, cache=cache)
            assert ids(loader) == expected[0]
            before = loader.stats()["fetch"].items
            assert ids(loader, 1) == expected[1]
            stats = loader.stats()
            assert stats["fetch"].items == before == stats["fill"].items == 2 * SHARDS
            assert stats["fill"].bytes == stats["fetch"].bytes
            assert stats["cache"].items >= 2 * SHARDS

    def test_no_byte_comes_from_s3_once_the_cache_is_warm(self, remote: Storage, proxy: Proxy, tmp_path: Path) -> None:
        cold = Loader(remote, batch_size=60, cache=tmp_path / "cache")
        expected = ids(cold)
        proxy.begin(Fault(kind="reply", path=r"train-", times=10**9))
        warm = Loader(remote, batch_size=60, cache=tmp_path / "cache")
        assert ids(warm) == expected
        assert ids(cold, 1) == ids(warm, 1)
        assert not proxy.happened
        assert warm.stats()["fetch"].bytes == 0

    def test_processes_that_share_a_cache_fetch_each_file_once(
        self, remote: Storage, proxy: Proxy, tmp_path: Path
    ) -> None:
        expected = sum(ids(Loader(remote, batch_size=60)))
        script = """
            import sys
            from ringfeed.pipeline import Loader
            from ringfeed.sharding import Storage
            from ringfeed.sharding.storage.s3 import fast_reads
            url, key, secret, endpoint, folder = sys.argv[1:]
            storage = Storage(url, {"key": key, "secret": secret, "endpoint_url": endpoint})
            fast_reads._TIMEOUTS["read_timeout"] = "600s"  # so that a busy machine sends no second request
            loader = Loader(storage, batch_size=60, cache=folder, hedging=False)
            print(sum(columns["id"].sum() for _, columns in loader.chunks(0)), loader.stats()["fetch"].items)
        """
        proxy.begin(EVERY_READ)
        words = [remote.url, *map(str, remote.options.values()), str(tmp_path / "cache")]
        processes = [python(script, *words) for _ in range(3)]
        said = [finished(process).split() for process in processes]
        assert [int(total) for total, _ in said] == [expected] * 3
        assert sum(int(fetched) for _, fetched in said) == 2 * SHARDS
        assert proxy.happened[EVERY_READ] == 2 * SHARDS
        assert debris(tmp_path) == []

    @pytest.mark.parametrize(
        "fault",
        [
            Fault(kind="damage download", method="GET", path=r"train-00003.*tfrecord", at_bytes=700, times=1),
            Fault(kind="reset download", method="GET", path=r"train-", at_bytes=700, times=3),
            Fault(kind="cut download", method="GET", path=r"train-", at_bytes=700, times=3),
        ],
        ids=lambda fault: fault.kind,
    )
    def test_a_file_damaged_in_transit_is_not_stored(
        self, remote: Storage, proxy: Proxy, tmp_path: Path, make_dataset: Make, fault: Fault
    ) -> None:
        expected = ids(Loader(make_dataset(1000, shards=SHARDS), batch_size=60))
        proxy.begin(fault)
        loader = Loader(remote, batch_size=60, cache=tmp_path / "cache")
        assert ids(loader) == expected
        assert proxy.happened[fault] == fault.times
        assert loader.stats()["fetch"].items == loader.stats()["fill"].items == 2 * SHARDS
        for file in entry_files(tmp_path / "cache"):
            assert checksum(file.read_bytes()).replace(":", "-") == file.name.partition("@")[2].partition("-")[2]

    @pytest.mark.parametrize("known_before", [True, False])
    def test_a_disk_that_fills_up_is_reported_once(
        self,
        remote: Storage,
        small_disk: Path,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
        known_before: bool,
    ) -> None:
        if not known_before:  # as on a file system that has no call for it
            monkeypatch.setattr(disk_cache, "_take_blocks", lambda descriptor, size: None)
        expected = ids(Loader(remote, batch_size=60))
        loader = Loader(remote, batch_size=60, cache=Cache(small_disk / "cache", 1 << 30))
        (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 20 * KIB))
        assert ids(loader) == expected
        assert told(caplog) == [
            f"the cache {small_disk / 'cache'} stores no more files: its disk is full; reading from the source"
        ]
        assert debris(small_disk) == []

    def test_a_limit_below_one_window_holds_and_the_epoch_completes(
        self, make_dataset: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = make_dataset(1000, shards=SHARDS)
        limit = 24 * KIB  # a shard has 12 KiB
        loader = Loader(url, batch_size=60, cache=Cache(tmp_path / "cache", limit))
        most, ended = [0], threading.Event()

        def watch() -> None:
            while True:
                most[0] = max(most[0], on_disk_at_once(tmp_path / "cache"))
                if ended.wait(0.001):
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            assert sorted(ids(loader)) == sorted(ids(Loader(url, batch_size=60)))
        finally:
            ended.set()
            watcher.join()
        assert 0 < most[0] <= limit
        assert [record.message for record in caplog.records if "in use" in record.message] == [
            f"the cache {tmp_path / 'cache'} is full of files in use; raise its limit"
        ]

    @pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
    def test_what_was_damaged_in_the_cache_is_fetched_again(
        self, make_dataset: Make, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = make_dataset(1000, shards=SHARDS)
        expected = ids(Loader(url, batch_size=60, cache=tmp_path / "cache"))
        victim = entry_files(tmp_path / "cache")[3]
        whole = victim.read_bytes()
        damaged = {"flip": whole[:50] + bytes([whole[50] ^ 1]) + whole[51:], "truncate": whole[:-7], "empty": b""}
        victim.write_bytes(damaged[damage])
        loader = Loader(url, batch_size=60, cache=tmp_path / "cache")
        assert ids(loader) == expected
        assert loader.stats()["fetch"].items == 1
        assert victim.read_bytes() == whole
        assert ("was damaged in the cache" in caplog.text) == (damage == "flip")

    def test_damage_in_the_cache_and_in_the_source_stops_the_loader(self, make_dataset: Make, tmp_path: Path) -> None:
        url = shutil.copytree(make_dataset(1000, shards=SHARDS), tmp_path / "data")
        ids(Loader(str(url), batch_size=60, cache=tmp_path / "cache"))
        (url / "train-00002-of-00007.tfrecord").write_bytes(b"?")
        ids(Loader(str(url), batch_size=60, cache=tmp_path / "cache"))  # the copy is good
        [victim] = (tmp_path / "cache").rglob("*train-00002-of-00007.tfrecord@*")
        victim.write_bytes(b"?")
        with pytest.raises(CorruptionError, match=r"data/train-00002-of-00007.tfrecord is damaged"):
            ids(Loader(str(url), batch_size=60, cache=tmp_path / "cache"))
        assert debris(tmp_path) == []

    def test_a_dataset_that_was_built_anew_is_not_served_from_the_old_copies(
        self, make_dataset: Make, tmp_path: Path
    ) -> None:
        url = tmp_path / "data"
        for records in (1000, 300):
            shutil.rmtree(url, ignore_errors=True)
            shutil.copytree(make_dataset(records, shards=3), url)
            assert max(ids(Loader(str(url), batch_size=60, cache=tmp_path / "cache"))) in range(records - 60, records)

    def test_a_full_disk_is_reported_once_and_the_epoch_completes(
        self, make_dataset: Make, small_disk: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = make_dataset(1000, shards=SHARDS)
        loader = Loader(url, batch_size=60, cache=Cache(small_disk / "cache", 1 << 30))
        (small_disk / "ballast").write_bytes(bytes(os.statvfs(small_disk).f_bavail * 4096 - 48 * KIB))
        assert [ids(loader, epoch) for epoch in range(2)] == [ids(Loader(url, batch_size=60), e) for e in range(2)]
        assert loader.stats()["cache"].items > 0  # what was kept before is served
        assert told(caplog) == [
            f"the cache {small_disk / 'cache'} stores no more files: its disk is full; reading from the source"
        ]
        assert debris(small_disk) == []

    def test_a_disk_that_is_full_from_the_start_is_reported_once(
        self, make_dataset: Make, small_disk: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = make_dataset(1000, shards=SHARDS)
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "ballast").write_bytes(bytes(2 << 20))
        loader = Loader(url, batch_size=60, cache=small_disk / "cache")
        assert ids(loader) == ids(Loader(url, batch_size=60))
        [message] = told(caplog)
        assert "its disk is full" in message


@given(sizes=st.lists(st.integers(0, 40)), together=st.integers(1, 30))
def test_a_file_has_its_pieces_in_order_however_they_arrive(sizes: list[int], together: int) -> None:
    pieces = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    with tempfile.TemporaryFile() as file:
        arriving = shard_cache._PieceWriter(file.fileno(), together)
        for piece in pieces:
            arriving.write(memoryview(piece))
            assert os.fstat(file.fileno()).st_size % together == 0
        arriving.flush()
        file.seek(0)
        assert file.read() == b"".join(pieces)


class TestFolder:
    def test_the_blocks_of_a_file_are_taken_before_it_is_written(self, tmp_path: Path) -> None:
        folder = CacheFolder(tmp_path / "cache", 1 << 20)
        key = CacheKey(dataset="s3://b/d", path="x", size=40 * KIB, checksum="xxh3-128:0")
        claimed = folder.claim(key)
        assert claimed is not None
        assert folder.reserve(claimed, key.size) == (True, [])
        status = os.fstat(claimed)
        folder.abandon(key, claimed)
        assert status.st_size == 40 * KIB
        assert 512 * status.st_blocks >= status.st_size

    def test_the_least_recently_used_is_evicted(self, tmp_path: Path, counters: Counters) -> None:
        cache = Cache(tmp_path, 4 * 40 * KIB)  # three of them and the first file
        for number in (0, 1, 2, 0, 3):  # 1 has to go
            fetch_from(cache, content(number), counters)
        assert [fetch_from(cache, content(number))[1] for number in (0, 2, 3)] == [False] * 3
        assert fetch_from(cache, content(1))[1]
        evicted = counters.snapshot()["evict"]
        assert (evicted.items, evicted.bytes) == (1, 40 * KIB)

    def test_entries_in_use_stay_and_files_without_room_are_not_stored(self, tmp_path: Path) -> None:
        cache = Cache(tmp_path, 4 * 40 * KIB)
        held = [fetch_from(cache, content(number))[0] for number in range(3)]
        array = np.frombuffer(held.pop(0), np.uint8)[::7]  # a part of a part holds it, too
        assert fetch_from(cache, content(3))[1]
        assert fetch_from(cache, content(3))[1]
        assert not fetch_from(cache, content(0))[1]
        held.clear()
        assert fetch_from(cache, content(3))[1]
        assert not fetch_from(cache, content(3))[1]
        assert not fetch_from(cache, content(0))[1]
        assert set(array.tolist()) == {0}

    def test_a_limit_of_numpy_is_kept_as_one_of_python(self, tmp_path: Path) -> None:
        assert json.loads((Cache(tmp_path, np.int64(1 << 20)).path / STATE_NAME).read_text())["limit_bytes"] == 1 << 20  # type: ignore[arg-type]

    def test_the_limit_is_kept_with_the_folder_and_a_lower_one_holds_at_once(self, tmp_path: Path) -> None:
        for number in range(10):
            fetch_from(Cache(tmp_path, 1 << 20), content(number))
        assert CacheFolder(tmp_path).limit_bytes == 1 << 20
        assert len(entry_files(tmp_path)) == 10
        Cache(tmp_path, 130 * KIB)
        assert CacheFolder(tmp_path).limit_bytes == 130 * KIB
        assert on_disk(tmp_path) <= 130 * KIB
        assert [fetch_from(Cache(tmp_path), content(number))[1] for number in (9, 8, 7)] == [False] * 3

    def test_one_of_many_threads_fetches(self, tmp_path: Path) -> None:
        fetched, got = [], []

        def fetch() -> pa.Buffer:
            fetched.append(True)
            time.sleep(0.05)
            return pa.py_buffer(content(1))

        def use() -> None:
            got.append(Cache(tmp_path).get(key_of(content(1)), fetch, Counters()).to_pybytes() == content(1))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [True] * 8
        assert len(fetched) == 1

    def test_an_error_of_the_source_is_raised_and_leaves_nothing(self, tmp_path: Path) -> None:
        def fetch() -> pa.Buffer:
            raise StorageError("gone")

        cache = Cache(tmp_path, 1 << 20)
        with pytest.raises(StorageError, match="gone"):
            cache.get(key_of(content(1)), fetch, Counters())
        assert debris(tmp_path) == []
        assert fetch_from(cache, content(1))[1]
        assert not fetch_from(cache, content(1))[1]

    def test_listing_during_an_abandoned_fill_counts_correctly(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, key = CacheFolder(tmp_path, 1 << 20), key_of(content(1))
        claimed = folder.claim(key)
        assert claimed is not None
        assert folder.reserve(claimed, key.size) == (True, [])
        other = threading.Thread(target=CacheFolder, args=(tmp_path,))
        unlink = os.unlink

        def unlink_while_other_counts(path: str) -> None:
            unlink(path)
            other.start()
            other.join(0.5)

        monkeypatch.setattr(os, "unlink", unlink_while_other_counts)
        folder.abandon(key, claimed)
        other.join()
        with folder._locked() as state:
            assert state.held_bytes == on_disk(tmp_path)

    def test_a_waiting_process_takes_over_at_once_from_one_killed_while_filling(self, tmp_path: Path) -> None:
        script = """
            import os, signal, sys, time
            import pyarrow as pa
            from ringfeed.pipeline.fetch import shard_cache
            from ringfeed.pipeline.fetch.disk_cache import CacheKey
            from ringfeed.pipeline.metrics.stage_counters import Counters
            from ringfeed.sharding.common.checksums import checksum
            data = bytes([1]) * (40 * 1024)
            def write_pieces(descriptor, pieces):
                os.write(descriptor, memoryview(pieces[0])[:1000])
                print("half", flush=True)
                time.sleep(600)
            shard_cache.write_pieces = write_pieces
            key = CacheKey(dataset="s3://b/d", path="x", size=len(data), checksum=checksum(data))
            shard_cache.Cache(sys.argv[1]).get(key, lambda: pa.py_buffer(data), Counters())
        """
        with python(script, str(tmp_path)) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "half\n"
            killed: list[float] = []

            def kill() -> None:
                killed.append(time.monotonic())
                process.kill()

            killer = threading.Timer(0.2, kill)
            killer.start()
            _, fetched = fetch_from(Cache(tmp_path), content(1))
            assert fetched
            assert killed
            assert 0 < time.monotonic() - killed[0] < 300  # it sleeps for longer
            killer.join()
        assert debris(tmp_path) == []
        assert len(entry_files(tmp_path)) == 1

    def test_a_process_killed_at_any_moment_blocks_nobody(self, tmp_path: Path) -> None:
        """At every third of its lines, until it comes through."""
        script = """
            import os, signal, sys
            from pathlib import Path
            import pyarrow as pa
            from ringfeed.pipeline import Cache
            from ringfeed.pipeline.fetch.disk_cache import CacheKey, CacheFolder
            from ringfeed.pipeline.metrics.stage_counters import Counters
            from ringfeed.sharding.common.checksums import checksum
            LIMIT = 4 * 40 * 1024
            root = Path(sys.argv[1])
            def get(cache, number):
                data = bytes([number]) * (40 * 1024)
                key = CacheKey(dataset="s3://b/d", path="x", size=len(data), checksum=checksum(data))
                assert cache.get(key, lambda: pa.py_buffer(data), Counters()).to_pybytes() == data
            def die_at(moment):
                left = [moment]
                def trace(frame, event, argument):
                    if not frame.f_code.co_filename.endswith(("/shard_cache.py", "/disk_cache.py")):
                        return None
                    left[0] -= event == "line"
                    if not left[0]:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return trace
                sys.settrace(trace)
            moment, killed = 0, True
            while killed:
                moment += 3
                folder = root / str(moment)
                for number in range(3):
                    get(Cache(folder, LIMIT), number)
                user = Cache(folder)
                if not os.fork():
                    die_at(moment)
                    get(user, 3)  # evicts one
                    os._exit(0)
                killed = os.wait()[1] != 0
                get(user, 4 if moment % 2 else 3)  # another, or the same
                files = [path for path in folder.rglob("*") if path.is_file()]
                assert sum(path.stat().st_blocks * 512 for path in files) <= LIMIT, moment
                CacheFolder(folder)
                files = [path for path in folder.rglob("*") if path.is_file()]
                assert not [path for path in files if path.suffix == ".part"], moment
                with CacheFolder(folder)._locked() as state:
                    assert state.held_bytes == sum(path.stat().st_blocks * 512 for path in files), moment
            print(moment)
        """
        assert int(finished(python(script, str(tmp_path)))) > 100

    def test_a_copy_that_grew_takes_nothing_from_the_count_that_was_not_in_it(self, tmp_path: Path) -> None:
        cache = Cache(tmp_path, 128 * KIB)
        for number in (1, 2):
            fetch_from(cache, content(number))
        with entry_files(tmp_path)[0].open("ab") as grown:
            grown.truncate(400 * KIB)
        for number in range(1, 6):
            fetch_from(cache, content(number))
            assert on_disk(tmp_path) <= 128 * KIB  # what grew is a hole

    @pytest.mark.parametrize(
        "text", [b"\0" * 256, b"{", b"null", b"[]", b'{"version": 1}', b'{"limit_bytes": "", "held_bytes": 0}']
    )
    def test_a_damaged_state_file_is_rewritten(self, tmp_path: Path, text: bytes) -> None:
        cache = Cache(tmp_path, 1 << 20)
        fetch_from(cache, content(1))
        (tmp_path / STATE_NAME).write_bytes(text)
        assert not fetch_from(cache, content(1))[1]
        assert fetch_from(cache, content(2))[1]
        assert json.loads((tmp_path / STATE_NAME).read_text())["held_bytes"] == on_disk(tmp_path)
        (tmp_path / STATE_NAME).write_bytes(text)
        Cache(tmp_path, 1 << 19)
        assert json.loads((tmp_path / STATE_NAME).read_text())["limit_bytes"] == 1 << 19

    def test_a_folder_of_other_files_is_refused_and_left_alone(self, make_dataset: Make, tmp_path: Path) -> None:
        url = make_dataset(1000, shards=SHARDS)
        (tmp_path / "thesis.txt").write_text("mine")
        with pytest.raises(ConfigError, match="holds other files and is no cache"):
            Loader(url, batch_size=60, cache=tmp_path)
        with pytest.raises(ConfigError, match="holds other files and is no cache"):
            Loader(url, batch_size=60, cache=url)
        assert os.listdir(tmp_path) == ["thesis.txt"]

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda path: Cache("s3://bucket/cache"),
                "cache must be the path of a folder on a local disk, got s3://bucket/cache",
            ),
            (lambda path: Cache(path, 0), "limit_bytes of a cache must be at least 1, got 0"),
            (lambda path: MemoryCache(-1), "limit_bytes of a cache must be at least 1, got -1"),
            (lambda path: Cache(__file__), "cannot use .*cache.py as a cache: (File exists|Not a directory)"),
        ],
    )
    def test_unusable_caches_are_refused(self, tmp_path: Path, make: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            make(tmp_path)


class TestMemory:
    def test_the_least_recently_used_is_evicted(self, counters: Counters) -> None:
        cache = MemoryCache(3 * 40 * KIB)
        for number in (0, 1, 2, 0, 3):
            fetch_from(cache, content(number), counters)
        assert [fetch_from(cache, content(number))[1] for number in (0, 2, 3, 1)] == [False, False, False, True]
        evicted = counters.snapshot()["evict"]
        assert (evicted.items, evicted.bytes) == (1, 40 * KIB)

    def test_a_file_larger_than_the_limit_is_not_stored_and_evicts_nothing(self) -> None:
        cache = MemoryCache(50 * KIB)
        fetch_from(cache, content(1))
        assert fetch_from(cache, content(2, 60 * KIB))[1]
        assert fetch_from(cache, content(2, 60 * KIB))[1]
        assert not fetch_from(cache, content(1))[1]


class AnyUse(RuleBasedStateMachine):
    """Whatever several users of a folder do to it: what they get is right, and the limit holds."""

    LIMIT = 300 * KIB
    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(os.environ["PYTEST_CACHE_FOLDER"]) / str(time.monotonic_ns())
        self.caches = [Cache(self.folder, self.LIMIT) for _ in range(2)]
        self.buffers: list[tuple[pa.Buffer, bytes]] = []

    @rule(user=st.integers(0, 1), number=st.integers(0, 9), keep=st.booleans())
    def get(self, user: int, number: int, keep: bool) -> None:
        data = content(number, 1 + number * 9_000)
        got, _ = fetch_from(self.caches[user], data)
        if keep:
            self.buffers.append((got, data))

    @rule(which=st.integers(0, 5))
    def let_go(self, which: int) -> None:
        del self.buffers[which : which + 1]

    @rule()
    def start_anew(self) -> None:
        self.caches[0] = Cache(self.folder)

    @rule(which=st.integers(0, 20))
    def damage(self, which: int) -> None:
        files = [path for path in entry_files(self.folder) if path.suffix != ".part"]
        if which < len(files) and not self.buffers:  # a file that is mapped changes under its readers
            data = bytearray(files[which].read_bytes())
            data[len(data) // 2] ^= 1
            files[which].write_bytes(data)

    @rule()
    def leave_debris(self) -> None:
        part = self.folder / "s3%3A%2F%2Fb%2Fd" / "x@1-y.part"
        part.parent.mkdir(exist_ok=True)
        part.write_bytes(b"")

    @invariant()
    def the_limit_holds(self) -> None:
        assert on_disk(self.folder) <= self.LIMIT

    @invariant()
    def what_is_held_stays_as_it_was(self) -> None:
        assert all(got.to_pybytes() == data for got, data in self.buffers)

    def teardown(self) -> None:
        self.buffers.clear()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_CACHE_FOLDER", str(tmp_path_factory.mktemp("any-use")))
        yield


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ringfeed")


def python(script: str, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: "subprocess.Popen[str]") -> str:
    """What a process said, once it has ended well."""
    said, complaint = process.communicate(timeout=300)
    assert process.returncode == 0, complaint
    return said


def test_cached_copies_are_readable_by_their_user_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        fetch_from(Cache(tmp_path / "cache"), content(1))
    finally:
        os.umask(old)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*"))}
    assert set(modes.values()) == {0o700, 0o600}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())


def test_links_planted_in_a_cache_are_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, victim, folder = content(1), tmp_path / "victim", tmp_path / "cache"
    victim.mkdir()
    key = key_of(data)
    (victim / "thesis.txt").write_text("precious")
    Cache(folder)
    (folder / key.file).parent.symlink_to(victim)
    assert fetch_from(Cache(folder), data)[1]
    assert "is a link, which another user may have planted" in told(caplog)[-1]
    (folder / key.file).parent.unlink()
    (folder / key.file).parent.mkdir(mode=0o700)
    for planted in (folder / key.file, folder / f"{key.file}.part"):
        planted.symlink_to(victim / "thesis.txt")
        assert fetch_from(Cache(folder), data)[1]
        assert "is a link, which another user may have planted" in told(caplog)[-1]
        planted.unlink()
    (folder / STATE_NAME).unlink()
    (folder / STATE_NAME).symlink_to(victim / "thesis.txt")
    with pytest.raises(ConfigError, match=f"{STATE_NAME} is a link, which another user may have planted"):
        Cache(folder)
    assert {path.name: path.read_text() for path in victim.iterdir()} == {"thesis.txt": "precious"}


def test_a_fifo_planted_for_an_entry_does_not_block(tmp_path: Path) -> None:
    data, folder = content(1), tmp_path / "cache"
    fetch_from(Cache(folder), data)
    (folder / key_of(data).file).unlink()
    os.mkfifo(folder / key_of(data).file)
    assert fetch_from(Cache(folder), data)[1]
    assert not fetch_from(Cache(folder), data)[1]


def test_pieces_beyond_the_limit_of_one_system_call_arrive_in_order(tmp_path: Path) -> None:
    pieces = [bytes([i % 251]) * (i % 7) for i in range(3000)]
    with open(tmp_path / "a", "wb", buffering=0) as file:
        write_pieces(file.fileno(), [b"first", *pieces])
        write_pieces(file.fileno(), [b"last"])
        assert file.tell() == len(b"".join(pieces)) + 9
    assert (tmp_path / "a").read_bytes() == b"first" + b"".join(pieces) + b"last"
