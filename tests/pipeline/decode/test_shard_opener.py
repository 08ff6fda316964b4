"""A shard cut between two streams: each stream reads and checks its own part, and no more."""

import logging
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, CorruptionError, build, open_dataset
from ringfeed.sharding.building import build_plan
from ringfeed.sharding.compute import kernels
from ringfeed.sharding.formats.block_checksums import BLOCK_BYTES
from ringfeed.sharding.formats.parquet import groups_of_rows
from ringfeed.sharding.formats.tfrecord import frame_records, frames_are_intact
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.files import contents
from tests.helpers.numbered_records import rewrite
from tests.servers.proxy import Fault, proxied
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store
from tests.servers.web import served

RECORDS, SHARDS = 10_000, 13  # which 6 streams share
KINDS = ("fixed", "texts", "parquet")
ALWAYS = 10**9
RETRY = "ringfeed.sharding.storage.retry"  # which logs what is tried again
Make = Callable[[str], str]


def build_at(url: str, source: Path, kind: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_plan, "BLOCK_BYTES", 100_000)  # so that Parquet has several row groups
        options = BuildOptions(source=str(source / kind), destination=url, label="label", shards=SHARDS)
        build(replace(options, shard_format="parquet" if kind == "parquet" else "tfrecord", min_class_records=1))
    return url


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of 2 KiB, as three datasets need them: of one layout, with texts, and for Parquet."""
    folder = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)
    vectors = pa.array(rng.normal(size=512 * RECORDS).astype(np.float32))
    columns: dict[str, Any] = {
        "id": np.arange(RECORDS),
        "vector": pa.FixedSizeListArray.from_arrays(vectors, 512),
        "label": np.arange(RECORDS) % 50 // 20,
    }
    texts = {"text": ["x" * size for size in rng.integers(0, 500, RECORDS)]}
    for kind, more in {"fixed": {}, "texts": texts, "parquet": texts}.items():
        (folder / kind).mkdir()
        pq.write_table(pa.table(columns | more), folder / kind / "source.parquet")
    return folder


@pytest.fixture(scope="module")
def make(source: Path) -> Make:
    """Build a dataset of a kind, once."""
    made: dict[str, str] = {}

    def make_one(kind: str) -> str:
        made[kind] = made.get(kind) or build_at(str(source / f"{kind}-shards"), source, kind)
        return made[kind]

    return make_one


def read(url: str | Storage, **options: Any) -> tuple[list[list[int]], Loader]:
    """The records of each batch, and the loader that read them."""
    loader = Loader(url, batch_size=120, streams=6, seed=3, **options)
    batches = list(loader.numpy_epoch(0))
    assert all(np.isfinite(np.asarray(batch.get("vector", 0))).all() for batch in batches)
    return [np.asarray(batch["id"]).tolist() for batch in batches], loader


def bytes_read(loader: Loader) -> int:
    return loader.stats()["fetch"].bytes


@pytest.mark.parametrize("options", [{}, {"balance": "uniform"}, {"remainder": "pad", "window_shards": 2}])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_together_read_each_byte_once(make: Make, kind: str, options: dict[str, Any]) -> None:
    url = make(kind)
    total = sum(shard.bytes + shard.index_bytes for shard in open_dataset(url).shards)
    for ranks in (1, 2, 3, 6):
        loaders = []
        for rank in range(ranks):
            here, loader = read(url, rank=rank, world_size=ranks, **options)
            whole, _ = read(url, rank=rank, world_size=ranks, cache="memory", **options)  # which keeps whole files
            assert here == whole
            loaders.append(loader)
        assert sum(map(bytes_read, loaders)) <= 1.05 * total
        if kind == "fixed":
            planned = loaders[0].plan().bytes_per_rank
            assert list(map(bytes_read, loaders)) == pytest.approx(planned, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    streams=st.integers(1, 16),
    ranks=st.integers(1, 16),
    options=st.fixed_dictionaries(
        {"seed": st.integers(0, 99), "window_shards": st.integers(1, 3), "remainder": st.sampled_from(["drop", "pad"])}
    ),
    epoch=st.integers(0, 9),
)
def test_only_parts_cut_between_ranks_are_read_twice(
    make: Make, kind: str, streams: int, ranks: int, options: dict[str, Any], epoch: int
) -> None:
    """Of each shard that is cut its index, and of Parquet the row group and the footer, too: nothing else."""
    ranks = math.gcd(ranks, streams)
    shards = open_dataset(make(kind)).shards
    cut = max(shard.index_bytes for shard in shards)
    if kind == "parquet":
        metadata = pq.read_metadata(Path(make(kind)) / shards[0].path)
        groups = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
        assert len(groups) > 10
        cut += max(groups) + 4 * BLOCK_BYTES  # those at the edges, and of the footer
    fetched = 0
    for rank in range(ranks):
        loader = Loader(make(kind), batch_size=10 * streams, streams=streams, rank=rank, world_size=ranks, **options)
        assert sum(1 for _ in loader.numpy_epoch(epoch)) == loader.steps_per_epoch
        fetched += bytes_read(loader)
    assert fetched <= sum(shard.bytes + shard.index_bytes for shard in shards) + (ranks - 1) * cut


@pytest.mark.parametrize("window_shards", [1, 3])
@pytest.mark.parametrize("options", [{"where": "label < 2"}, {"on_bad_shard": "quarantine"}, {}])
def test_a_rank_reads_the_shards_that_its_streams_share_once(
    make: Make, options: dict[str, Any], window_shards: int
) -> None:
    """Of the 13 shards, 5 lie in two streams."""
    url = make("parquet" if not options else "texts")
    total = sum(shard.bytes + shard.index_bytes for shard in open_dataset(url).shards)
    for epoch in range(3):
        loader = Loader(url, batch_size=120, streams=6, window_shards=window_shards, **options)
        before = bytes_read(loader)  # for the filter
        batches = sum(1 for _ in loader.numpy_epoch(epoch))
        assert batches == loader.steps_per_epoch
        assert bytes_read(loader) - before == total


@pytest.mark.parametrize("compiled", [True, False])
def test_small_records_on_a_local_disk_are_read_in_parts_where_they_are_checked_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    (tmp_path / "fixed").mkdir()
    table = pa.table({"id": np.arange(RECORDS), "label": np.arange(RECORDS) % 5})
    pq.write_table(table, tmp_path / "fixed" / "source.parquet")
    url = build_at(str(tmp_path / "shards"), tmp_path, "fixed")
    total = sum(shard.bytes + shard.index_bytes for shard in open_dataset(url).shards)
    monkeypatch.setattr(kernels, "are_compiled", lambda: compiled)
    fetched = sum(bytes_read(read(url, rank=rank, world_size=6)[1]) for rank in range(6))
    assert (fetched < 1.2 * total) == compiled  # of so small a shard the index is much


def test_every_store_is_asked_for_parts(store: Store, source: Path, make: Make) -> None:
    url = build_at(f"{store.url}/parts", source, "texts")
    there, loader = read(url, rank=1, world_size=6)
    here, local = read(make("texts"), rank=1, world_size=6)
    assert there == here
    assert bytes_read(loader) == bytes_read(local)


@pytest.mark.parametrize(
    ("store", "kind"),
    [("local", "texts"), ("local", "parquet"), ("s3", "texts"), ("hdfs", "parquet")],
    indirect=["store"],
)
def test_a_truncated_shard_is_damaged_on_every_store(
    store: Store, source: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, RETRY)
    url = build_at(f"{store.url}/cut", source, kind)
    path, size = divided(url)
    data = store.read_bytes(f"cut/{path}")
    for left in (size // 2, 0):
        store.write_bytes(f"cut/{path}", data[:left])
        with pytest.raises(CorruptionError, match=rf"{path} is damaged: it has {left} bytes, {size} were written"):
            read(url, rank=2, world_size=6)
    assert not [record for record in caplog.records if record.name == RETRY and path in record.message]


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_without_ranges_works_too(make: Make, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with served(Path(make(kind)), ranges=False) as url:
        there, _ = read(url, rank=1, world_size=6)
    assert there == read(make(kind), rank=1, world_size=6)[0]
    assert not [record for record in caplog.records if url in record.message]  # nothing was tried again


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_a_part(make: Make, kind: str) -> None:
    few, loader = read(make(kind), columns=["id"], rank=1, world_size=6)
    everything, whole = read(make(kind), rank=1, world_size=6)
    assert few == everything
    assert bytes_read(loader) <= bytes_read(whole)


def test_statistics_of_whole_shards_read_them_whole(make: Make) -> None:
    url = make("fixed")
    parts = bytes_read(read(url, rank=1, world_size=6)[1])
    for options in ({"on_bad_shard": "quarantine"}, {"where": "label < 2"}, {"cache": "memory"}):
        assert bytes_read(read(url, rank=1, world_size=6, **options)[1]) > 1.2 * parts


def divided(url: str) -> tuple[str, int]:
    """A shard whose first records stream 1 reads, and not the last; and how many bytes it has."""
    loader = Loader(url, batch_size=120, streams=6, seed=3)
    own = [segment for window in loader._order(0).windows(1) for segment in window.segments]
    shard = next(open_dataset(url).shards[s.shard] for s in own if s.start == 0 and s.stop < RECORDS // SHARDS)
    return shard.path, shard.bytes


@pytest.mark.parametrize("kind", KINDS)
def test_damage_stops_the_rank_that_reads_it(make: Make, tmp_path: Path, kind: str) -> None:
    path, size = divided(make(kind))
    root = Path(shutil.copytree(make(kind), tmp_path / "copy"))
    for at, rank, other in ((1000, 1, 2), (size - 200_000, 2, 1)):
        data = bytearray((root / path).read_bytes())
        data[at] ^= 4
        rewrite(root / path, data)
        with pytest.raises(CorruptionError, match=rf"{path} is damaged: .*offset .*repair"):
            read(str(root), rank=rank, world_size=6)
        assert read(str(root), rank=other, world_size=6)[0] == read(make(kind), rank=other, world_size=6)[0]
        data[at] ^= 4
        rewrite(root / path, data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_or_missing_shard_stops_the_loader(make: Make, tmp_path: Path, kind: str) -> None:
    path, size = divided(make(kind))
    root = Path(shutil.copytree(make(kind), tmp_path / "copy"))
    (root / path).write_bytes((root / path).read_bytes()[:-1000])
    with pytest.raises(CorruptionError, match=rf"{path} is damaged: it has {size - 1000} bytes, {size} were written"):
        read(str(root), rank=2, world_size=6)
    (root / path).unlink()
    with pytest.raises(CorruptionError, match=rf"{path} is missing"):
        read(str(root), rank=1, world_size=6)


@pytest.fixture(scope="module")
def far(s3_server: S3Server, s3_bucket: str, make: Make) -> str:
    store = Store(
        name="s3", url=f"s3://{s3_bucket}/parted", env=s3_server.env, storage_options=s3_server.storage_options
    )
    for path, data in contents(make("texts")).items():
        store.write_bytes(path, data)
    return store.url


@pytest.mark.parametrize("kind", ["damage download", "cut download", "reply"])
def test_transient_faults_change_nothing(s3_server: S3Server, far: str, make: Make, kind: str) -> None:
    path = divided(make("texts"))[0]
    with proxied(s3_server.endpoint_url) as proxy:
        storage = Storage(far, replace(s3_server, endpoint_url=proxy.url).storage_options)
        fault = Fault(kind=kind, method="GET", path=path, at_bytes=2000)  # type: ignore[arg-type]
        proxy.begin(fault)
        assert read(storage, rank=1, world_size=6)[0] == read(make("texts"), rank=1, world_size=6)[0]
        assert proxy.happened[fault] == 1


def test_wrong_bytes_stop_the_loader_and_are_located(s3_server: S3Server, far: str, make: Make) -> None:
    path = divided(make("texts"))[0]
    with proxied(s3_server.endpoint_url) as proxy:
        storage = Storage(far, replace(s3_server, endpoint_url=proxy.url).storage_options)
        proxy.begin(Fault(kind="damage download", method="GET", path=path, at_bytes=2000, times=ALWAYS))
        with pytest.raises(CorruptionError, match=rf"{far}/{path} is damaged: .*repair {far}"):
            read(storage, rank=1, world_size=6)


@given(
    payloads=st.one_of(
        st.lists(st.binary(max_size=40), min_size=1), st.lists(st.binary(min_size=5, max_size=5), min_size=1)
    ),
    flip=st.integers(0, 10**6),
    pick=st.integers(0, 10**6),
)
def test_a_flipped_bit_or_another_length_shows_in_frames(payloads: list[bytes], flip: int, pick: int) -> None:
    frames = frame_records(pa.array(payloads, pa.large_binary()))
    offsets = np.frombuffer(frames.buffers()[1], np.int64)
    lengths, data = np.diff(offsets), frames.buffers()[2][: offsets[-1]]
    assert frames_are_intact(data, lengths)
    damaged = bytearray(data)
    damaged[flip // 8 % len(damaged)] ^= 1 << flip % 8
    assert not frames_are_intact(pa.py_buffer(damaged), lengths)
    assert not frames_are_intact(data[:-1], lengths)
    other = lengths.copy()
    other[pick % len(other)] += 1
    assert not frames_are_intact(data, other)


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), data=st.data())
def test_groups_of_rows_are_those_that_hold_them(sizes: list[int], data: st.DataObject) -> None:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, pa.schema({"id": pa.int64()})) as writer:
        for first, size in zip(np.cumsum([0, *sizes]).tolist(), sizes, strict=False):
            writer.write_table(pa.table({"id": np.arange(first, first + size)}))
    start = data.draw(st.integers(0, sum(sizes) - 1))
    stop = data.draw(st.integers(start + 1, sum(sizes)))
    groups, rows = groups_of_rows(sink.getvalue(), (start, stop))
    file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    held = [file.read_row_group(group).column("id").to_pylist() for group in range(len(sizes))]
    assert [number for group in groups for number in held[group]] == list(rows)
    assert list(groups) == [group for group, ids in enumerate(held) if set(ids) & set(range(start, stop))]
