"""Block checksums: independent of how a file is written, sensitive to any change, stored in Parquet shards' indexes."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import BuildOptions, build, open_dataset, repair, verify
from ringfeed.sharding.building import build_plan
from ringfeed.sharding.formats import block_checksums as blocks
from ringfeed.sharding.formats import shard_encode as encode
from ringfeed.sharding.formats.block_checksums import BlockSums, block_sums, blocks_match
from ringfeed.sharding.formats.shard_encode import encode_index, sums_in_index
from tests.helpers.files import contents

SIZES = st.integers(0, 3 * blocks.BLOCK_BYTES)


@given(size=SIZES, cuts=st.lists(SIZES))
def test_checksums_do_not_depend_on_the_pieces_of_a_file(size: int, cuts: list[int]) -> None:
    data = np.random.default_rng(size).bytes(size)
    places = [0, *sorted(min(cut, size) for cut in cuts), size]
    sums = BlockSums()
    for start, stop in pairwise(places):
        sums.update(data[start:stop])
    assert sums.finish() == block_sums(data)


@given(size=SIZES.filter(bool), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_in_its_block_alone(size: int, place: float, bit: int) -> None:
    data = bytearray(np.random.default_rng(size).bytes(size))
    sums = block_sums(data)
    at = int(place * size)
    data[at] ^= 1 << bit
    for number, start in enumerate(range(0, size, blocks.BLOCK_BYTES)):
        block = data[start : start + blocks.BLOCK_BYTES]
        assert blocks_match(block, number, sums) == (number != at // blocks.BLOCK_BYTES)
        assert not blocks_match(block[:-1], number, sums) or len(block) == 1
    assert not blocks_match(data, 0, sums)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).normal(size=(5, 20_000))
    table = pa.table({f"c{i}": column for i, column in enumerate(values)} | {"label": np.arange(20_000) % 2})
    pq.write_table(table, tmp_path / "source.parquet")
    return tmp_path / "source.parquet"


def build_from(source: Path, name: str = "shards") -> Path:
    root = source.with_name(name)
    build(BuildOptions(source=str(source), destination=str(root), label="label", shards=2, shard_format="parquet"))
    return root


@pytest.mark.parametrize("row_groups", [1, 5])
def test_the_index_of_a_shard_holds_the_checksums_of_its_file(
    source: Path, monkeypatch: pytest.MonkeyPatch, row_groups: int
) -> None:
    if row_groups > 1:
        monkeypatch.setattr(build_plan, "BLOCK_BYTES", 100_000)
    root = build_from(source)
    for shard in open_dataset(str(root)).shards:
        data = (root / shard.path).read_bytes()
        assert (pq.read_metadata(root / shard.path).num_row_groups > 1) == (row_groups > 1)
        index = pa.ipc.open_file(root / shard.index_path).read_all().to_batches()[0]
        assert sums_in_index(index) == block_sums(data)


def test_an_index_of_an_older_version_is_rebuilt_unchanged(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as older:
        older.setattr(encode, "encode_index", lambda ids, offsets=None, sums=None: encode_index(ids, offsets))
        root = build_from(source)
    before = contents(root)
    index = root / "_ringfeed/train-00000-of-00002.index"
    assert sums_in_index(pa.ipc.open_file(index).read_all().to_batches()[0]) is None
    index.unlink()
    repair(str(root))
    assert verify(str(root)) == []
    assert contents(root) == before
