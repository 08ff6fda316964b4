"""Loading and resuming on local disk, S3 and HDFS: the same samples in the same order, and no damage goes unnoticed."""

import faulthandler
import gc
import multiprocessing
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, CorruptionError, StorageError, build, verify
from ringfeed.sharding.storage import filesystems as clients
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.numbered_records import make_table
from tests.servers.hdfs import HdfsServer
from tests.servers.store import Store


@pytest.fixture
def source(tmp_path: Path) -> str:
    pq.write_table(make_table(300), tmp_path / "source.parquet")
    return str(tmp_path / "source.parquet")


def build_on(url: str, source: str, shard_format: str) -> str:
    build(BuildOptions(source=source, destination=url, label="label", shards=4, shard_format=shard_format))
    return url


def ids(url: str, start_step: int = 0, **options: Any) -> list[list[int]]:
    batches = Loader(url, batch_size=24, seed=3, balance="uniform", **options).epoch(2, start_step)
    return [batch["id"].numpy().tolist() for batch in batches]


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_a_dataset_loads_and_resumes_alike_on_every_store(
    store: Store, source: str, tmp_path: Path, shard_format: str
) -> None:
    url = build_on(f"{store.url}/data", source, shard_format)
    assert verify(url) == []
    whole = ids(url)
    assert whole == ids(build_on(str(tmp_path / "local"), source, shard_format))
    assert ids(url, start_step=5) == whole[5:]
    halves = [ids(url, start_step=5, rank=rank, world_size=2) for rank in range(2)]
    assert np.concatenate(halves, axis=1).tolist() == whole[5:]


def ids_or_error(loader: Loader) -> Any:
    try:
        return [batch["id"].tolist() for batch in loader.numpy_epoch(0)]
    except StorageError as error:
        return str(error)


def tell(loader: Loader, answer: Any) -> None:
    faulthandler.dump_traceback_later(100)  # where it hangs, if it does
    answer.put(ids_or_error(loader))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, if another test has imported it
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_another_process_reads_the_same_or_fails_at_once(
    store: Store, source: str, method: Literal["spawn", "fork"]
) -> None:
    loader = Loader(build_on(f"{store.url}/data", source, "parquet"), batch_size=24)
    expected = ids_or_error(loader)
    if method == "fork":  # fsspec lets go of the fixture's own client in the child, where that hangs
        fsspec.get_filesystem_class("hdfs").clear_instance_cache()
    context = multiprocessing.get_context(method)
    answer = context.Queue()
    process = context.Process(target=tell, args=(loader, answer))
    process.start()
    try:
        found = answer.get(timeout=120)  # calls of the client would hang for longer
    finally:
        process.kill()
        process.join()
    if store.name == "hdfs" and method == "fork":
        assert "this process was forked from one that has used HDFS" in found
    else:
        assert found == expected


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_process_forked_after_hdfs_was_used_releases_no_client_of_its_parent(hdfs_server: HdfsServer) -> None:
    assert Storage(hdfs_server.url).exists("")
    fsspec.get_filesystem_class("hdfs").clear_instance_cache()  # of the fixture, as above
    process = multiprocessing.get_context("fork").Process(target=clients._connect.cache_clear)
    process.start()
    process.join(120)  # as for another client in place of the oldest of 16
    try:
        assert process.exitcode == 0
    finally:
        process.kill()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_process_forked_after_hdfs_was_used_collects_no_client_of_its_parent(hdfs_server: HdfsServer) -> None:
    assert not Storage(hdfs_server.url).exists("absent")
    fs, _ = fsspec.url_to_fs(hdfs_server.url, skip_instance_cache=True)
    assert fs.exists("/")
    fs.itself = fs
    process = multiprocessing.get_context("fork").Process(target=gc.collect)
    gc.disable()
    try:
        del fs  # garbage now, which the collector alone finds
        process.start()
        process.join(120)  # to free it there would take for ever
        assert process.exitcode == 0
    finally:
        gc.enable()
        process.kill()


def test_a_flipped_byte_stops_the_loader_on_every_store(store: Store, source: str) -> None:
    url = build_on(f"{store.url}/data", source, "tfrecord")
    name = "data/train-00002-of-00004.tfrecord"
    data = bytearray(store.read_bytes(name))
    data[len(data) // 2] ^= 4
    store.write_bytes(name, bytes(data))
    with pytest.raises(CorruptionError, match="train-00002-of-00004"):
        for _ in Loader(url, batch_size=24).chunks(0):
            pass
