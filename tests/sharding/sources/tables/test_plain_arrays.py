"""Arrow's other encodings (`plain_arrays.py`), decimals (`decimals.py`), nulls in lists, and old Arrow streams."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import RingfeedError, SourceError, build
from ringfeed.sharding.prepare import PrepareOptions, parse_step
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.tables.plain_arrays import plain_batch
from tests.helpers.contents import records

LISTS = [[1, 2], [3], None, [], [4], [5, 6, 7]]
TEXTS = ["a", "a", "b", None, "b", "b"]
PLAIN = {
    "list view": pa.array(LISTS, pa.list_view(pa.int64())),
    "large list view": pa.array(LISTS, pa.large_list_view(pa.int64())),
    "list of views": pa.array([[x] for x in LISTS], pa.list_(pa.list_view(pa.int8()))),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 6], pa.int32()), pa.array([5, None, 6])),
    "runs of text": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 6], pa.int16()), pa.array(["a", "b", "c"])),
    "runs of lists": pa.RunEndEncodedArray.from_arrays(pa.array([2, 6], pa.int32()), pa.array([[1], [2, 3]])),
    "dictionary of lists": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0, 1, 1]), pa.array([[1, 2], [3]])),
    "dictionary of structs": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0, 0, 1, 1]), pa.array([{"a": 1}, {"a": 2}])
    ),
    "list of dictionary": pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 3, 3, 4, 6], pa.int32()), pa.array(TEXTS).dictionary_encode()
    ),
    "list of structs of dictionary": pa.ListArray.from_arrays(
        pa.array([0, 2, 3, 3, 3, 4, 6], pa.int32()),
        pa.StructArray.from_arrays([pa.array(TEXTS).dictionary_encode()], ["q"]),
    ),
    "pairs of dictionary": pa.FixedSizeListArray.from_arrays(pa.array(["a", "b"] * 6).dictionary_encode(), 2),
    "struct of runs": pa.StructArray.from_arrays(
        [pa.RunEndEncodedArray.from_arrays(pa.array([2, 6], pa.int32()), pa.array([5, 6]))],
        ["q"],
        mask=pa.array([False, True, False, False, True, False]),
    ),
    "pairs of views": pa.array(
        [[[1], [2]], None, [[], [3]], [[4], None], [[5], [6]], None], pa.list_(pa.list_view(pa.int64()), 2)
    ),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("part", [slice(0, 6), slice(1, 5), slice(2, 3), slice(0, 0)])
def test_plain_arrays_hold_the_same_values(name: str, part: slice) -> None:
    column = PLAIN[name].slice(part.start, part.stop - part.start)
    found = plain_batch(pa.record_batch({"x": column}))
    found.validate(full=True)
    assert found["x"].to_pylist() == PLAIN[name].to_pylist()[part]


@given(st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4), max_size=20), st.integers(0, 20))
def test_views_are_read_in_any_slice(values: list[Any], start: int) -> None:
    found = plain_batch(pa.record_batch({"x": pa.array(values, pa.list_view(pa.int64())).slice(start)}))
    found.validate(full=True)
    assert found["x"].to_pylist() == values[start:]


def write(path: Path, table: pa.Table, *, stream: bool = False, legacy: bool = False) -> str:
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=4)
    return str(path)


@pytest.mark.parametrize(
    "name", ["list view", "runs of text", "runs", "dictionary of lists", "list of dictionary", "pairs of dictionary"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_ipc_files_may_hold_them(name: str, tmp_path: Path, stream: bool) -> None:
    path = write(tmp_path / "a.arrow", pa.table({"x": PLAIN[name]}), stream=stream)
    assert [row["x"] for row in records(open_source(path, None))] == PLAIN[name].to_pylist()


@pytest.mark.parametrize("name", ["list of dictionary", "pairs of dictionary"])
def test_parquet_files_of_arrow_may_hold_categories_in_lists(name: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": PLAIN[name], "n": range(6)}), tmp_path / "a.parquet", row_group_size=4)
    assert [row["x"] for row in records(open_source(str(tmp_path / "a.parquet"), None))] == PLAIN[name].to_pylist()


@pytest.mark.parametrize(
    "name", ["list view", "runs of text", "dictionary of lists", "struct of runs", "pairs of dictionary"]
)
def test_records_in_memory_may_hold_them(name: str, tmp_path: Path) -> None:
    table = pa.table({"x": PLAIN[name], "y": [0, 1] * 3})
    assert build(source=table, destination=str(tmp_path / "out"), label="y").records == 6


@pytest.mark.parametrize("dense", [False, True])
def test_unions_are_refused_by_name(tmp_path: Path, dense: bool) -> None:
    children, which = [pa.array([1, 2]), pa.array(["a", "b"])], pa.array([0, 1], pa.int8())
    column = (
        pa.UnionArray.from_dense(which, pa.array([0, 1], pa.int32()), children)
        if dense
        else pa.UnionArray.from_sparse(which, children)
    )
    with pytest.raises(SourceError, match=r"column 'u' has type .*_union.*drop_columns\(\['u'\]\)"):
        build(source=pa.table({"u": column}), destination=str(tmp_path / "out"))


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_old_streams_are_read_and_cut_ones_refused(tmp_path: Path, rows: int) -> None:
    path = Path(
        write(tmp_path / "a.arrow", pa.table({"x": pa.array(range(rows), pa.int64())}), stream=True, legacy=True)
    )
    whole = path.read_bytes()
    assert [row["x"] for row in records(open_source(str(path), None))] == list(range(rows))
    for size in range(len(whole) - 1, 4, -1):
        path.write_bytes(whole[:size])
        with pytest.raises(RingfeedError):
            list(records(open_source(str(path), None)))


DECIMALS: list[tuple[pa.DataType, list[str], list[Any]]] = [
    (pa.decimal128(18, 0), ["1", "-3", "999999999999999999"], [1, -3, 999999999999999999]),
    (pa.decimal128(10, 2), ["1.50", "-3", "12345678.91"], [1.5, -3.0, 12345678.91]),
    (pa.decimal128(15, 15), ["0.123456789012345", "0", "-0.1"], [0.123456789012345, 0.0, -0.1]),
    (pa.decimal128(38, 9), ["12345678901234567.123456789", "2"], ["12345678901234567.123456789", "2.000000000"]),
    (pa.decimal256(40, 0), ["1", "2", "3"], ["1", "2", "3"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "texts", "expected"), DECIMALS)
def test_decimals_lose_nothing(kind: pa.DataType, texts: list[str], expected: list[Any], tmp_path: Path) -> None:
    values = pa.array([Decimal(text) for text in texts], kind)
    table = pa.table({"x": values, "s": pa.StructArray.from_arrays([values], ["d"])})
    found = list(records(open_source(write(tmp_path / "a.arrow", table), None)))
    assert [row["x"] for row in found] == [row["s.d"] for row in found] == expected
    assert [Decimal(str(row["x"])) for row in found] == values.to_pylist()


@given(st.decimals(-(10**9), 10**9, places=6))
def test_fifteen_digits_survive_as_float64(value: Decimal) -> None:
    assert Decimal(repr(float(value))) == value


@pytest.mark.parametrize(
    ("values", "fill", "expected"),
    [
        ([[1, None], None, [None], []], "-1", [[1, -1], None, [-1], []]),
        ([[1.5, None], [2.5]], "0.5", [[1.5, 0.5], [2.5]]),
        ([["a", None], ["b"]], "?", [["a", "?"], ["b"]]),
        (pa.array([[1, None], None, [3, 4]], pa.list_(pa.int64(), 2)), "7", [[1, 7], None, [3, 4]]),
    ],
)
def test_nulls_in_lists_are_filled(values: Any, fill: str, expected: list[Any]) -> None:
    batch = pa.record_batch({"x": values})
    found = parse_step("--fill-nulls", f"x={fill}", "").apply(batch)
    assert found["x"].to_pylist() == expected
    assert parse_step("--fill-nulls", f"x={fill}", "").apply(batch.slice(1))["x"].to_pylist() == expected[1:]


def test_a_build_names_the_remedy_for_nulls_in_lists(tmp_path: Path) -> None:
    table = pa.table({"x": [[1, None], [2]], "y": [0, 0]})
    with pytest.raises(SourceError, match="--mask-nulls x, fill them with --fill-nulls x=VALUE"):
        build(source=table, destination=str(tmp_path / "out"), label="y")
    prepare = PrepareOptions(steps=(parse_step("--fill-nulls", "x=0", ""),))
    assert build(source=table, destination=str(tmp_path / "out"), label="y", prepare=prepare).records == 2
