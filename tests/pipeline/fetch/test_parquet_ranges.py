"""A few columns of Parquet: the same values from few bytes, each of them verified."""

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.pipeline.fetch.parquet_ranges import PartTooLarge, read_blocks
from ringfeed.sharding import BuildOptions, CorruptionError, build, open_dataset, verify
from ringfeed.sharding.building import build_plan
from ringfeed.sharding.formats import shard_encode as encode
from ringfeed.sharding.formats.block_checksums import BLOCK_BYTES
from ringfeed.sharding.formats.parquet import column_spans
from ringfeed.sharding.formats.shard_encode import encode_index
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.files import contents
from tests.servers.proxy import Fault, proxied
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

RECORDS, COLUMNS = 40_000, 40
NAMES = [f"c{number:02d}" for number in range(COLUMNS)]
ALWAYS = 10**9


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty columns of noise, of which one is of vectors and one of texts, and a label."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {name: rng.normal(size=RECORDS) for name in NAMES}
    vectors = pa.array(rng.normal(size=4 * RECORDS).astype(np.float32))
    columns["c20"] = pa.FixedSizeListArray.from_arrays(vectors, 4)
    columns["c21"] = [f"text {value}" for value in rng.integers(0, 10**9, RECORDS)]
    columns["label"] = np.arange(RECORDS) % 3
    path = tmp_path_factory.mktemp("wide") / "source.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def build_at(url: str, source: Path) -> str:
    options = BuildOptions(source=str(source), destination=url, label="label", shards=4, shard_format="parquet")
    build(replace(options, min_class_records=1))
    return url


@pytest.fixture(scope="module")
def wide(source: Path) -> str:
    return build_at(str(source.parent / "wide"), source)


@pytest.fixture(scope="module")
def grouped(source: Path) -> str:
    """The same in several row groups a shard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_plan, "BLOCK_BYTES", 1_000_000)
        return build_at(str(source.parent / "grouped"), source)


def epoch(url: str | Storage, **options: Any) -> tuple[dict[str, list[Any]], int]:
    """All values of an epoch, and the bytes of data files and indexes that it took."""
    loader = Loader(url, batch_size=100, seed=2, streams=1, **options)  # of more, which share shards, one may read anew
    batches = list(loader.numpy_epoch(0))
    values = {name: [value for batch in batches for value in np.asarray(batch[name]).tolist()] for name in batches[0]}
    return values, loader.stats()["fetch"].bytes


@pytest.mark.parametrize("where", [None, "c30 > 0.5"])
@pytest.mark.parametrize("columns", [["c07"], ["c21", "label"], ["c20", "c39", "c00"]])
@pytest.mark.parametrize("dataset", ["wide", "grouped"])
def test_the_values_are_those_of_the_whole_file_and_take_a_part_of_its_bytes(
    request: pytest.FixtureRequest, tmp_path: Path, dataset: str, columns: list[str], where: str | None
) -> None:
    url = request.getfixturevalue(dataset)
    few, few_bytes = epoch(url, columns=columns, where=where)
    whole, whole_bytes = epoch(url, columns=columns, where=where, cache=tmp_path / "cache")  # which keeps whole files
    assert few == whole
    assert few_bytes < 0.7 * whole_bytes
    assert len(columns) > 1 or where or few_bytes < 0.2 * whole_bytes


def test_most_columns_are_read_as_whole_files(wide: str) -> None:
    values, taken = epoch(wide, columns=NAMES[:-4])
    everything, size = epoch(wide)
    assert values == {name: everything[name] for name in [*NAMES[:-4], "class_id"]}
    assert size == sum(shard.bytes + shard.index_bytes for shard in open_dataset(wide).shards)
    assert size <= taken < 1.1 * size  # the end of one shard or a few was read to know


def test_every_store_reads_parts(store: Store, source: Path, wide: str) -> None:
    url = build_at(f"{store.url}/wide", source)
    few, taken = epoch(url, columns=["c07"])
    assert few == epoch(wide, columns=["c07"])[0]
    assert taken < 0.2 * epoch(url)[1]


def damage(root: Path, column: str) -> str:
    """Flip a bit in the middle of a column of the third shard."""
    path = root / open_dataset(str(root)).shards[2].path
    data = bytearray(path.read_bytes())
    ((start, stop),) = column_spans(pa.py_buffer(bytes(data)), {column})
    data[(start + stop) // 2] ^= 16
    path.write_bytes(data)
    return path.name


def test_damage_stops_the_loader_where_it_is_read_and_nowhere_else(wide: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(wide, tmp_path / "copy"))
    name = damage(root, "c30")
    assert epoch(str(root), columns=["c07"]) == epoch(wide, columns=["c07"])
    assert [damage.path for damage in verify(str(root))] == [name]
    with pytest.raises(CorruptionError, match=rf"{name} is damaged: .*row group 0, records .*, column 'c30' at offset"):
        epoch(str(root), columns=["c07", "c30"])
    with pytest.raises(CorruptionError, match=rf"{name} is damaged: "):
        epoch(str(root), columns=["c07"], where="c30 > 0.5")


def test_a_shard_that_was_cut_or_is_gone_stops_the_loader(wide: str, tmp_path: Path) -> None:
    root = Path(shutil.copytree(wide, tmp_path / "copy"))
    path = root / open_dataset(wide).shards[1].path
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CorruptionError, match=rf"{path.name} is damaged: it has \d+ bytes, \d+ were written"):
        epoch(str(root), columns=["c07"])
    path.unlink()
    with pytest.raises(CorruptionError, match=rf"{path.name} is missing"):
        epoch(str(root), columns=["c07"])


def test_datasets_of_older_versions_are_read_whole(
    source: Path, wide: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(encode, "encode_index", lambda ids, offsets=None, sums=None: encode_index(ids, offsets))
        url = build_at(str(tmp_path / "older"), source)
    values, taken = epoch(url, columns=["c07"])
    assert values == epoch(wide, columns=["c07"])[0]
    assert taken == epoch(url)[1]


@pytest.fixture(scope="module")
def far(s3_server: S3Server, s3_bucket: str, wide: str) -> str:
    store = Store(name="s3", url=f"s3://{s3_bucket}/wide", env=s3_server.env, storage_options=s3_server.storage_options)
    for path, data in contents(wide).items():
        store.write_bytes(path, data)
    return store.url


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="damage download", method="GET", path=r"\.parquet", first=2, at_bytes=2000),
        Fault(kind="damage download", method="GET", path=r"00002-of-00004\.parquet", times=3, at_bytes=2000),
        Fault(kind="cut download", method="GET", path=r"\.parquet", first=2, at_bytes=2000, times=2),
        Fault(kind="reply", method="GET", path=r"\.parquet", first=2, times=3),
    ],
    ids=lambda fault: f"{fault.kind} x{fault.times}",
)
def test_faults_that_pass_change_no_value(s3_server: S3Server, far: str, wide: str, fault: Fault) -> None:
    with proxied(s3_server.endpoint_url) as proxy:
        storage = Storage(far, replace(s3_server, endpoint_url=proxy.url).storage_options)
        proxy.begin(fault)
        assert epoch(storage, columns=["c07"])[0] == epoch(wide, columns=["c07"])[0]
        assert proxy.happened[fault] == fault.times


def test_wrong_bytes_stop_the_loader_with_their_place(s3_server: S3Server, far: str) -> None:
    with proxied(s3_server.endpoint_url) as proxy:
        storage = Storage(far, replace(s3_server, endpoint_url=proxy.url).storage_options)
        path = "train-00002-of-00004.parquet"
        proxy.begin(Fault(kind="damage download", method="GET", path=path, at_bytes=2000, times=ALWAYS))
        with pytest.raises(CorruptionError, match=rf"{far}/{path} is damaged: .*repair {far}"):
            epoch(storage, columns=["c07"])


def padded(table: pa.Table, size: int) -> pa.Buffer:
    """A table as a Parquet file of a size."""

    def written(pad: int) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, table.schema, compression="none", use_dictionary=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({"pad": "x" * pad})
        return sink.getvalue()

    return written(size - written(size // 2).size + size // 2)


@pytest.mark.parametrize("beyond", [-1, 0, 1, 3, 7, 8, 9, 70_000])
def test_a_file_may_end_just_after_a_block(beyond: int) -> None:
    table = pa.table({"one": np.arange(50_000), "other": np.arange(50_000)})
    data = padded(table, 14 * BLOCK_BYTES + beyond)
    assert data.size == 14 * BLOCK_BYTES + beyond
    there = bytearray(data.size)

    def read(start: int, stop: int) -> pa.Buffer:
        there[start:stop] = data.slice(start, stop - start).to_pybytes()
        return data.slice(start, stop - start)

    found = read_blocks(read, data.size, {"one"}, 0)
    assert found is not None
    assert found < 0.7 * data.size
    assert pq.read_table(pa.BufferReader(bytes(there)), columns=["one"]) == table.select(["one"])


@given(column=st.sampled_from([*NAMES, "label"]), lost=st.integers(0, 5), gap=st.integers(0, 1 << 17))
def test_blocks_are_whole_lie_apart_and_hold_the_columns(wide: str, column: str, lost: int, gap: int) -> None:
    data = pa.py_buffer((Path(wide) / "train-00000-of-00004.parquet").read_bytes())
    asked: list[tuple[int, int]] = []

    def read(start: int, stop: int) -> pa.Buffer | None:
        asked.append((start, stop))
        return None if len(asked) == lost else data.slice(start, stop - start)

    found = read_blocks(read, data.size, {column, "c01"}, gap)
    assert found == (None if lost and len(asked) == lost else sum(stop - start for start, stop in asked))
    assert all(start % BLOCK_BYTES == 0 and (stop % BLOCK_BYTES == 0 or stop == data.size) for start, stop in asked)
    assert all(one[1] <= other[0] for one, other in pairwise(sorted(asked)))
    for start, stop in column_spans(data, {column, "c01"}) if found else ():
        covered = sum(max(0, min(stop, b) - max(start, a)) for a, b in asked)
        assert covered == stop - start
    with pytest.raises(PartTooLarge):
        read_blocks(lambda start, stop: data.slice(start, stop - start), data.size, {*NAMES}, gap)
