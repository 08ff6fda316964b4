"""Parquet footers that contradict themselves or the columns, and folders that contradict the files."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import RingfeedError, SourceError, build
from ringfeed.sharding.sources import open_source
from tests.helpers.contents import records


def zigzag(number: int) -> bytes:
    number, out = ((number << 1) ^ (number >> 63)) & (1 << 64) - 1, b""
    while number >= 128:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def forge(path: Path, change: Callable[[bytes], bytes], rows: int = 1000, damage: bool = False) -> str:
    """Write a file of `rows` rows with a changed footer."""
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"a": pa.array(range(rows), pa.int32())}, schema=schema), path, store_schema=False, **plain)
    data = path.read_bytes()
    (size,) = struct.unpack("<I", data[-8:-4])
    head, foot = data[: -8 - size], change(data[-8 - size : -8])
    if damage:
        head = b"PAR1" + b"\xff" * 40 + head[44:]
    path.write_bytes(head + foot + struct.pack("<I", len(foot)) + b"PAR1")
    return str(path)


def counts(*new: int | None) -> Callable[[bytes], bytes]:
    """Replace the footer's counts of 1000: of the file, of the column's values, of the row group; None keeps one."""

    def change(foot: bytes) -> bytes:
        old = b"\x16" + zigzag(1000)
        pieces = foot.split(old)
        assert len(pieces) == 4
        marks = [b"\x16" + zigzag(1000 if value is None else value) for value in new]
        return b"".join(piece + mark for piece, mark in zip(pieces, [*marks, b""], strict=True))

    return change


@pytest.mark.parametrize(
    "new",
    [(None, None, 500), (None, None, -1), (None, 0, None), (500, None, None), (-1, None, None), (2000, 1000, 2000),
     (10**9, None, 10**9), (500, 500, 500), (None, -1, None)],
)  # fmt: skip
@pytest.mark.parametrize("bad", ["fail", "skip:2"])
def test_contradicting_counts_are_refused(tmp_path: Path, new: tuple[int | None, ...], bad: str) -> None:
    path = forge(tmp_path / "a.parquet", counts(*new))
    if new == (500, 500, 500):  # a consistent footer of fewer rows
        assert build(source=path, destination=str(tmp_path / "out")).records == 500
        return
    with pytest.raises(RingfeedError, match=r"a\.parquet"):
        build(source=path, destination=str(tmp_path / "out"), on_bad_record=bad)
    assert not (tmp_path / "out").exists()


def test_a_wrong_count_that_no_reader_needs_changes_nothing(tmp_path: Path) -> None:
    path = forge(tmp_path / "a.parquet", counts(None, 500, None))
    assert [row["a"] for row in records(open_source(path, None))] == list(range(1000))


def test_damage_that_claims_many_rows_is_refused_without_a_loop_over_them(tmp_path: Path) -> None:
    path = forge(tmp_path / "a.parquet", counts(*[10**12] * 3), damage=True)
    with pytest.raises(RingfeedError, match="damaged"):
        build(source=path, destination=str(tmp_path / "out"))


def test_keys_of_maps_may_be_of_type_null(tmp_path: Path) -> None:
    kind = pa.map_(pa.string(), pa.int32())
    table = pa.table({"x": pa.array([1, 2], pa.int32()), "m": pa.array([[], []], kind)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, compression="none", store_schema=False, write_statistics=False)
    data = path.read_bytes()
    (size,) = struct.unpack("<I", data[-8:-4])
    head, foot = data[: -8 - size], data[-8 - size : -8]
    at = foot.index(b"\x1c\x00\x00", foot.index(b"key"))  # the logical type STRING becomes UNKNOWN
    path.write_bytes(head + foot[:at] + b"\xbc" + foot[at + 1 :] + data[-8:])
    with pytest.raises(SourceError, match=r"'m\.key' has type list<.*null>"):
        open_source(str(path), None)


@pytest.mark.parametrize(
    ("key", "values", "agrees"),
    [
        ("5", pa.array([5, 5], pa.int32()), True),
        ("05", pa.array([5, 5], pa.int64()), True),
        ("5", pa.array(["5", "5"]), True),
        ("x", pa.array(["x", "x"]).dictionary_encode(), True),
        ("2024-01-01", pa.array(["2024-01-01"] * 2).cast(pa.date32()), True),
        ("__HIVE_DEFAULT_PARTITION__", pa.array([None, None], pa.int32()), True),
        ("5", pa.array([5, 1], pa.int32()), False),
        ("5", pa.array([5, None], pa.int32()), False),
        ("x", pa.array([5, 5], pa.int32()), False),
        ("05", pa.array(["5", "5"]), False),
        ("__HIVE_DEFAULT_PARTITION__", pa.array([None, 1], pa.int32()), False),
    ],
)
def test_a_key_and_a_column_of_one_name_must_agree(tmp_path: Path, key: str, values: pa.Array, agrees: bool) -> None:
    (tmp_path / f"a={key}").mkdir()
    pq.write_table(pa.table({"a": values, "b": [1, 2]}), tmp_path / f"a={key}" / "x.parquet")
    source = open_source(str(tmp_path), None)
    if agrees:
        assert [row["b"] for row in records(source)] == [1, 2]
    else:
        with pytest.raises(SourceError, match=r"x\.parquet: its column 'a' holds .*, and its folder is called a="):
            list(records(source))
