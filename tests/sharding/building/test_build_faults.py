"""Faults of stores and networks: a build succeeds, or fails with a clear message and leaves nothing behind."""

import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import (
    BuildOptions,
    DatasetError,
    Progress,
    StorageError,
    build,
    open_dataset,
    read_records,
    verify,
)
from ringfeed.sharding.storage.fenced_storage import fence_for_workers
from ringfeed.sharding.storage.lease import LEASE_NAME, hold_lease
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.s3 import writes as s3_module
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings
from tests.helpers.commands import Cli
from tests.servers.hdfs import hdfs
from tests.servers.proxy import Fault, Proxy
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

QUICK = RetryPolicy(attempts=4, busy_attempts=4, base_seconds=0.02, cap_seconds=0.1)
BIG = bytes(range(256)) * 4096 * 2  # 2 MiB: more than one read of the proxy, and than what is hashed


@pytest.fixture
def s3(s3_server: S3Server, s3_bucket: str, s3_env: dict[str, str], proxy: Proxy) -> Store:
    """A folder of this test's own, seen past the proxy, which has no faults yet."""
    proxy.begin()
    url = f"s3://{s3_bucket}/{uuid.uuid4().hex}"
    return Store(name="s3", url=url, env=s3_env, storage_options=s3_server.storage_options)


@pytest.fixture
def storage(s3: Store, s3_server: S3Server, proxy: Proxy) -> Storage:
    """The same folder through the proxy."""
    return Storage(s3.url, replace(s3_server, endpoint_url=proxy.url).storage_options, QUICK)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 5 MiB, the smallest that S3 takes."""
    monkeypatch.setattr(s3_module, "_PART_BYTES", 5 << 20)


WRITE_FAULTS = [
    Fault(kind="reply", method="PUT", times=2),
    Fault(kind="reply", method="PUT", status=500, code="InternalError"),
    Fault(kind="reply", method="HEAD", status=503),
    Fault(kind="reset upload", method="PUT", at_bytes=1_000_000),
    Fault(kind="reset upload", method="PUT"),
    Fault(kind="damage upload", method="PUT", at_bytes=1_500_000),
    Fault(kind="lose reply", method="PUT", times=2),
    Fault(kind="stall", method="PUT", seconds=0.3),
]
READ_FAULTS = [
    Fault(kind="reply", method="GET", times=3),
    Fault(kind="reset download", method="GET", at_bytes=1_000_000),
    Fault(kind="reset download", method="GET", times=2),
    Fault(kind="cut download", method="GET", at_bytes=1_999_999),
    Fault(kind="lose reply", method="GET"),
    Fault(kind="stall", method="GET", seconds=0.3),
]


def name(fault: Fault) -> str:
    return f"{fault.method} {fault.kind} x{fault.times} at {fault.at_bytes}"


class TestStorage:
    @pytest.mark.parametrize("fault", WRITE_FAULTS, ids=name)
    def test_a_write_ends_right(self, proxy: Proxy, storage: Storage, s3: Store, fault: Fault) -> None:
        proxy.begin(fault)
        storage.write("a", BIG)
        assert proxy.happened[fault] == fault.times
        assert s3.list() == ["a"]
        assert s3.read_bytes("a") == BIG

    @pytest.mark.parametrize("fault", READ_FAULTS, ids=name)
    def test_a_read_ends_right(self, proxy: Proxy, storage: Storage, s3: Store, fault: Fault) -> None:
        s3.write_bytes("a", BIG)
        proxy.begin(fault)
        assert storage.read("a") == BIG
        assert proxy.happened[fault] == fault.times
        proxy.begin(fault)
        with storage.open_input("a") as file:
            assert file.read() == BIG
        assert proxy.happened[fault] == fault.times

    @pytest.mark.parametrize(
        "fault",
        [
            Fault(kind="lose reply", method="PUT"),
            Fault(kind="lose reply", method="PUT", times=2),
            Fault(kind="reply", method="PUT", times=2),
            Fault(kind="reset upload", method="PUT"),
            Fault(kind="reply", method="PUT", status=409, code="ConditionalRequestConflict"),
            Fault(kind="reply", method="HEAD", times=2),
        ],
        ids=name,
    )
    def test_an_exclusive_create_knows_its_own_file(
        self, proxy: Proxy, storage: Storage, s3: Store, fault: Fault
    ) -> None:
        proxy.begin(fault)
        storage.create("lock", b"same")
        assert proxy.happened[fault] == fault.times
        with pytest.raises(FileExistsError):
            storage.create("lock", b"same")
        assert s3.read_bytes("lock") == b"same"

    @pytest.mark.parametrize(
        "fault",
        [
            Fault(kind="reply", method="PUT", path="partNumber", times=3),
            Fault(kind="reset upload", method="PUT", path="partNumber=2", at_bytes=1_000_000),
            Fault(kind="lose reply", method="PUT", path="partNumber=1"),
            Fault(kind="reply", method="POST", path="uploads"),
            Fault(kind="lose reply", method="POST", path="uploadId"),
            Fault(kind="reply", method="HEAD"),
        ],
        ids=name,
    )
    @pytest.mark.usefixtures("small_parts")
    def test_an_upload_in_parts_ends_right(self, proxy: Proxy, storage: Storage, s3: Store, fault: Fault) -> None:
        s3.write_bytes("a", b"old")
        proxy.begin(fault)
        with storage.open_output("a") as file:
            for _ in range(6):  # 12 MiB: three parts
                file.write(BIG)
        assert proxy.happened[fault] == fault.times
        assert s3.read_bytes("a") == BIG * 6

    @pytest.mark.usefixtures("small_parts")
    def test_a_failed_upload_leaves_no_parts(
        self, proxy: Proxy, storage: Storage, s3: Store, s3_server: S3Server
    ) -> None:
        refused = Fault(kind="reply", method="PUT", path="partNumber=2", times=99)
        proxy.begin(refused)
        with pytest.raises(StorageError, match="asks for fewer requests"), storage.open_output("a") as file:
            file.write(BIG * 6)
        assert proxy.happened[refused] == QUICK.attempts
        assert s3.list() == []
        bucket, _, folder = s3.url.removeprefix("s3://").partition("/")
        fs = fsspec.filesystem("s3", **s3_server.storage_options)
        assert all(folder not in upload["Key"] for upload in fs.list_multipart_uploads(bucket))

    def test_a_mark_that_cannot_be_read_ends_a_write_at_once(
        self, proxy: Proxy, storage: Storage, s3: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each attempt at a write asks for the mark first, which is tried again itself."""
        # A heartbeat would ask for it, too.
        storage = replace(storage, timings=StoreTimings(check_seconds=0, beat_seconds=600))
        with hold_lease(storage, {}) as lease:
            refused = Fault(kind="reply", method="GET", path=LEASE_NAME, times=99)
            proxy.begin(refused)
            with pytest.raises(StorageError) as told:
                fence_for_workers(storage, storage, lease).write("a", b"x")
            assert proxy.happened[refused] == QUICK.attempts
            assert str(told.value).count("attempts in") == 1
            proxy.begin()
            lease.release(keep=False)
        assert s3.list() == []

    def test_many_writes_side_by_side_ask_for_the_mark_once(
        self, proxy: Proxy, storage: Storage, s3: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = replace(storage, timings=StoreTimings(check_seconds=600, beat_seconds=600))  # on a slow machine
        with hold_lease(storage, {}) as lease:
            asked = Fault(kind="stall", method="GET", path=LEASE_NAME, times=99)
            proxy.begin(asked)
            fence_for_workers(storage, storage, lease).write_all({f"{n:02d}": b"x" for n in range(16)})
            assert proxy.happened[asked] == 1
            proxy.begin()
            lease.release(keep=False)
        assert len(s3.list()) == 16

    def test_a_move_whose_replies_are_lost_ends_right(self, proxy: Proxy, storage: Storage, s3: Store) -> None:
        s3.write_bytes("a", b"1")
        lost = (Fault(kind="lose reply", method="PUT"), Fault(kind="lose reply", method="DELETE"))
        proxy.begin(*lost)
        storage.move("a", "b")
        assert all(proxy.happened[fault] for fault in lost)
        assert s3.list() == ["b"]

    def test_a_listing_ends_right(self, proxy: Proxy, storage: Storage, s3: Store) -> None:
        s3.write_bytes("a/b", b"12")
        proxy.begin(Fault(kind="reset download", method="GET", path="list-type", times=2, at_bytes=100))
        assert storage.sizes() == {"a/b": 2}

    def test_a_store_that_stays_down_is_given_up_after_so_many_requests(self, proxy: Proxy, storage: Storage) -> None:
        down = Fault(kind="reply", times=10_000)
        for attempt in (lambda: storage.read("a"), lambda: storage.write("a", b""), storage.list):
            proxy.begin(down)
            with pytest.raises(StorageError, match=r"\(SlowDown\).* \(4 attempts in \d+ s failed; once the store"):
                attempt()
            assert proxy.happened[down] == QUICK.busy_attempts

    def test_expired_credentials_are_not_tried_again(self, proxy: Proxy, storage: Storage) -> None:
        expired = Fault(kind="reply", status=403, code="ExpiredToken", times=10_000)
        proxy.begin(expired)
        with pytest.raises(StorageError, match=r"have expired \(ExpiredToken\); renew them .* goes on where it"):
            storage.write("a", b"1")
        assert proxy.happened[expired] == 1


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """3,000 records of three unequal classes."""
    rng = np.random.default_rng(0)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3000 * 32).astype(np.float32)), 32)
    path = tmp_path_factory.mktemp("faults") / "source.parquet"
    labels = rng.choice(["a", "b", "c"], 3000, p=[0.7, 0.2, 0.1])
    pq.write_table(pa.table({"vector": vectors, "label": labels}), path, row_group_size=1000)
    return str(path)


@pytest.fixture(scope="module")
def undisturbed(source: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a build of the source writes where nothing goes wrong."""
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    build(options(source, str(folder)))
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contents(store: Store) -> dict[str, bytes]:
    return {path: store.read_bytes(path) for path in store.list()}


def options(source: str, destination: str) -> BuildOptions:
    return BuildOptions(source=source, destination=destination, label="label", shards=3)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual number of attempts, in no time."""
    monkeypatch.setattr(RetryPolicy, "pause_seconds", lambda *_: 0.01)


@pytest.fixture
def through(monkeypatch: pytest.MonkeyPatch, s3: Store, proxy: Proxy) -> Store:
    """The folder; for this process its URL leads through the proxy."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.url)
    return s3


BUILD_FAULTS = [
    Fault(kind="reply", times=4),
    Fault(kind="reply", method="PUT", first=3, times=5, status=500, code="InternalError"),
    Fault(kind="reset upload", method="PUT", path="tfrecord", at_bytes=100_000, times=2),
    Fault(kind="damage upload", method="PUT", path="tfrecord", at_bytes=100_000),
    Fault(kind="lose reply", method="PUT", path="tfrecord", times=3),
    Fault(kind="lose reply", method="PUT", path=r"dataset\.json"),
    Fault(kind="reset download", method="GET", path="list-type", at_bytes=50, times=2),
    Fault(kind="lose reply", method="DELETE"),
    Fault(kind="stall", method="PUT", times=3, seconds=0.2),
]


@pytest.mark.usefixtures("quick")
class TestS3Build:
    @pytest.mark.parametrize("fault", BUILD_FAULTS, ids=name)
    def test_ends_with_the_bytes_of_an_undisturbed_one(
        self, proxy: Proxy, through: Store, source: str, undisturbed: dict[str, bytes], fault: Fault
    ) -> None:
        proxy.begin(fault)
        build(options(source, through.url))
        assert proxy.happened[fault] == fault.times
        assert contents(through) == undisturbed

    def test_of_a_store_that_refuses_a_third_of_all_requests(
        self, proxy: Proxy, through: Store, source: str, tmp_path: Path
    ) -> None:
        third = Fault(kind="reply", share=1 / 3, times=10**9)
        proxy.begin(third)
        build(replace(options(source, through.url), shards=40))
        assert proxy.happened[third] > 50
        proxy.begin()
        build(replace(options(source, str(tmp_path / "out")), shards=40))
        here = {path.relative_to(tmp_path / "out"): path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
        assert contents(through) == {str(path): data for path, data in here.items()}

    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            (Fault(kind="reply", method="PUT", path="00002-of", times=99), "attempts in .* failed; once the store"),
            (Fault(kind="reset upload", method="PUT", path=r"dataset\.json", times=99), "attempts in .* failed"),
            (Fault(kind="reply", method="PUT", first=4, times=999, status=403, code="ExpiredToken"), "renew them"),
        ],
        ids=["a shard is refused", "the last write is reset", "expired for writing"],
    )
    def test_that_cannot_end_says_why_is_no_dataset_and_ends_when_started_again(
        self, proxy: Proxy, through: Store, source: str, undisturbed: dict[str, bytes], fault: Fault, message: str
    ) -> None:
        proxy.begin(fault)
        with pytest.raises(StorageError, match=message):
            build(options(source, through.url))
        proxy.begin()
        with pytest.raises(DatasetError, match="there is no dataset"):
            open_dataset(through.url)
        build(options(source, through.url))
        assert contents(through) == undisturbed

    @pytest.mark.parametrize("fault", READ_FAULTS, ids=name)
    def test_is_read_and_found_whole_over_a_bad_network(
        self, proxy: Proxy, through: Store, undisturbed: dict[str, bytes], fault: Fault
    ) -> None:
        for path, data in undisturbed.items():
            through.write_bytes(path, data)
        fault = replace(fault, at_bytes=min(fault.at_bytes, 1000))
        proxy.begin(fault)
        assert open_dataset(through.url).manifest.split("train").records == 3000
        assert verify(through.url) == []
        assert proxy.happened[fault] == fault.times

    def test_whose_bytes_are_damaged_on_their_way_is_fetched_again(
        self, proxy: Proxy, through: Store, undisturbed: dict[str, bytes]
    ) -> None:
        for path, data in undisturbed.items():
            through.write_bytes(path, data)
        expected = list(read_records(open_dataset(through.url), "train", 10))
        damaged = Fault(kind="damage download", method="GET", path=r"\.tfrecord", at_bytes=200)
        proxy.begin(damaged)
        assert list(read_records(open_dataset(through.url), "train", 10)) == expected
        assert proxy.happened[damaged] == 1

    def test_that_was_damaged_on_its_way_to_verify_is_not_called_damaged(
        self, proxy: Proxy, through: Store, undisturbed: dict[str, bytes]
    ) -> None:
        for path, data in undisturbed.items():
            through.write_bytes(path, data)
        on_its_way = Fault(kind="damage download", method="GET", path=r"\.tfrecord", at_bytes=200)
        proxy.begin(on_its_way)
        assert verify(through.url) == []
        assert proxy.happened[on_its_way] == 1

    def test_whose_credentials_expire_while_it_is_checked_says_so(
        self, proxy: Proxy, through: Store, undisturbed: dict[str, bytes]
    ) -> None:
        """S3 names no reason in its answer to a request for a size (HEAD), and none is needed: files were listed."""
        for path, data in undisturbed.items():
            through.write_bytes(path, data)
        asked = Fault(kind="stall", method="HEAD", path="train-", times=99)
        proxy.begin(asked)
        assert verify(through.url, deep=True) == []
        assert proxy.happened[asked] == 0
        proxy.begin(Fault(kind="reply", path="train-", status=403, code="ExpiredToken", times=99))
        with pytest.raises(StorageError, match=r"have expired \(ExpiredToken\)"):
            verify(through.url)


SOURCE_FAULTS = [
    Fault(kind="reply", method="GET", path="source", first=2, times=3),
    Fault(kind="reset download", method="GET", path="source", at_bytes=500, times=2),
    Fault(kind="cut download", method="GET", path="source", at_bytes=300, times=2),
    Fault(kind="lose reply", method="GET", path="source"),
]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("fault", SOURCE_FAULTS, ids=name)
@pytest.mark.parametrize("kind", ["parquet", "csv.gz", "images"])
def test_a_source_is_read_over_a_bad_network(
    proxy: Proxy, through: Store, source: str, tmp_path: Path, kind: str, fault: Fault
) -> None:
    here = tmp_path / "source"
    if kind == "images":
        for number in range(6):
            image = here / "ab"[number % 2] / f"{number}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((40, 40), number, np.uint8)).save(image, compress_level=0)
    elif kind == "parquet":
        here = Path(source)
    else:
        here = here.with_suffix(".csv.gz")
        table = pq.read_table(source)
        rows = pa.table({"label": table["label"], "first": pc.list_element(table["vector"], 0)})
        with pa.output_stream(here, compression="gzip") as stream:
            pa.csv.write_csv(rows, stream)
    files = [here] if here.is_file() else [path for path in here.rglob("*") if path.is_file()]
    for path in files:
        through.write_bytes(str(path.relative_to(here.parent)), path.read_bytes())
    label = "label" if here.is_file() else None
    plan = BuildOptions(source="there", destination="here", label=label, shards=2)
    build(replace(plan, source=str(here), destination=str(tmp_path / "expected")))
    proxy.begin(fault)
    build(replace(plan, source=f"{through.url}/{here.name}", destination=str(tmp_path / "built")))
    assert proxy.happened[fault] == fault.times
    shards = [sorted((tmp_path / folder).glob("*.tfrecord")) for folder in ("expected", "built")]
    assert [path.read_bytes() for path in shards[0]] == [path.read_bytes() for path in shards[1]]


class TestCommand:
    def test_a_build_over_a_bad_network_ends_right(
        self, installed: Cli, proxy: Proxy, through: Store, source: str, undisturbed: dict[str, bytes]
    ) -> None:
        plan = (Fault(kind="reply", times=2), Fault(kind="lose reply", method="PUT", path="tfrecord"))
        proxy.begin(*plan)
        done = installed("shard-dataset", "build", source, through.url, "--label", "label", "--shards", "3")
        assert done.returncode == 0, done.stderr
        assert all(proxy.happened[fault] == fault.times for fault in plan)
        assert contents(through).keys() == undisturbed.keys()
        for path, data in contents(through).items():
            assert path == "_ringfeed/dataset.json" or data == undisturbed[path]  # the command is part of dataset.json

    def test_credentials_that_expire_are_one_line_and_new_ones_end_the_build(
        self, installed: Cli, proxy: Proxy, through: Store, source: str, undisturbed: dict[str, bytes]
    ) -> None:
        command = ("shard-dataset", "build", source, through.url, "--label", "label", "--shards", "3")
        proxy.begin(Fault(kind="reply", first=14, times=9999, status=403, code="ExpiredToken"))
        done = installed(*command)
        assert done.returncode == 1
        assert "the credentials have expired (ExpiredToken); renew them and start the same" in done.stderr
        assert "Traceback" not in done.stderr
        assert "_ringfeed/dataset.json" not in through.list()
        proxy.begin()
        done = installed(*command)
        assert done.returncode == 0, done.stderr
        assert contents(through).keys() == undisturbed.keys()


FULL = "the disk is full; free space or choose another folder"


class TestFullDisk:
    def test_a_write_says_so_and_leaves_nothing(self, small_disk: Path) -> None:
        storage = Storage(str(small_disk))
        for attempt in (storage.write, storage.create):
            with pytest.raises(StorageError, match=FULL):
                attempt("a", BIG)
            assert list(small_disk.iterdir()) == []

    def test_an_output_says_so_and_leaves_nothing(self, small_disk: Path) -> None:
        with pytest.raises(StorageError, match=FULL), Storage(str(small_disk)).open_output("a") as file:
            file.write(BIG)
        assert list(small_disk.iterdir()) == []

    @pytest.mark.usefixtures("spill_folder")  # it is left to be gone on with
    def test_a_build_says_so_and_is_no_dataset(
        self, installed: Cli, small_disk: Path, source: str, tmp_path: Path
    ) -> None:
        (small_disk / "ballast").write_bytes(bytes(700_000))
        out = small_disk / "out"
        done = installed("shard-dataset", "build", source, str(out), "--label", "label", "--shards", "3")
        assert done.returncode == 1
        assert FULL in done.stderr.splitlines()[-1]
        assert not (out / "_ringfeed/dataset.json").exists()
        assert [path for path in small_disk.rglob("*.part") if path.is_file()] == []

    def test_a_file_beyond_the_limit_of_the_process_says_so_and_leaves_nothing(self, tmp_path: Path) -> None:
        code = (
            "import resource, sys; from ringfeed.sharding.storage.storage import Storage\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            "try: Storage(sys.argv[1]).write('a', bytes(200_000))\n"
            "except OSError as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
        assert "larger than this process or file system may write; raise the limit (ulimit -f)" in done.stdout
        assert list(tmp_path.iterdir()) == []


class TestHdfs:
    def test_a_data_node_that_dies_is_told_in_bounded_time(self, tmp_path: Path) -> None:
        with hdfs(tmp_path) as processes:
            storage = Storage(f"{processes.server.url}/out", {}, QUICK)
            storage.write("before", b"1")

            def write() -> None:
                with storage.open_output("a") as file:
                    file.write(BIG)
                    processes.kill_datanode()
                    for _ in range(20):
                        file.write(BIG)

            with pytest.raises(StorageError, match=r"cannot write .*/out/a: the DataNodes do not answer"):
                write()
            with pytest.raises(StorageError, match=r"the DataNodes that hold the file do not answer \(4 attempts"):
                storage.read("before")
            assert storage.list() == ["before"]
            processes.start_datanode()
            assert storage.read("before") == b"1"

    @pytest.mark.campaign
    def test_a_build_whose_data_node_dies_is_told_in_bounded_time(self, tmp_path: Path, source: str) -> None:
        with hdfs(tmp_path) as processes:
            url = f"{processes.server.url}/out"

            def kill(progress: Progress) -> None:
                if progress.stage == "write" and progress.done == 1:
                    processes.kill_datanode()

            with pytest.raises(StorageError, match="DataNode"):
                build(options(source, url), report=kill)
            with pytest.raises(DatasetError, match="there is no dataset"):
                open_dataset(url)
