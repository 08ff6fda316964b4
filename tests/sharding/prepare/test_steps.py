"""Steps from end to end (also `open`, `prepared_source`, `casts`, `user_map`): equal to preparing in Arrow first."""

import pickle
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import Loader
from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    ConfigError,
    Feature,
    SourceError,
    append,
    build,
    open_dataset,
    plan_build,
    read_records,
    verify,
)
from ringfeed.sharding.compute import batches as batch_limits
from ringfeed.sharding.prepare import (
    Cast,
    Drop,
    DropNulls,
    FillNulls,
    Filter,
    MapBatches,
    MaskNulls,
    PreparedSource,
    PrepareOptions,
    Rename,
    Select,
    Step,
    open_prepared,
)
from ringfeed.sharding.sources import Source, open_source
from tests.helpers.builds import built
from tests.helpers.contents import completed
from tests.helpers.files import all_files, contents

FUNCTIONS = """
import pyarrow as pa
import pyarrow.compute as pc

def double(batch):
    return batch.append_column("twice", pc.multiply(batch.column("price"), 2.0))

def label_it(batch):
    return batch.append_column("made", pc.if_else(pc.greater(batch.column("price"), 0.0), "up", "down"))

def explode(batch):
    return pa.concat_batches([batch, batch]).slice(1)

def forget_metadata(batch):
    return pa.RecordBatch.from_pydict({name: batch.column(name) for name in reversed(batch.schema.names)})

def fails(batch):
    raise KeyError("prise")

def fails_late(batch):
    if batch.column("id")[0].as_py():
        raise ValueError("no\\nsuch")
    return batch

def other_type(batch):
    first = batch.column("id")[0].as_py() == 0
    return pa.RecordBatch.from_pydict({"id": batch.column("id").cast(pa.int64() if first else pa.int32())})

def other_names(batch):
    first = batch.column("id")[0].as_py() == 0
    return batch.rename_columns([("x" if first else "y"), *batch.schema.names[1:]])

def a_table(batch):
    return pa.table({"x": [1]})

def all_null(batch):
    return batch.append_column("n", pa.nulls(batch.num_rows))

def nothing_at_all(batch):
    return batch.select([])

def times(batch):
    return batch.append_column("at", pc.cast(batch.column("id"), pa.timestamp("s")))

def exits(batch):
    raise SystemExit(3)

def takes_nothing():
    pass

def few_words(batch):
    words = [["a", "b"] if number == 0 else [] for number in batch["id"].to_pylist()]
    return pa.RecordBatch.from_pydict({"words": words})

def wanders(batch):
    import os
    os.chdir("/")
    return batch

def bytes_as_text(batch):
    return batch.append_column("t", pa.array([b"\\xff"] * batch.num_rows).view(pa.string()))
"""


@pytest.fixture
def functions(tmp_path: Path) -> str:
    (tmp_path / "user_functions.py").write_text(FUNCTIONS)
    return str(tmp_path)


def source_of(path: str, *steps: Step, label: str | None = None, **options: Any) -> Source:
    return open_prepared(path, label, "auto", PrepareOptions(steps=steps, **options))


def read(source: Source) -> pa.Table:
    """All records, completed. Labels must be those that the records have, and batches within their bounds."""
    batches: list[pa.RecordBatch] = []
    labels: list[Any] = []
    for part in source.parts:
        labels += [value for batch in source.labels(part) for value in batch.to_pylist()]
        for draft in source.drafts(part):
            assert 0 < draft.num_rows <= batch_limits.BATCH_ROWS
            batches.append(source.complete(draft))
    table = pa.Table.from_batches(batches, source.schema.arrow)
    label = source.schema.label
    assert labels == (table.column(label).to_pylist() if label else [None] * len(table))
    assert pickle.loads(pickle.dumps(source)) == source
    return table


def files(folder: Path) -> dict[str, bytes]:
    """The shards and their indexes: dataset.json, and its copy in the shard table, tell of the source."""
    return {p.name: p.read_bytes() for p in all_files(folder) if "-of-" in p.name}


def test_floats_of_64_bits_are_rounded_to_32_also_in_an_append(tmp_path: Path) -> None:
    """The first text is 1 as float64 rounded to float32, but not as float32; the label, of whole floats, is exact."""
    texts = ("1.00000005960464483", "0.1", "3", "-2.5")
    rows = [f"{i},{texts[i % 4]},{16777216 + i % 2}.0" for i in range(8)]
    (tmp_path / "x.csv").write_text("\n".join(["id,x,y", *rows, ""]))
    (tmp_path / "more.csv").write_text("\n".join(["id,x,y", *rows[:2], ""]))
    (tmp_path / "whole.csv").write_text("id,x,y\n10,1,16777216.0\n11,2,16777217.0\n")
    out = str(tmp_path / "out")
    dataset = built(str(tmp_path / "x.csv"), out, label="y", shards=1, prepare=PrepareOptions(float32=True))
    rounded = {i: (float(np.float32(float(texts[i % 4]))), 16777216 + i % 2) for i in range(8)}
    assert dataset.manifest.schema["x"].dtype == "float32"
    assert {row["id"]: (row["x"], row["y"]) for row in read_records(dataset, "train", 10)} == rounded
    for name in ("more", "whole"):
        append(AppendOptions(source=str(tmp_path / f"{name}.csv"), destination=out, min_class_records=1))
    found = [(row["id"], row["x"]) for row in read_records(open_dataset(out), "train", 20)]
    expected = [*((i, x) for i, (x, _) in rounded.items()), *((i, rounded[i][0]) for i in (0, 1)), (10, 1.0), (11, 2.0)]
    assert sorted(found) == sorted(expected)


def test_a_float_beyond_32_bits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big.csv").write_text("x\n1e300\n")
    with pytest.raises(SourceError, match=r"--float32: column 'x': .*1e\+300"):
        built(str(tmp_path / "big.csv"), tmp_path / "big", min_class_records=1, prepare=PrepareOptions(float32=True))


# --- a prepared build is the build of what was prepared ----------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 40))
    some = st.lists(st.one_of(st.none(), st.integers(-100, 100)), min_size=rows, max_size=rows)
    floats = st.lists(st.one_of(st.none(), st.floats(width=32)), min_size=rows, max_size=rows)
    words = st.lists(st.sampled_from(["a", "b", None]), min_size=rows, max_size=rows)
    return pa.table(
        {
            "i": pa.array(draw(some), pa.int16()),
            "f": pa.array(draw(floats), pa.float64()),
            "s": pa.array(draw(words), pa.string()),
            "y": pa.array(range(rows), pa.int64()),
        }
    )


STEPS: dict[str, tuple[list[Step], Any]] = {
    "filter": ([Filter("i > 0 or s is null")], lambda t: t.filter((pc.field("i") > 0) | pc.field("s").is_null())),
    "drop nulls of a column": ([DropNulls(("i",))], lambda t: t.filter(pc.field("i").is_valid())),
    "drop all nulls": ([DropNulls()], lambda t: t.drop_null()),
    "fill and cast": (
        [FillNulls((("i", "7"), ("s", "x"))), Cast((("i", "float32"), ("f", "float32")))],
        lambda t: pa.table(
            {
                "i": t["i"].fill_null(7).cast(pa.float32()),
                "f": t["f"].cast(pa.float32()),
                "s": t["s"].fill_null("x"),
                "y": t["y"],
            }
        ),
    ),
    "swap names, then filter by the new": (
        [Rename((("i", "y"), ("y", "i"))), Filter("i >= 3"), Select(("y", "f"))],
        lambda t: t.filter(pc.field("y") >= 3).select(["i", "f"]).rename_columns(["y", "f"]),
    ),
    "drop columns": ([Drop(("f", "s"))], lambda t: t.drop_columns(["f", "s"])),
}


@pytest.mark.parametrize("name", STEPS)
@settings(max_examples=15)  # each builds twice
@given(table=tables(), row_group=st.integers(1, 40))
def test_a_prepared_build_equals_a_build_of_data_prepared_in_arrow(
    tmp_path_factory: pytest.TempPathFactory, name: str, table: pa.Table, row_group: int
) -> None:
    steps, oracle = STEPS[name]
    folder = tmp_path_factory.mktemp("prepared", numbered=True)
    pq.write_table(table, folder / "raw.parquet", row_group_size=row_group)
    expected = oracle(table)
    pq.write_table(expected, folder / "ready.parquet")
    found = read(source_of(str(folder / "raw.parquet"), *steps))
    ready = read(open_source(str(folder / "ready.parquet"), None))
    assert found.schema.equals(ready.schema, check_metadata=True)
    assert repr(found.to_pylist()) == repr(ready.to_pylist())  # NaN is written as it is
    if not len(expected):
        return
    options: dict[str, Any] = {"seed": 3, "min_class_records": 1, "shards": 1 + (len(expected) > 1)}
    built(str(folder / "raw.parquet"), folder / "one", prepare=PrepareOptions(steps=tuple(steps)), **options)
    built(str(folder / "ready.parquet"), folder / "two", **options)
    assert files(folder / "one") == files(folder / "two")


def test_the_label_may_be_renamed_cast_filled_or_filtered_by(parquet: str, table: pa.Table) -> None:
    renamed = read(source_of(parquet, Rename((("label", "late"),)), label="late"))
    assert renamed.column("late").to_pylist() == table.column("label").to_pylist()
    cast = read(source_of(parquet, Cast((("small", "string"),)), label="small"))
    assert cast.column("small").to_pylist() == [str(value) for value in table.column("small").to_pylist()]
    kept = read(source_of(parquet, Filter("label != 'a'"), Rename((("label", "y"),)), label="y"))
    assert kept.column("y").to_pylist() == [v for v in table.column("label").to_pylist() if v != "a"]
    by_other = read(source_of(parquet, Filter("price > 0"), label="label"))
    assert by_other.column("id").to_pylist() == table.filter(pc.field("price") > 0).column("id").to_pylist()


def test_a_filter_compares_times_with_texts(tmp_path: Path) -> None:
    days = pa.array([0, 18262, 20000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"id": range(3), "day": days}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("id,day\n0,1970-01-01\n1,2020-01-01\n2,2024-10-04\n")
    for name in ("a.parquet", "a.csv"):
        steps = (Rename((("day", "d"),)), Filter("d >= '2020-01-01'"))
        source = open_prepared(str(tmp_path / name), None, "auto", PrepareOptions(steps=steps))
        assert [row["id"] for row in completed(source)] == [1, 2]


def test_labels_read_no_column_that_they_do_not_need(parquet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    batches = pq.ParquetFile.iter_batches

    def watched(self: pq.ParquetFile, *args: Any, columns: Sequence[str], **words: Any) -> Iterator[pa.RecordBatch]:
        seen.append(sorted(columns))
        return batches(self, *args, columns=columns, **words)

    sources = {
        "label": [Drop(("vector",)), Rename((("price", "p"),))],
        "label price": [Rename((("price", "p"),)), Filter("p > 0"), Select(("vector", "label"))],
        "flag label price": [DropNulls(("flag",)), Filter("price > 0")],
    }
    for expected, steps in sources.items():
        source = source_of(parquet, *steps, label="label")
        monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
        seen.clear()
        assert sum(len(values) for part in source.parts for values in source.labels(part))
        assert seen == [expected.split()] * len(source.parts)
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("values", "dtype", "lost"),
    [
        (pa.array([1.0, np.inf, np.nan, None, 1e300]), "float32", "1e[+]300"),
        (pa.array([70000.0], pa.float32()), "float16", "70000.0"),
        (pa.array([[1.0], None, [2e9]]), "float16", "2000000000.0"),
        (pa.array([2048, 2049]), "float16", "2049"),
        (pa.array(["-inf", "+Infinity", "1e400"]), "float64", "'1e400'"),
        (pa.array([0, 1, None, 3], pa.int8()), "bool", "3"),
        (pa.array([0.0, 1.0, np.nan]), "bool", "nan"),
    ],
)
def test_a_value_that_a_type_cannot_hold_is_refused(values: pa.Array, dtype: str, lost: str) -> None:
    batch, step = pa.record_batch({"x": values}), Cast((("x", dtype),))
    assert step.apply(batch[:-1])["x"].null_count == values.null_count
    with pytest.raises(SourceError, match=f"--cast x={dtype}: value {lost} does not fit; choose a type"):
        step.apply(batch)


def test_lists_are_cast_and_lists_with_nulls_are_dropped(tmp_path: Path) -> None:
    table = pa.table(
        {
            "fixed": pa.array([[1, 2], None, [3, None], [4, 5]], pa.list_(pa.float64(), 2)),
            "free": pa.array([["1"], ["2", "3"], [], None], pa.list_(pa.string())),
            "id": [0, 1, 2, 3],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    steps = [Cast((("fixed", "int8"), ("free", "float32"))), DropNulls(("fixed",))]
    source = source_of(str(tmp_path / "x.parquet"), *steps)
    assert source.schema["fixed"] == Feature(name="fixed", dtype="int8", shape=(2,))
    assert source.schema["free"] == Feature(name="free", dtype="float32", shape=(None,))
    assert read(source).to_pylist() == [
        {"fixed": [1, 2], "free": [1.0], "id": 0},
        {"fixed": [4, 5], "free": None, "id": 3},
    ]
    assert read(source_of(str(tmp_path / "x.parquet"), DropNulls())).column("id").to_pylist() == [0]


ELEMENTS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int": (pa.int8(), [-128, 0, 127]), "uint": (pa.uint64(), [0, 2**64 - 1]), "half": (pa.float16(), [0.5, -2.0]),
    "single": (pa.float32(), [0.25]), "double": (pa.float64(), [0.1, -1e300]), "bool": (pa.bool_(), [True, False]),
    "text": (pa.string(), ["", "é"]), "bytes": (pa.binary(), [b"", b"\xff"]),
    "time": (pa.timestamp("us", "UTC"), [datetime(2001, 2, 3, tzinfo=timezone.utc)]),
}  # fmt: skip


def with_nulls(value: Any, mask: Any, kind: pa.DataType) -> Any:
    """A list as it was before its nulls were masked."""
    if value is None:
        return None
    values = [None if marked else element for element, marked in zip(value, mask, strict=True)]
    return pa.array(values, pa.int64()).cast(kind).to_pylist() if pa.types.is_timestamp(kind) else values


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("size", [-1, 3])
def test_masked_lists_are_restored_from_shards(tmp_path: Path, shard_format: str, size: int) -> None:
    draw = Random(size)
    columns = {"id": pa.array(range(200))}
    for name, (kind, values) in ELEMENTS.items():
        lists = [
            None if draw.random() < 0.1
            else [draw.choice([None, *values]) for _ in range(draw.randrange(5) if size < 0 else size)]
            for _ in range(200)
        ]  # fmt: skip
        columns[name] = pa.array(lists, pa.list_(kind, size))
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=70)
    prepare = PrepareOptions(steps=(MaskNulls(tuple(ELEMENTS)),))
    url = str(tmp_path / "out")
    build(source=str(tmp_path / "x.parquet"), destination=url, format=shard_format, workers=1, prepare=prepare)
    assert verify(url) == []
    dataset = open_dataset(url)
    assert dataset.manifest.schema.names[1:3] == ("int", "int.missing")
    found = {row["id"]: row for row in read_records(dataset, "train", 200)}
    for name, (kind, _) in ELEMENTS.items():
        masks = {number: row[f"{name}.missing"] for number, row in found.items()}
        restored = [with_nulls(found[number][name], masks[number], kind) for number in range(200)]
        assert restored == columns[name].to_pylist(), name
        hollow = [masks[number] for number in range(200) if restored[number] is None]
        assert all(list(mask) == ([True] * 3 if size > 0 else []) for mask in hollow)
    fill = {"text": ""} if size > 0 else {}
    batch = next(
        iter(
            Loader(url, batch_size=200, columns=["id", "text", "text.missing"], fill=fill).epoch(0).as_numpy_iterator()
        )
    )
    assert batch["text.missing"].shape == batch["text"].shape


def test_a_mask_can_be_kept_alone(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [[1, None], [2]], "x.missing": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"there is a column 'x\.missing' already; give it another name"):
        source_of(str(tmp_path / "x.parquet"), MaskNulls(("x",)))
    steps = [Drop(("x.missing",)), MaskNulls(("x",)), Select(("x.missing",))]
    assert read(source_of(str(tmp_path / "x.parquet"), *steps)).to_pylist() == [
        {"x.missing": [False, True]},
        {"x.missing": [False]},
    ]


def test_given_types_come_first_and_reshape(tmp_path: Path) -> None:
    table = pa.table(
        {
            "pixels": pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.int64()), 6),
            "tags": pa.array([[1, 2], [3, 4]]),
            "photo": [b"x", b"y"],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    features = {
        "pixels": Feature(name="pixels", dtype="uint8", shape=(2, 3)),
        "tags": Feature(name="tags", dtype="int32", shape=(2,)),
        "photo": Feature(name="photo", dtype="binary", encoding="image"),
    }
    source = source_of(str(tmp_path / "x.parquet"), Rename((("tags", "t"),)), features=features)
    assert [f.shape for f in source.schema.features] == [(2, 3), (2,), ()]
    assert source.schema["photo"].encoding == "image"
    assert read(source).column("pixels").to_pylist() == [list(range(6)), list(range(6, 12))]
    bad = {"tags": Feature(name="tags", dtype="int32", shape=(3,))}
    with pytest.raises(SourceError, match="tags"):
        read(source_of(str(tmp_path / "x.parquet"), features=bad))


def test_types_that_a_source_would_infer_are_given_to_it(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("zip,n\n01234,1\n00001,2\n")
    features = {"zip": Feature(name="zip", dtype="string"), "n": Feature(name="n", dtype="float32")}
    source = source_of(str(tmp_path / "x.csv"), Rename((("zip", "code"),)), features=features, label="code")
    assert read(source).to_pylist() == [{"code": "01234", "n": 1.0}, {"code": "00001", "n": 2.0}]


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Select(("prise",)), r"--select: there is no column 'prise'; did you mean 'price'\?"),
        (Select(("id", "id")), "named once"),
        (Drop(("ID",)), "--drop-columns: there is no column 'ID'; the columns here are: id, "),
        (Drop(("id", "vector", "small", "price", "flag", "label")), "this drops all columns"),
        (Rename((("idd", "x"),)), "did you mean 'id'"),
        (Rename((("id", "price"),)), "'price' twice"),
        (Cast((("price", "float31"),)), "dtype must be one of"),
        (Cast((("vector", "binary"),)), "holds float32, which cannot become binary"),
        (Cast((("pric", "int8"),)), "did you mean 'price'"),
        (Filter("pric > 1"), "did you mean 'price'"),
        (Filter("label > 1"), "cannot be compared"),
        (DropNulls(("pric",)), "did you mean 'price'"),
        (FillNulls((("price", "x"),)), "holds float64, got 'x'"),
        (FillNulls((("vector", "x"),)), "got 'x'"),
        (FillNulls((("flag", "maybe"),)), "holds bool, got 'maybe'"),
        (FillNulls((("small", "300"),)), "holds int8, got '300'"),
        (MaskNulls(("vectr",)), "--mask-nulls: .* did you mean 'vector'"),
        (MaskNulls(("vector", "vector")), "named once"),
        (MaskNulls(("price",)), r"one value per record, .* masks=\['price'\]"),
        (FillNulls((("price", "1e400"),)), "holds float64, got '1e400'"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_before_anything_is_read(parquet: str, step: Step, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        source_of(parquet, step, label="label")


def test_steps_see_the_columns_that_earlier_steps_left(parquet: str) -> None:
    with pytest.raises(ConfigError, match="no column 'price'; did you mean 'prices'"):
        source_of(parquet, Rename((("price", "prices"),)), Filter("price > 0"))
    assert len(read(source_of(parquet, Filter("price > 0"), Rename((("price", "prices"),)))))
    with pytest.raises(SourceError, match="no label column 'label'"):
        source_of(parquet, Rename((("label", "y"),)), label="label")


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Cast((("price", "int32"),)), "source.parquet: --cast price=int32: .* truncated"),
        (Cast((("label", "float32"),)), "source.parquet: --cast label=float32: .*'[abc]'"),
        (Filter("id * 9223372036854775807 > 1"), "source.parquet: --filter .*overflow"),
    ],
)
def test_a_value_that_does_not_fit_is_reported_with_its_file(parquet: str, step: Step, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        read(source_of(parquet, step))


def test_times_do_not_become_text_by_a_cast(tmp_path: Path) -> None:
    pq.write_table(pa.table({"at": pa.array([1, 2], pa.timestamp("us"))}), tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"holds timestamp\[us\] as int64, which cannot become string"):
        source_of(str(tmp_path / "x.parquet"), Cast((("at", "string"),)))
    assert read(source_of(str(tmp_path / "x.parquet"), Filter("at > 1"))).to_pylist() == [{"at": 2}]


def test_dropping_every_record_names_the_steps(parquet: str, tmp_path: Path) -> None:
    options = PrepareOptions(steps=(Filter("price > 100"),))
    with pytest.raises(SourceError, match=r"source.parquet \(after --filter 'price > 100'\) holds no records"):
        plan_build(BuildOptions(source=parquet, destination=str(tmp_path / "o"), prepare=options))


# --- functions of the user ---------------------------------------------------------------------------------------


def mapped(functions: str, name: str) -> MapBatches:
    return MapBatches(function=f"user_functions:{name}", folder=functions)


def test_a_function_adds_columns_rows_and_the_label(parquet: str, table: pa.Table, functions: str) -> None:
    found = read(source_of(parquet, mapped(functions, "double"), Filter("twice > 1"), label="label"))
    prices = table.column("price").to_numpy()
    assert found.column("twice").to_pylist() == (2 * prices)[2 * prices > 1].tolist()
    made = read(source_of(parquet, mapped(functions, "label_it"), Select(("id", "made")), label="made"))
    assert made.column("made").to_pylist() == ["up" if price > 0 else "down" for price in prices]
    parts = len(open_source(parquet, None).parts)
    assert len(read(source_of(parquet, mapped(functions, "explode")))) == 2 * len(table) - parts


def test_columns_that_pass_through_a_function_keep_their_shapes(tmp_path: Path, functions: str) -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(2, 2, 3))
    pq.write_table(pa.table({"x": tensors, "at": pa.array([1, 2], pa.timestamp("s"))}), tmp_path / "x.parquet")
    plain = open_source(str(tmp_path / "x.parquet"), None)
    source = source_of(str(tmp_path / "x.parquet"), mapped(functions, "forget_metadata"))
    assert source.schema.features == plain.schema.features[::-1]
    assert read(source).select(["x", "at"]).equals(read(plain))


def test_lists_that_are_all_empty_get_the_type_of_the_others(
    parquet: str, functions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfeed.sharding.sources.tables.parquet.BATCH_ROWS", 50)
    found = read(source_of(parquet, mapped(functions, "few_words"))).column("words").to_pylist()
    assert found == [["a", "b"]] + [[]] * 599


def test_a_function_that_changes_folder_leaves_relative_paths_alone(
    parquet: str, functions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare = PrepareOptions(steps=(mapped(functions, "wanders"),))
    build(BuildOptions(source=parquet, destination="out", prepare=prepare, shards=1))
    assert (tmp_path / "out" / "_ringfeed/dataset.json").exists()


def test_times_from_a_function_are_stored_as_integers(parquet: str, functions: str) -> None:
    source = source_of(parquet, mapped(functions, "times"))
    assert (source.schema["at"].dtype, source.schema["at"].logical) == ("int64", "timestamp[s]")
    assert read(source).column("at").to_pylist() == read(source).column("id").to_pylist()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fails", r"user_functions.py:18: KeyError: 'prise' \(in --map user_functions:fails\)"),
        ("fails_late", r"source.parquet: .*user_functions.py:22: ValueError: no such"),
        ("other_type", "column 'id' as int32, but as int64 for the first records"),
        ("other_names", "returned the columns y, .* but x, .* for the first records"),
        ("a_table", "must return a pyarrow.RecordBatch, it returned a Table"),
        ("bytes_as_text", "--map user_functions:bytes_as_text: .* an invalid batch: .*UTF8"),
        ("all_null", "column 'n' has only nulls in the first records"),
        ("nothing_at_all", "without columns"),
        ("takes_nothing", r"^user_functions:takes_nothing: TypeError: takes_nothing\(\) takes 0 positional"),
        ("exits", r"user_functions.py:\d+: SystemExit: 3 \(in --map user_functions:exits\); fix the function"),
    ],
)
def test_a_function_s_error_names_its_place(
    parquet: str, functions: str, name: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfeed.sharding.sources.tables.parquet.BATCH_ROWS", 50)
    with pytest.raises(SourceError, match=told) as error:
        read(source_of(parquet, mapped(functions, name)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("nowhere_at_all:f", "no module 'nowhere_at_all'"),
        ("user_functions:nope", "user_functions.py has no function 'nope'"),
        ("user_functions", "takes module:function"),
        ("broken_module:f", r"broken_module.py:2: SyntaxError"),
        ("needs_another:f", r"needs_another.py:1: .*no_such_package.*install it"),
    ],
)
def test_a_function_that_cannot_be_imported_is_reported(parquet: str, functions: str, function: str, told: str) -> None:
    (Path(functions) / "broken_module.py").write_text("x = 1\ndef f(:\n")
    (Path(functions) / "needs_another.py").write_text("import no_such_package\n")
    with pytest.raises(ConfigError, match=told):
        source_of(parquet, MapBatches(function=function, folder=functions))


def test_a_function_is_tried_on_the_first_records_that_reach_it(parquet: str, functions: str) -> None:
    source = source_of(parquet, Filter("id >= 550"), mapped(functions, "double"))
    assert read(source).column("id").to_pylist() == list(range(550, 600))
    empty = source_of(parquet, Filter("id > 10000"), mapped(functions, "double"))
    assert empty.schema["twice"].dtype == "float64"
    assert len(read(empty)) == 0


# --- what a source promises --------------------------------------------------------------------------------------


def test_samples_skip_batches_that_a_filter_empties(parquet: str) -> None:
    source = source_of(parquet, Filter("id >= 430 or id == 2"))
    assert source.sample(source.parts[0], 5).column("id").to_pylist() == [2]
    source = source_of(parquet, Filter("id >= 300"))
    assert source.sample(source.parts[0], 2).column("id").to_pylist() == [300, 301]
    source = source_of(parquet, Filter("id >= 1000"))
    assert source.sample(source.parts[0], 2).num_rows == 0


def test_batches_that_grow_are_sliced(parquet: str, functions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_limits, "BATCH_ROWS", 64)
    source = source_of(parquet, mapped(functions, "explode"), label="label")
    assert len(read(source)) > 600  # which looks at each batch's size


def test_another_preparation_is_another_fingerprint(parquet: str, functions: str) -> None:
    def fingerprint(*steps: Step) -> str:
        return source_of(parquet, *steps).fingerprint

    prints = [
        fingerprint(),
        fingerprint(Filter("id > 1")),
        fingerprint(Filter("id > 2")),
        fingerprint(Filter("id > 1"), Drop(("price",))),
        fingerprint(Drop(("price",)), Filter("id > 1")),
        fingerprint(mapped(functions, "double")),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint() == open_source(parquet, None).fingerprint
    assert fingerprint(Filter("id > 1")) == prints[1]
    one = Path(functions) / "code_one.py"
    hashes = []
    for text in ("def f(batch):\n    return batch\n", "def f(batch):\n    return batch.slice(1)\n"):
        one.write_text(text)
        hashes.append(MapBatches(function="code_one:f", folder=functions).code_hash)
    assert hashes[0] != hashes[1]


def test_the_manifest_records_the_given_steps_alone(parquet: str, tmp_path: Path) -> None:
    prepare = PrepareOptions(steps=(Filter("id > 1"), Cast((("price", "float32"),))), dedup=("id",))
    for name, options in (("plain", PrepareOptions()), ("prepared", prepare)):
        build(BuildOptions(source=parquet, destination=str(tmp_path / name), label="label", prepare=options))
    assert "prepare" not in open_dataset(str(tmp_path / "plain")).manifest.options
    assert open_dataset(str(tmp_path / "prepared")).manifest.options["prepare"] == {
        "steps": ["--filter 'id > 1'", "--cast price=float32"],
        "dedup": ["id"],
    }


def test_without_steps_the_source_is_left_alone(parquet: str) -> None:
    assert source_of(parquet, label="label") == open_source(parquet, "label")
    assert isinstance(source_of(parquet, Filter("id > 1")), PreparedSource)


def test_workers_import_the_function_themselves_and_change_no_byte(
    parquet: str, functions: str, tmp_path: Path
) -> None:
    prepare = PrepareOptions(steps=(mapped(functions, "label_it"), Filter("made == 'up'")), dedup=("small",))
    for workers in (1, 2):
        built(parquet, tmp_path / str(workers), label="made", workers=workers, prepare=prepare)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


# --- columns that no feature can hold ----------------------------------------------------------------------------


@pytest.fixture
def odd(tmp_path: Path) -> str:
    """A table with columns that no feature can hold."""
    price = pa.array([None, *range(1, 40)]).cast(pa.decimal128(30, 2))
    tags = pa.array([[("a", i)] for i in range(40)], pa.map_(pa.string(), pa.int64()))
    table = pa.table({"id": range(40), "price": price, "tags": tags, "label": ["x", "y"] * 20})
    pq.write_table(table, tmp_path / "odd.parquet")
    return str(tmp_path / "odd.parquet")


@pytest.mark.parametrize(
    "steps",
    [
        (Drop(("price", "tags")),),
        (Drop(("tags",)), Drop(("price",)), Filter("id >= 0")),
        (Select(("label", "id")),),
        (Drop(("price",)), Select(("id", "label")), Rename((("id", "number"),))),
        (Drop(("id", "tags", "price")),),
    ],
)
def test_columns_of_any_type_can_be_dropped_first(odd: str, tmp_path: Path, steps: tuple[Step, ...]) -> None:
    dataset = built(odd, tmp_path / "out", label="label", shards=2, prepare=PrepareOptions(steps=steps))
    assert dataset.manifest.records == 40
    assert not {"price", "tags"} & set(dataset.manifest.schema.names)


@pytest.mark.parametrize("steps", [(), (Drop(("tags",)),), (Filter("id >= 0"), Drop(("void", "tags")))])
def test_columns_of_unsupported_types_cannot_reach_a_step(odd: str, tmp_path: Path, steps: tuple[Step, ...]) -> None:
    pq.write_table(pq.read_table(odd).append_column("void", pa.nulls(40)), odd)
    with pytest.raises(SourceError, match=r"'void' has type null.*leave it out with the first --drop-columns"):
        built(odd, tmp_path / "out", label="label", shards=2, prepare=PrepareOptions(steps=steps))


def test_a_cast_gives_a_column_its_type(odd: str, tmp_path: Path) -> None:
    steps = (Drop(("tags",)), Rename((("price", "cost"),)), Filter("cost > 37"), Cast((("cost", "float32"),)))
    source = source_of(odd, *steps)
    assert source.schema["cost"].dtype == "float32"
    assert [(row["id"], row["cost"]) for row in read(source).to_pylist()] == [(38, 38.0), (39, 39.0)]


def test_a_cast_gives_files_of_different_types_one(tmp_path: Path) -> None:
    for number, values in enumerate([pa.array([1], pa.int8()), pa.array(["300"])]):
        pq.write_table(pa.table({"x": values}), tmp_path / f"{number}.parquet")
    with pytest.raises(SourceError, match="read all as one type with --cast x=string, or leave it out"):
        source_of(str(tmp_path))
    assert read(source_of(str(tmp_path), Cast((("x", "int32"),)))) == pa.table({"x": pa.array([1, 300], pa.int32())})


def test_a_source_must_keep_a_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"odd": [{"a": 1}] * 40}), tmp_path / "odd.parquet")
    with pytest.raises(ConfigError, match="no column is left"):
        source_of(str(tmp_path / "odd.parquet"), Drop(("odd",)))


def test_a_column_to_drop_must_exist(odd: str, tmp_path: Path) -> None:
    prepare = PrepareOptions(steps=(Drop(("prise", "tags", "price")),))
    with pytest.raises(ConfigError, match="--drop-columns: there is no column 'prise'"):
        built(odd, tmp_path / "out", label="label", shards=2, prepare=prepare)
