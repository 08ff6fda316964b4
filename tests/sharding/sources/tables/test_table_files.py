"""What sources of tables share (`table_files.py`, `table_schemas.py`, `structs.py`), and `hive_partitions.py`."""

import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from ringfeed.sharding import SourceError
from ringfeed.sharding.compute import batches
from ringfeed.sharding.prepare import Drop, PrepareOptions, Rename, Select, Step
from ringfeed.sharding.prepare.open import open_prepared
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.tables import table_files as tables
from tests.helpers.contents import completed, labels
from tests.helpers.ipc_files import write_ipc_file, write_ipc_stream
from tests.servers.store import Store

ROWS = 600


WRITERS: dict[str, Callable[[pa.Table, Any], None]] = {
    "x.parquet": lambda table, path: pq.write_table(table, path, row_group_size=100),
    "x.arrow": write_ipc_file,
    "x.arrows": write_ipc_stream,
    "x.orc": lambda table, path: orc.write_table(table, path),
}
pytestmark = pytest.mark.parametrize("name", WRITERS)


@pytest.fixture
def plain(table: pa.Table) -> pa.Table:
    """Of types that all formats hold; ORC has no fixed-size lists."""
    rng = np.random.default_rng(1)
    return table.drop_columns(["vector"]).append_column(
        "list", pa.array([rng.normal(size=n).tolist() if n else None for n in rng.integers(0, 4, ROWS)])
    )


def test_all_records_are_read_in_order(name: str, tmp_path: Path, plain: pa.Table) -> None:
    WRITERS[name](plain, tmp_path / name)
    source = open_source(str(tmp_path), "label")
    assert completed(source) == completed(pickle.loads(pickle.dumps(source))) == plain.to_pylist()
    assert labels(source) == plain.column("label").to_pylist()
    assert source.sample(source.parts[0], 7).to_pylist() == plain.slice(0, 7).to_pylist()
    assert sum(len(batch) for part in source.parts for batch in open_source(str(tmp_path), None).labels(part)) == ROWS


def test_any_store_gives_the_same_records(name: str, store: Store, tmp_path: Path, plain: pa.Table) -> None:
    WRITERS[name](plain, tmp_path / "local")
    store.write_bytes(f"kind=a/{name}", (tmp_path / "local").read_bytes())
    source = open_source(store.url, "label")
    assert completed(source) == plain.append_column("kind", pa.array(["a"] * ROWS)).to_pylist()
    assert labels(source) == plain.column("label").to_pylist()
    assert source.sample(source.parts[0], 7).num_rows == 7


def test_batches_keep_within_their_bounds(
    name: str, tmp_path: Path, plain: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS[name](plain, tmp_path / name)
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    source = open_source(str(tmp_path), None)
    sizes = [batch.nbytes for part in source.parts for batch in source.drafts(part)]
    assert max(sizes) < 2500
    assert completed(source) == plain.to_pylist()


def test_the_order_and_nullability_of_columns_may_differ(name: str, tmp_path: Path) -> None:
    first = pa.table({"a": pa.array([1, 2]), "b": ["x", "y"]})
    second = pa.table([["z"], [3]], schema=pa.schema([pa.field("b", pa.string(), nullable=False), ("a", pa.int64())]))
    WRITERS[name](first, tmp_path / f"1{name}")
    WRITERS[name](second, tmp_path / f"2{name}")
    source = open_source(str(tmp_path), "b")
    assert completed(source) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
    assert labels(source) == ["x", "y", "z"]


def write_each(name: str, folder: Path, *columns: dict[str, Any]) -> str:
    for number, table in enumerate(columns, start=1):
        WRITERS[name](pa.table(table), folder / f"{number}{name}")
    return str(folder)


def test_columns_that_a_file_lacks_are_nulls(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    times = pa.array([7], pa.timestamp("us"))
    url = write_each(name, tmp_path, {"y": ["p"], "a": [1]}, {"b": times, "y": ["q"]}, {"c": [{"d": 2}]})
    source = open_source(url, "y")
    expected = [
        {"y": "p", "a": 1, "b": None, "c.d": None},
        {"y": "q", "a": None, "b": 7, "c.d": None},
        {"y": None, "a": None, "b": None, "c.d": 2},
    ]
    if name.endswith(".orc"):  # it holds nanoseconds
        expected[1]["b"] = 7000
    assert completed(source) == completed(pickle.loads(pickle.dumps(source))) == expected
    assert labels(source) == ["p", "q", None]
    assert isinstance(source, tables.TableSource)
    assert completed(source.narrow(["b"])) == [{"b": row["b"]} for row in expected]
    assert [source.sample(part, 5).to_pylist() for part in source.parts] == [[row] for row in expected]
    (warning,) = caplog.messages
    assert warning.startswith(
        "3 of 3 files lack columns that others have, and get nulls there: y, a, b, c.d (the first"
    )


@pytest.mark.parametrize("step", [Drop(("x",)), Select(("id", "y"))])
@pytest.mark.parametrize("other", [None, ["u"], [{"z": 1}]])
def test_what_the_first_steps_drop_may_differ(
    name: str, tmp_path: Path, step: Step, other: Any, caplog: pytest.LogCaptureFixture
) -> None:
    columns = [{"x": [1.5]}, {} if other is None else {"x": other}]
    url = write_each(name, tmp_path, *({"id": [i], "y": ["p"], **more} for i, more in enumerate(columns)))
    for steps in ((step,), (step, Rename((("id", "n"),)))):
        source = open_prepared(url, "y", "auto", PrepareOptions(steps=steps))
        assert [list(row.values()) for row in completed(source)] == [[0, "p"], [1, "p"]]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("one", "other", "dtype", "values"),
    [
        (pa.array([1], pa.int32()), pa.array([1 << 40]), "int64", [1, 1 << 40]),
        (pa.array([200], pa.int16()), pa.array([0.5], pa.float32()), "float32", [200, 0.5]),
        (pa.array([1.5], pa.float32()), pa.array([1e300]), "float64", [1.5, 1e300]),
        (pa.nulls(1), pa.array(["a"]), "string", [None, "a"]),
        (pa.array(["a"]), pa.array(["b"], pa.large_string()), "string", ["a", "b"]),
        (pa.array(["a"]), pa.array(["b"]).dictionary_encode(), "string", ["a", "b"]),
        (pa.array([1], pa.int8()).dictionary_encode(), pa.array([300], pa.int16()), "int16", [1, 300]),
        (pa.array([3], pa.timestamp("us")), pa.array([5], pa.timestamp("ns")), "int64", [3000, 5]),
        (pa.array([3], pa.time32("ms")), pa.array([5], pa.time64("us")), "int64", [3000, 5]),
        (pa.array([[1]], pa.list_(pa.int8())), pa.array([[300, 2]], pa.list_(pa.int16(), 2)), "int16", [[1], [300, 2]]),
    ],
)
@pytest.mark.parametrize("turn", [1, -1])
def test_types_that_differ_become_one_that_holds_both(
    name: str, tmp_path: Path, one: pa.Array, other: pa.Array, dtype: str, values: list[Any], turn: int
) -> None:
    if name.endswith(".orc"):
        pytest.skip("Arrow writes few of these types to ORC")
    url = write_each(name, tmp_path, *[{"x": one}, {"x": other}][::turn])
    source = open_source(url, None)
    assert source.schema["x"].dtype == dtype
    assert [row["x"] for row in completed(source)] == values[::turn]


def test_a_time_beyond_the_range_of_the_finer_unit_is_reported(name: str, tmp_path: Path) -> None:
    if name.endswith(".orc"):
        pytest.skip("it holds nanoseconds")
    far, near = pa.array([1 << 62], pa.timestamp("us")), pa.array([1], pa.timestamp("ns"))
    url = write_each(name, tmp_path, {"x": near}, {"x": far})
    with pytest.raises(SourceError, match=rf"2{name}: column 'x' as timestamp\[ns\], as other files need it: .*"):
        completed(open_source(url, None))


def test_types_without_a_common_one_are_refused_with_advice_that_works(name: str, tmp_path: Path) -> None:
    url = write_each(name, tmp_path, {"a": [1]}, {"a": ["x"]})
    told = rf"2{name}: column 'a' is string here and int64 in .*1{name}; read all as one type with --cast a=string, or"
    with pytest.raises(SourceError, match=told):
        open_source(url, None)
    assert completed(open_source(url, None, casts=given(a=("string",)))) == [{"a": "1"}, {"a": "x"}]


def test_advice_for_types_that_no_cast_unites_names_none(name: str, tmp_path: Path) -> None:
    url = write_each(name, tmp_path, {"a": [1]}, {"a": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(SourceError, match=r"int64 in .*; leave it out with the first --drop-columns or --select$"):
        open_source(url, None)


def given(**features: Any) -> dict[str, Feature]:
    return {key: Feature(name=key, dtype=dtype, shape=tuple(shape)) for key, (dtype, *shape) in features.items()}


MATRICES = pa.array([[[1, 2], [3, 4]], None, [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.int16())))
PRICES = pa.array([Decimal("1.25"), None, Decimal("0.10")], pa.decimal128(9, 2))


def test_unsupported_columns_are_read_as_the_declared_types(name: str, tmp_path: Path) -> None:
    WRITERS[name](pa.table({"m": MATRICES, "p": PRICES, "y": PRICES}), tmp_path / name)
    features = given(m=("int64", 2, 2), p=("float64",), y=("string",))
    source = open_source(str(tmp_path), "y", features=features)
    assert source.schema.features == tuple(features.values())
    assert completed(source) == [
        {"m": [1, 2, 3, 4], "p": 1.25, "y": "1.25"},
        {"m": None, "p": None, "y": None},
        {"m": [5, 6, 7, 8], "p": 0.1, "y": "0.10"},
    ]
    assert labels(source) == ["1.25", None, "0.10"]


def test_files_of_different_types_are_read_as_the_declared_type(name: str, tmp_path: Path) -> None:
    for number, values in enumerate([pa.array([1], pa.int8()), pa.array([1 << 53], pa.int64()), pa.array([0.5])]):
        WRITERS[name](pa.table({"x": values}), tmp_path / f"{number}{name}")
    with pytest.raises(
        SourceError, match=r"'x' is double here and int8 in .*; read all as one type with --cast x=float64, or"
    ):
        open_source(str(tmp_path), None)
    source = open_source(str(tmp_path), None, features=given(x=("float64",)))
    assert completed(source) == [{"x": 1.0}, {"x": float(1 << 53)}, {"x": 0.5}]


@pytest.mark.parametrize(
    ("column", "dtype", "told"),
    [
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), ("int64",), "Rescaling"),
        (pa.array([Decimal((1 << 53) + 1)], pa.decimal128(19, 0)), ("float64",), "value .* does not fit"),
        (MATRICES, ("int16", 4, 1), r"a value is not of shape \[4, 1\]"),
        (pa.array([[[1, 2], [3]]]), ("int64", 2, 2), r"a value is not of shape \[2, 2\]"),
        (pa.array([[[1, 2], None]]), ("int64", 2, 2), r"a value is not of shape \[2, 2\]"),
        (pa.array([[[300]]]), ("int8", 1, 1), "not in range"),
    ],
)
def test_a_value_that_does_not_fit_its_declared_type_is_reported(
    name: str, tmp_path: Path, column: pa.Array, dtype: tuple[Any, ...], told: str
) -> None:
    WRITERS[name](pa.table({"x": column}), tmp_path / name)
    source = open_source(str(tmp_path), None, features=given(x=dtype))
    with pytest.raises(SourceError, match=f"{name}: column 'x' as {dtype[0]}: .*{told}"):
        completed(source)


@pytest.mark.parametrize(
    ("column", "shape"),
    [
        (pa.array([[1e300]], pa.large_list(pa.float64())), (None,)),
        (pa.array(["1e40"], pa.large_string()), ()),
        (pa.array([b"1e40"], pa.large_binary()), ()),
        (pa.array([1e300]).dictionary_encode(), ()),
    ],
)
def test_a_declared_type_holds_in_columns_of_every_layout(
    name: str, tmp_path: Path, column: pa.Array, shape: tuple[None, ...]
) -> None:
    if name.endswith(".orc"):
        pytest.skip("Arrow writes no such types to ORC")
    zero = pa.scalar([0] if shape else 0, pa.list_(pa.float32()) if shape else pa.float32())
    WRITERS[name](pa.table({"x": pa.repeat(zero, 1)}), tmp_path / f"0{name}")
    WRITERS[name](pa.table({"x": column}), tmp_path / f"1{name}")
    source = open_source(str(tmp_path), None, features={"x": Feature(name="x", dtype="float32", shape=shape)})
    with pytest.raises(SourceError, match=rf"1{name}: column 'x' as float32: value .*1e\+?\d+.* does not fit"):
        completed(source)


NESTED = [{"a": 1, "b": {"c": "x", "d": [1.5]}}, None, {"a": None, "b": None}, {"a": 4, "b": {"c": None, "d": []}}]


def test_fields_of_structs_are_columns(name: str, tmp_path: Path) -> None:
    WRITERS[name](pa.table({"y": ["p", "q"] * 2, "s": NESTED}), tmp_path / name)
    source = open_source(str(tmp_path / name), "s.b.c")
    assert source.schema.names == ("y", "s.a", "s.b.c", "s.b.d")
    assert completed(source) == [
        {"y": "p", "s.a": 1, "s.b.c": "x", "s.b.d": [1.5]},
        {"y": "q", "s.a": None, "s.b.c": None, "s.b.d": None},
        {"y": "p", "s.a": None, "s.b.c": None, "s.b.d": None},
        {"y": "q", "s.a": 4, "s.b.c": None, "s.b.d": []},
    ]
    assert labels(source) == ["x", None, None, None]
    assert isinstance(source, tables.TableSource)
    assert completed(source.narrow(["s.a"])) == [{"s.a": value} for value in (1, None, None, 4)]
    assert source.sample(source.parts[0], 1).to_pylist() == completed(source)[:1]


def test_any_struct_can_be_left_out_by_name(name: str, tmp_path: Path) -> None:
    odd = pa.array([Decimal(1)] * 4)
    WRITERS[name](
        pa.table({"y": ["p", "q"] * 2, "s": NESTED, "t": pa.StructArray.from_arrays([odd], ["m"])}), tmp_path / name
    )
    assert "t.m" in open_source(str(tmp_path / name), "y").schema.names
    for steps in (
        [Drop(("s", "t"))], [Drop(("t", "s.a", "s.b.c", "s.b.d"))], [Drop(("t", "s.b", "s.a"))], [Select(("y",))],
    ):  # fmt: skip
        source = open_prepared(str(tmp_path / name), "y", "auto", PrepareOptions(steps=tuple(steps)))
        assert completed(source) == [{"y": value} for value in ["p", "q"] * 2]


def test_a_struct_is_selected_by_its_name(name: str, tmp_path: Path) -> None:
    WRITERS[name](pa.table({"y": ["p", "q"] * 2, "s": NESTED, "sa": [7] * 4}), tmp_path / name)
    for columns, names in (
        (("s", "y"), ["s.a", "s.b.c", "s.b.d", "y"]),
        (("y", "s.b"), ["y", "s.b.c", "s.b.d"]),
        (("s.b.d", "s"), ["s.b.d", "s.a", "s.b.c"]),
    ):
        source = open_prepared(str(tmp_path / name), None, "auto", PrepareOptions(steps=(Select(columns),)))
        assert list(source.schema.names) == names
        assert [list(row) for row in completed(source)] == [names] * 4
        assert [row["s.b.d"] for row in completed(source)] == [[1.5], None, None, []]
    steps: tuple[Step, ...] = (Rename((("y", "z"),)), Drop(("s", "sa")))
    source = open_prepared(str(tmp_path / name), None, "auto", PrepareOptions(steps=steps))
    assert completed(source) == [{"z": value} for value in ["p", "q"] * 2]


def test_nested_lists_are_columns_of_lists(name: str, tmp_path: Path) -> None:
    box = pa.struct([("class", pa.string()), ("corners", pa.list_(pa.float32()))])
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "boxes": (
            [
                [{"class": "a", "corners": [1, 2]}, {"class": "b", "corners": []}],
                None,
                [],
                [{"class": "c", "corners": [3]}],
            ],
            pa.list_(box),
        ),
        "tags": ([[("x", 1), ("y", 2)], [], None, [("z", None)]], pa.map_(pa.string(), pa.int64())),
        "words": ([[["p"], [], ["q", "r"]], [[]], [], None], pa.list_(pa.list_(pa.string()))),
    }
    WRITERS[name](pa.table({"y": range(4)} | {k: pa.array(*column) for k, column in columns.items()}), tmp_path / name)
    source = open_source(str(tmp_path / name), None, features=given(unrelated=("int8", 2)))
    assert completed(source) == [
        {
            "y": 0, "boxes.class": ["a", "b"], "boxes.corners.values": [1, 2], "boxes.corners.lengths": [2, 0],
            "tags.key": ["x", "y"], "tags.value": [1, 2], "words.values": ["p", "q", "r"], "words.lengths": [1, 0, 2],
        },
        {
            "y": 1, "boxes.class": None, "boxes.corners.values": None, "boxes.corners.lengths": None,
            "tags.key": [], "tags.value": [], "words.values": [], "words.lengths": [0],
        },
        {
            "y": 2, "boxes.class": [], "boxes.corners.values": [], "boxes.corners.lengths": [],
            "tags.key": None, "tags.value": None, "words.values": [], "words.lengths": [],
        },
        {
            "y": 3, "boxes.class": ["c"], "boxes.corners.values": [3], "boxes.corners.lengths": [1],
            "tags.key": ["z"], "tags.value": [None], "words.values": None, "words.lengths": None,
        },
    ]  # fmt: skip
    assert isinstance(source, tables.TableSource)
    assert completed(source.narrow(["tags.key"])) == [{"tags.key": keys} for keys in (["x", "y"], [], None, ["z"])]
    kept = open_prepared(
        str(tmp_path / name), None, "auto", PrepareOptions(steps=(Drop(("tags", "words", "boxes.corners")),))
    )
    assert kept.schema.names == ("y", "boxes.class")


def test_an_inner_list_that_is_missing_has_no_length(name: str, tmp_path: Path) -> None:
    WRITERS[name](pa.table({"x": [[[1], None], [None], None, [[], [2, None]]]}), tmp_path / name)
    assert completed(open_source(str(tmp_path / name), None)) == [
        {"x.values": [1], "x.lengths": [1, None]},
        {"x.values": [], "x.lengths": [None]},
        {"x.values": None, "x.lengths": None},
        {"x.values": [2, None], "x.lengths": [0, 2]},
    ]


def test_files_whose_structs_differ_are_refused(name: str, tmp_path: Path) -> None:
    for folder, column in (("a", pa.array([1])), ("b", pa.array([{"x": 1}]))):
        (tmp_path / folder).mkdir()
        WRITERS[name](pa.table({"s" if folder == "b" else "s.x": column}), tmp_path / folder / name)
    with pytest.raises(
        SourceError, match=rf"b/{name}: its structs differ from the structs of .*a/{name}; write both alike"
    ):
        open_source(str(tmp_path), None)


def test_all_unsupported_columns_are_named(name: str, tmp_path: Path) -> None:
    WRITERS[name](pa.table({"p": PRICES, "q": PRICES, "y": [1, 2, 3]}), tmp_path / name)
    with pytest.raises(
        SourceError, match=r"'p' has type decimal128.* \(nor can any hold 'q'\); .* with --cast \(decimals"
    ):
        open_source(str(tmp_path), "y", features=given(p=("binary", 3), q=("int16", 4)))


class TestPartitions:
    def write(self, name: str, folder: Path, *keys: str) -> str:
        for i, key in enumerate(keys):
            (folder / key).mkdir(parents=True)
            WRITERS[name](pa.table({"id": [2 * i, 2 * i + 1]}), folder / key / name)
        return str(folder)

    def test_folders_make_columns(self, name: str, tmp_path: Path) -> None:
        url = self.write(name, tmp_path, "year=2023/city=K%C3%B6ln", "year=2024/city=__HIVE_DEFAULT_PARTITION__")
        expected = [{"id": i, "year": 2023 + i // 2, "city": "Köln" if i < 2 else None} for i in range(4)]
        assert completed(open_source(url, None)) == expected
        assert completed(open_source(f"{url}/year=2*/*/x.*", None)) == expected
        assert completed(open_source(f"{url}/year=20*", None)) == expected
        assert completed(open_source(f"{url}/year=*3", None)) == expected[:2]
        assert completed(open_source(f"{url}/year=2023", None)) == [{"id": i, "city": "Köln"} for i in range(2)]
        assert completed(open_source(f"{url}/year=2023/city=K%C3%B6ln/{name}", None)) == [{"id": 0}, {"id": 1}]

    def test_a_key_is_a_label_that_needs_no_record(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = open_source(self.write(name, tmp_path, "month=02", "month=1"), "month")
        monkeypatch.setattr(type(source), "read", None)
        assert labels(source) == [2, 2, 1, 1]

    def test_values_are_integers_only_if_all_are(self, name: str, tmp_path: Path) -> None:
        source = open_source(self.write(name, tmp_path, "v=1", "v=1.5", "v=99999999999999999999"), None)
        assert [row["v"] for row in completed(source)] == ["1.5", "1.5", "1", "1", *["99999999999999999999"] * 2]

    def test_two_spellings_of_a_number_and_declared_text_are_text(self, name: str, tmp_path: Path) -> None:
        url = self.write(name, tmp_path, "zip=01234", "zip=1234")
        assert [row["zip"] for row in completed(open_source(url, None))] == ["01234"] * 2 + ["1234"] * 2
        features = {"zip": Feature(name="zip", dtype="string")}
        assert [row["zip"] for row in completed(open_source(f"{url}/zip=0*", None, features=features))] == ["01234"] * 2

    def test_values_that_are_not_utf8_stay_different(self, name: str, tmp_path: Path) -> None:
        source = open_source(self.write(name, tmp_path, "v=%fe", "v=%ff", "v=%zz"), None)
        assert [row["v"] for row in completed(source)] == ["%fe", "%fe", "%ff", "%ff", "%zz", "%zz"]

    def test_different_keys_are_refused(self, name: str, tmp_path: Path) -> None:
        url = self.write(name, tmp_path, "a=1", "b=1")
        with pytest.raises(SourceError, match=r"partition keys \(b\), but .*a=1.* names \(a\)"):
            open_source(url, None)

    def test_a_column_of_some_files_beside_a_key_is_refused(self, name: str, tmp_path: Path) -> None:
        url = self.write(name, tmp_path, "k=1", "k=2")
        WRITERS[name](pa.table({"id": [9], "k": [3]}), tmp_path / "k=2" / name)
        with pytest.raises(SourceError, match=rf"k=1/{name} has no column 'k', but other files have one beside"):
            open_source(url, None)

    def test_a_column_of_the_files_must_have_the_value_of_the_key(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="its column 'id' holds 0, and its folder is called id=7"):
            completed(open_source(self.write(name, tmp_path, "id=7"), "id"))


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "half"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path, plain: pa.Table, damage: str) -> None:
    WRITERS[name](plain, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    damages = {"empty": b"", "text": b"hello, I am no table", "cut": data[:-10], "half": data[: len(data) // 2]}
    (tmp_path / name).write_bytes(damages[damage])
    with pytest.raises(SourceError, match=rf"{name}: .*the file is damaged or not "):
        open_source(str(tmp_path), "label")


def test_inner_damage_is_found_or_harmless(name: str, tmp_path: Path, plain: pa.Table) -> None:
    WRITERS[name](plain, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(40):
        damaged = bytearray(data)
        place = int(rng.integers(len(data) - 16))
        damaged[place : place + 16] = rng.bytes(16)
        (tmp_path / name).write_bytes(damaged)
        try:
            completed(open_source(str(tmp_path), "label"))
        except SourceError:
            found += 1
    assert found > 0


def test_text_that_is_not_utf8_is_refused(name: str, tmp_path: Path) -> None:
    WRITERS[name](pa.table({"s": ["grün", "blau"], "label": ["a", "b"]}), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    if "grün".encode() not in data:
        pytest.skip("compressed: see the damage within")
    (tmp_path / name).write_bytes(data.replace("grün".encode(), b"gr\xff\xffn"))
    with pytest.raises(SourceError, match=rf"{name}: .*Invalid UTF8"):
        completed(open_source(str(tmp_path), "label"))
