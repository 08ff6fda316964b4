"""The shard table, and the copy of the manifest in it."""

import io
from dataclasses import replace

import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import LostRecords, Manifest
from ringfeed.sharding.dataset.shard_table import decode_shards, encode_shards, recover_from_table, seal
from tests.helpers.manifests import MANIFEST, SHARD

ROWS = (SHARD, replace(SHARD, path="b", index_path="c", class_counts=(3, 2**40)))
SEALED, TABLE = seal(MANIFEST, ROWS)


def test_both_files_come_back_from_the_table_byte_for_byte() -> None:
    lost = LostRecords(split="train", path="x", records=3, class_counts=(1, 2))
    for manifest in (MANIFEST, replace(MANIFEST, classes=(None,), layout=None), replace(MANIFEST, lost=(lost,))):
        sealed, table = seal(replace(manifest, shards_path="other.parquet"), ROWS)
        found = recover_from_table(table, "other.parquet")
        assert found == (sealed, ROWS)
        assert found[0].encode() == sealed.encode()
        assert Manifest.decode(sealed.encode(), "x") == sealed


def test_an_imitation_of_the_checksum_does_not_mislead() -> None:
    text = "ringfeed.checksum\x18)xxh3-128:" + 32 * "0"
    sealed, table = seal(replace(MANIFEST, writer=text, classes=(text,)), ROWS)
    assert recover_from_table(table, "_ringfeed/shards.table") == (sealed, ROWS)


@given(position=st.integers(0, len(TABLE) - 1), bit=st.integers(0, 7))
def test_nothing_is_recovered_from_a_table_with_a_flipped_bit(position: int, bit: int) -> None:
    data = bytearray(TABLE)
    data[position] ^= 1 << bit
    assert recover_from_table(bytes(data), "_ringfeed/shards.table") is None


@given(size=st.integers(0, len(TABLE) - 1))
def test_nothing_is_recovered_from_a_truncated_table(size: int) -> None:
    assert recover_from_table(TABLE[:size], "_ringfeed/shards.table") is None


def test_a_table_without_a_copy_can_be_read() -> None:
    assert decode_shards(encode_shards(ROWS)) == ROWS == decode_shards(TABLE)
    assert recover_from_table(encode_shards(ROWS), "_ringfeed/shards.table") is None


def test_the_checksum_of_the_rows_depends_on_them_alone() -> None:
    other = replace(MANIFEST, seed=1)
    assert seal(other, ROWS)[0].shards_rows == SEALED.shards_rows
    assert seal(other, ROWS)[0].shards_checksum != SEALED.shards_checksum
    for change in ({"bytes": 11}, {"path": "z"}, {"class_counts": (2, 0)}, {"checksum": "e"}, {"split": "test"}):
        assert seal(MANIFEST, (replace(SHARD, **change), ROWS[1]))[0].shards_rows != SEALED.shards_rows  # type: ignore[arg-type]


def test_other_tools_read_the_table() -> None:
    table = pq.read_table(io.BytesIO(TABLE))
    assert table.column("path").to_pylist() == [SHARD.path, "b"]
    assert table.column("class_counts").to_pylist() == [[1, 1], [3, 2**40]]
