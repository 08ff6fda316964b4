"""Loading from a real S3 past a proxy that misbehaves, and from a real HDFS whose DataNode dies: every sample is right,
or the loader stops in bounded time, with a line that says where.
"""

import signal
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.fetch.shard_files import SourceReader
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding import CorruptionError, DatasetError, StorageError, open_dataset
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings
from tests.helpers.files import contents
from tests.helpers.reading import batches
from tests.servers.hdfs import hdfs
from tests.servers.proxy import Fault, Proxy
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

Make = Callable[..., str]
QUICK = RetryPolicy(attempts=20, base_seconds=0.02, cap_seconds=0.1)  # a busy machine may stand still for some
ALWAYS = 10**9
SHARDS = 20
VICTIM = "train-00013-of-00020.tfrecord"
BATCH = {"batch_size": 20, "streams": 2, "seed": 1}
SOON_SECONDS, STALL_SECONDS = (
    60,
    200,
)  # a busy machine may stand still for some of the former; the latter is not waited for


@pytest.fixture(scope="module")
def local(make_dataset: Make) -> str:
    return make_dataset(1000, shards=SHARDS)


@pytest.fixture(scope="module")
def expected(local: str) -> list[list[int]]:
    return batches(Loader(local, **BATCH))


@pytest.fixture(scope="module")
def s3(s3_server: S3Server, s3_bucket: str, local: str) -> Store:
    """The dataset, past the proxy."""
    url = f"s3://{s3_bucket}/{uuid.uuid4().hex}"
    store = Store(name="s3", url=url, env=s3_server.env, storage_options=s3_server.storage_options)
    copy_dataset(local, store)
    return store


@pytest.fixture
def storage(s3: Store, s3_server: S3Server, proxy: Proxy) -> Storage:
    """The dataset through the proxy, which has no faults yet; a reply may take a second."""
    proxy.begin()
    options = replace(s3_server, endpoint_url=proxy.url).storage_options
    return Storage(s3.url, {**options, "config_kwargs": {"read_timeout": 1}}, QUICK)


def fastest(storage: Storage) -> Storage:
    """The same, read by the fastest client there is, which knows fewer options than s3fs."""
    return replace(storage, options={k: v for k, v in storage.options.items() if k != "config_kwargs"})


def copy_dataset(local: str, store: Store) -> None:
    for path, data in contents(local).items():
        store.write_bytes(path, data)


def name(fault: Fault) -> str:
    return f"{fault.kind} x{fault.times} at {fault.at_bytes}"


PASSING = [
    Fault(kind="reply", method="GET", path="train-", first=5, times=3),
    Fault(kind="reply", method="GET", path=VICTIM, status=500, code="InternalError", times=3),
    Fault(kind="reset download", method="GET", path=r"tfrecord", at_bytes=1000, times=3),
    Fault(kind="cut download", method="GET", path=VICTIM, at_bytes=3000, times=2),
    Fault(kind="lose reply", method="GET", path=r"index", times=2),
    Fault(kind="stall", method="GET", path=VICTIM, seconds=STALL_SECONDS),
    Fault(kind="stall download", method="GET", path=VICTIM, at_bytes=2000, seconds=STALL_SECONDS),
    Fault(kind="damage download", method="GET", path=VICTIM, at_bytes=2000),
    Fault(kind="damage download", method="GET", path=r"index", at_bytes=200),
]


class TestS3:
    @pytest.mark.parametrize("fault", PASSING, ids=name)
    def test_transient_faults_change_no_sample(
        self, proxy: Proxy, storage: Storage, expected: list[list[int]], fault: Fault
    ) -> None:
        self.read_past(fault, storage, proxy, expected)
        if "stall" not in fault.kind:  # where the fastest client waits for its usual 15 s
            self.read_past(fault, fastest(storage), proxy, expected)

    def read_past(self, fault: Fault, storage: Storage, proxy: Proxy, expected: list[list[int]]) -> None:
        loader = Loader(storage, **BATCH)
        proxy.begin(fault)
        begun = time.monotonic()
        assert batches(loader) == expected
        assert time.monotonic() - begun < SOON_SECONDS
        assert proxy.happened[fault] == fault.times

    def test_a_cache_keeps_nothing_damaged_in_transit(
        self, proxy: Proxy, storage: Storage, expected: list[list[int]], tmp_path: Path
    ) -> None:
        fault = Fault(kind="damage download", method="GET", path="tfrecord", at_bytes=2000, first=3)
        loader = Loader(storage, cache=tmp_path / "cache", **BATCH)
        proxy.begin(fault)
        assert batches(loader) == expected
        assert proxy.happened[fault] == 1
        proxy.begin(Fault(kind="reply", method="GET", path="train-", times=ALWAYS))
        assert batches(loader) == expected

    @pytest.mark.parametrize("checked", ["when_supported", "when_required", None])  # by s3fs, against the store's CRC
    def test_wrong_bytes_stop_the_loader_and_are_located(
        self, proxy: Proxy, storage: Storage, checked: str | None
    ) -> None:
        config = {**storage.options["config_kwargs"], "response_checksum_validation": checked}
        strict = replace(storage, options={**storage.options, "config_kwargs": config})
        loader = Loader(strict if checked else fastest(storage), **BATCH)
        proxy.begin(Fault(kind="damage download", method="GET", path=VICTIM, at_bytes=2000, times=ALWAYS))
        place = rf"{storage.url}/{VICTIM} is damaged: .*\(record \d+ at offset \d+ .*repair {storage.url}"
        with pytest.raises(CorruptionError, match=place):
            batches(loader)

    def test_wrong_bytes_are_replaced_as_on_a_local_disk(self, proxy: Proxy, storage: Storage, local: str) -> None:
        before = set(threading.enumerate())
        loader = Loader(storage, on_bad_shard="quarantine", **BATCH)
        proxy.begin(Fault(kind="damage download", method="GET", path=VICTIM, at_bytes=2000, times=ALWAYS))
        assert batches(loader) == batches(Loader(local, quarantined=[VICTIM], **BATCH))
        assert loader.quarantined == (VICTIM,)
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("ringfeed-"):
                thread.join(SOON_SECONDS)  # which may still ask for the shard
        proxy.begin()
        told = Loader(storage, quarantined=loader.quarantined, **BATCH)
        refused = Fault(kind="reply", method="GET", path=VICTIM, status=400, code="InvalidRequest", times=ALWAYS)
        proxy.begin(refused)
        assert batches(told, start_step=9) == batches(loader)[9:]
        assert proxy.happened[refused] == 0

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            (Fault(kind="reply", method="GET", path=VICTIM, times=ALWAYS), "asks for fewer requests"),
            (Fault(kind="cut download", method="GET", path=VICTIM, at_bytes=99, times=ALWAYS), "Payload"),
            (Fault(kind="stall", method="GET", path=VICTIM, times=ALWAYS, seconds=900), "[Tt]imeout"),
            (Fault(kind="stall download", method="GET", path=VICTIM, times=ALWAYS, seconds=900), "[Tt]imeout"),
        ],
        ids=lambda value: name(value) if isinstance(value, Fault) else None,
    )
    def test_a_permanent_failure_is_reported_in_bounded_time(
        self, proxy: Proxy, storage: Storage, fault: Fault, reason: str
    ) -> None:
        brief = replace(storage, retries=replace(QUICK, attempts=2, busy_attempts=2))
        loader = Loader(brief, on_bad_shard="quarantine", **BATCH)  # which is for damage alone
        proxy.begin(fault)
        begun = time.monotonic()
        with pytest.raises(StorageError, match=rf"cannot read {storage.url}/{VICTIM}: .*{reason}.*2 attempts in"):
            batches(loader)
        assert time.monotonic() - begun < SOON_SECONDS
        assert loader.quarantined == ()

    def test_a_part_that_failed_is_not_waited_for_again_with_the_whole(self, proxy: Proxy, storage: Storage) -> None:
        dataset = replace(
            open_dataset(storage), storage=replace(storage, retries=replace(QUICK, attempts=4, busy_attempts=4))
        )
        shard = next(shard for shard in dataset.shards if shard.path == VICTIM)
        lengths = pa.ipc.open_file(storage.read(shard.index_path)).read_all()["length"].to_numpy()
        reader = SourceReader(dataset, Counters(), mapped=True, hedging=False)
        proxy.begin(Fault(kind="reply", method="GET", path=VICTIM, times=ALWAYS))
        with pytest.raises(StorageError, match=rf"{VICTIM}: .* \(4 attempts in"):
            reader.frames(shard, 0, lengths[:3])
        proxy.begin(Fault(kind="reply", method="GET", path=VICTIM, times=ALWAYS, status=403, code="AccessDenied"))
        assert reader.frames(shard, 0, lengths[:3]) is None
        proxy.begin()
        assert reader.frames(shard, 0, lengths[:3]) is not None

    def test_another_version_of_a_shard_is_distinguished_from_damage(
        self, s3: Store, storage: Storage, make_dataset: Make
    ) -> None:
        copy = replace(s3, url=f"{s3.url}/copy")
        copy_dataset(make_dataset(1000, shards=7), copy)
        chunks = Loader(replace(storage, url=copy.url), batch_size=5, streams=1, prefetch_bytes=0).chunks(0)
        next(chunks)
        copy_dataset(make_dataset(1000, shards=7, fixed=False), copy)
        with pytest.raises(DatasetError, match="rewritten while it was read"):
            list(chunks)

    def test_a_late_answer_is_requested_again(self, proxy: Proxy, storage: Storage, expected: list[list[int]]) -> None:
        late = StoreTimings(least_late_seconds=2.0)  # else what a busy machine is late with takes its share
        options = {**storage.options, "config_kwargs": {"read_timeout": 2 * STALL_SECONDS}}
        patient = replace(storage, options=options, timings=late)
        fault = Fault(kind="stall", method="GET", path=r"tfrecord", first=14, seconds=STALL_SECONDS)
        loader, alone = Loader(patient, **BATCH), Loader(patient, hedging=False, **BATCH)
        proxy.begin(fault)
        begun = time.monotonic()
        assert batches(loader) == expected
        assert time.monotonic() - begun < SOON_SECONDS
        assert proxy.happened[fault] == 1
        stats = loader.stats()
        assert stats["hedge_win"].items >= 1
        assert stats["hedge"].items <= 2 + 0.1 * SHARDS
        proxy.begin(replace(fault, seconds=2))
        begun = time.monotonic()
        assert batches(alone) == expected
        assert time.monotonic() - begun > 2
        assert alone.stats()["hedge"].items == 0


class TestHdfs:
    def test_an_epoch_outlasts_a_data_node_or_stops_in_bounded_time(
        self, tmp_path: Path, local: str, expected: list[list[int]]
    ) -> None:
        with hdfs(tmp_path) as processes:
            url = f"{processes.server.url}/data"
            Storage(url).write_all(contents(Path(local)))
            options = {"dfs.client.socket-timeout": "500"}

            brief = Loader(Storage(url, options, replace(QUICK, attempts=2, busy_attempts=2)), **BATCH)
            processes.signal_datanode(signal.SIGSTOP)
            fails_in_bounded_time(brief, url)
            processes.signal_datanode(signal.SIGCONT)
            assert once_it_answers(brief, start_step=30) == expected[30:]
            patient = RetryPolicy(attempts=1000, base_seconds=0.2, cap_seconds=0.5, budget_seconds=240)
            chunks = Loader(Storage(url, options, patient), prefetch_bytes=0, **BATCH).chunks(0)
            got = [next(chunks)]
            processes.kill_datanode()
            fails_in_bounded_time(brief, url)
            with ThreadPoolExecutor(1) as pool:
                rest = pool.submit(list, chunks)
                processes.start_datanode()
                got += rest.result(240)
            assert np.concatenate([np.array(c["id"]).reshape(steps, -1) for steps, c in got]).tolist() == expected


def once_it_answers(loader: Loader, start_step: int) -> list[list[int]]:
    deadline = time.monotonic() + 240
    while True:
        try:
            return batches(loader, start_step=start_step)
        except StorageError:
            assert time.monotonic() < deadline


def fails_in_bounded_time(loader: Loader, url: str) -> None:
    begun = time.monotonic()
    with pytest.raises(StorageError, match=rf"cannot read {url}/train-.*DataNodes .*do not answer \(2 attempts"):
        batches(loader)
    assert time.monotonic() - begun < 100  # the client's own limit is a minute for each attempt
