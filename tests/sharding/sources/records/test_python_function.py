"""Sources of Python functions (`python_function.py`), and types of Python values (`python_values.py`)."""

import datetime
import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import ConfigError, SourceError
from ringfeed.sharding.prepare import Drop, PrepareOptions, Select, Step
from ringfeed.sharding.prepare.open import open_prepared
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.records import python_function as module
from ringfeed.sharding.sources.records.python_values import ColumnType, column_of_values
from tests.helpers.builds import built
from tests.helpers.contents import labels, records
from tests.helpers.files import contents

Write = Callable[[str], str]
names = (f"ringfeed_records_{i}" for i in itertools.count())


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a module into the current folder; returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write_module(code: str) -> str:
        name = next(names)
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        return name

    return write_module


def opened(name: str, label: str | None = None) -> Source:
    return open_source(f"{name}:records", label, "python")


def kinds(source: Source) -> dict[str, tuple[str, tuple[int | None, ...], str]]:
    return {f.name: (f.dtype, f.shape, f.logical) for f in source.schema.features}


def test_dicts_become_columns(write: Write) -> None:
    source = opened(
        write(
            """
            import datetime
            import numpy as np

            def records():
                for i in range(3):
                    yield {
                        "i": i, "f": i if i else 0.5, "s": "ü", "b": b"\\xff", "t": i > 1, "n": None if i else 7,
                        "small": np.int8(i), "x": np.full((2, 3), i, np.float32), "v": [1] * i, "w": (1.0, 2.0),
                        "box": {"x": i, "y": {"z": "s"}}, "when": datetime.datetime(2020, 1, 1 + i), "never": None,
                        "words": ["a", "b"], "rows": [[1, 2], [3, 4]],
                    }
                yield {"late": np.float16(2.5)}
            """
        ),
        "i",
    )
    assert kinds(source) == {
        "i": ("int64", (), ""), "f": ("float64", (), ""), "s": ("string", (), ""), "b": ("binary", (), ""),
        "t": ("bool", (), ""), "n": ("int64", (), ""), "small": ("int8", (), ""), "x": ("float32", (2, 3), ""),
        "v": ("int64", (None,), ""), "w": ("float64", (2,), ""), "box.x": ("int64", (), ""),
        "box.y.z": ("string", (), ""), "when": ("int64", (), "timestamp[us]"), "never": ("string", (), ""),
        "words": ("string", (2,), ""), "rows": ("int64", (2, 2), ""), "late": ("float16", (), ""),
    }  # fmt: skip
    found = records(source)
    assert found[1] == {
        "i": 1, "f": 1.0, "s": "ü", "b": b"\xff", "t": False, "n": None, "small": 1, "x": [1.0] * 6, "v": [1],
        "w": [1.0, 2.0], "box.x": 1, "box.y.z": "s", "when": 1577923200000000, "never": None, "words": ["a", "b"],
        "rows": [1, 2, 3, 4], "late": None,
    }  # fmt: skip
    assert found[3] == dict.fromkeys(found[1]) | {"late": 2.5}
    assert labels(source) == [0, 1, 2, None]
    assert source.sample(source.parts[0], 2).to_pylist() == found[:2]


@pytest.mark.parametrize("wrap", ["{}", "{}.to_batches(max_chunksize=4)", "[{}, {}]", "{}.to_reader(3)"])
def test_arrow_batches_are_kept(write: Write, wrap: str) -> None:
    table = "pa.table({'x': pa.array(range(10), pa.uint8()), 'y': pa.array(list('abcdefghij')).dictionary_encode()})"
    source = opened(write(f"import pyarrow as pa\ndef records():\n    return {wrap.format(table, table)}"), "y")
    assert kinds(source) == {"x": ("uint8", (), ""), "y": ("string", (), "")}
    times = 2 if "[" in wrap else 1
    assert [row["x"] for row in records(source)] == [*range(10)] * times
    assert labels(source) == list("abcdefghij") * times
    assert source.sample(source.parts[0], 2).num_rows == 2


def test_values_are_taken_when_they_are_yielded(write: Write) -> None:
    """A function may yield the same array, list or bytearray again and again, with other content."""
    source = opened(
        write(
            """
            import numpy as np

            def records():
                array, history, buffer, nested = np.zeros(2), [], bytearray(1), [np.zeros(1)]
                for i in range(5):
                    array[:] = nested[0][:] = buffer[0] = i
                    history.append(i)
                    yield {"id": i, "array": array, "history": history, "buffer": buffer, "nested": 2 * nested}
            """
        )
    )
    expected = [
        {"id": i, "array": [i, i], "history": list(range(i + 1)), "buffer": bytes([i]), "nested": [i, i]}
        for i in range(5)
    ]
    assert records(source) == expected


def test_batches_are_taken_when_they_are_yielded(write: Write) -> None:
    """A function may fill the same memory with its next batch."""
    source = opened(
        write(
            """
            import numpy as np
            import pyarrow as pa

            def records():
                values = np.zeros(3)
                for i in range(4):
                    values[:] = i
                    yield pa.record_batch({"x": pa.array(values)})
            """
        )
    )
    batches = list(source.drafts(source.parts[0]))  # all of them, before one is looked at
    assert [value for batch in batches for value in batch["x"].to_pylist()] == [i for i in range(4) for _ in range(3)]


def test_arrow_columns_may_be_in_any_order(write: Write) -> None:
    tables = "[pa.table({'x': [1, 2], 'y': ['a', 'b']}), pa.table({'y': ['c'], 'x': [3]})]"
    source = opened(write(f"import pyarrow as pa\ndef records():\n    return {tables}"), "y")
    assert [row["x"] for row in records(source)] == [1, 2, 3]
    assert labels(source) == ["a", "b", "c"]


def test_none_in_place_of_a_dict_makes_no_column(write: Write) -> None:
    given = "{'x': None}, {'x': {'y': None, 'z': 1}}, {'x': {'y': {'a': 2}}}, {'w': None}"
    source = opened(write(f"def records():\n    return [{given}]"))
    assert records(source) == [
        {"x.z": None, "x.y.a": None, "w": None},
        {"x.z": 1, "x.y.a": None, "w": None},
        {"x.z": None, "x.y.a": 2, "w": None},
        {"x.z": None, "x.y.a": None, "w": None},
    ]
    flat = opened(write("def records():\n    yield {'x': None, 'x.y': 1}"))
    assert records(flat) == [{"x": None, "x.y": 1}]


@pytest.mark.parametrize("step", [Drop(("odd", "s")), Select(("x",))])
def test_unsupported_arrow_columns_can_be_left_out(write: Write, step: Step) -> None:
    odd = "pa.array([[('a', 1)], []], pa.map_(pa.string(), pa.int8()))"
    table = f"pa.table({{'x': [1, 2], 'odd': {odd}, 's': [{{'a': 1}}, None]}})"
    name = write(f"import pyarrow as pa\ndef records():\n    return {table}")
    source = open_prepared(f"{name}:records", "x", "python", PrepareOptions(steps=(step,)))
    assert records(source) == [{"x": 1}, {"x": 2}]
    assert labels(source) == [1, 2]
    assert source.sample(source.parts[0], 1).to_pylist() == [{"x": 1}]
    with pytest.raises(SourceError, match="column 'odd' has type map"):
        open_prepared(f"{name}:records", None, "python", PrepareOptions(steps=(Drop(("s",)),)))
    alone = write(f"import pyarrow as pa\ndef records():\n    return pa.table({{'odd': {odd}}})")
    with pytest.raises(ConfigError, match="no column is left"):
        open_prepared(f"{alone}:records", None, "python", PrepareOptions(steps=(Drop(("odd",)),)))


def test_without_a_label_records_are_counted(write: Write) -> None:
    assert labels(opened(write("def records():\n    return ({'x': i} for i in range(5))"))) == [None] * 5
    name = write("import pyarrow as pa\ndef records():\n    return pa.table({'x': [1, 2]})")
    assert labels(opened(name)) == [None, None]


def test_batches_of_large_values_are_small(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES", 10_000)
    source = opened(write("import numpy as np\ndef records():\n    return ({'x': np.zeros(500)} for i in range(30))"))
    assert [batch.num_rows for batch in source.drafts(source.parts[0])] == [3] * 10
    for value in ("[np.zeros(250)] * 2", "np.array(['a' * 2000] * 2, object)", "[[b'a' * 2000], [b'b' * 2000]]"):
        source = opened(write(f"import numpy as np\ndef records():\n    return ({{'x': {value}}} for i in range(30))"))
        assert [batch.num_rows for batch in source.drafts(source.parts[0])] == [3] * 10
    name = write("import numpy as np, pyarrow as pa\ndef records():\n    return pa.table({'x': np.zeros(5000)})")
    assert max(batch.num_rows for batch in opened(name).drafts(source.parts[0])) == 1250


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("1, 'a'", "the column 'x' has int64 values in record 0 and string values in record 1"),
        ("'a', b'a'", "has string values in record 0 and binary values in record 1"),
        ("True, 2", "has bool values in record 0 and int64 values in record 1"),
        ("1, [1]", "has single values in record 0 and arrays of shape \\(1,\\) in record 1"),
        ("np.ones((2, 1)), np.ones((1, 2))", "arrays of shape \\(2, 1\\) in record 0 and arrays of shape \\(1, 2\\)"),
        ("[[1], [1, 2]]", "record 0: the column 'x' has nested lists of different lengths"),
        ("[np.ones((2, 1)), np.ones((2, 2))]", "record 0: the column 'x' has nested lists of different lengths"),
        ("[np.ones((2, 2)), [1, 2]]", "record 0: the column 'x' has nested lists of different lengths"),
        ("[np.ones(2), ['a', 'b']]", "has (double|string) values in record 0 and (double|string) values in record 0"),
        ("[1, None]", "record 0: the column 'x' has lists with None"),
        ("object()", "record 0: the column 'x' has a value of type object"),
        ("{1}", "has a value of type set"),
        ("1j", "has a value of type complex"),
        ("np.ones(1, complex)", "has NumPy values of type complex128"),
        ("2**64", "has integers from 0 to 18446744073709551616, which take more than 64 bits"),
        ("-1, 2**63", "has integers from -1 to 9223372036854775808, which no integer type holds"),
        ("{2: 1}", "record 0: the name of a column must be a string, got 2"),
        ("{'a.b': 1, 'a': {'b': 1}}", "record 0: two of its values would be columns of the same name"),
    ],
)
def test_values_that_fit_no_column_are_named(write: Write, values: str, reason: str) -> None:
    name = write(f"import numpy as np\ndef records():\n    return [{{'x': value}} for value in ({values},)]")
    with pytest.raises(SourceError, match=rf"{name}:records: .*{reason}"):
        opened(name)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def records():\n    return []", "returned no records"),
        ("def records():\n    return [{}, {}]", "records holds records without columns"),
        ("def records():\n    return 3", "returned a value of type int; it must return records"),
        ("def records():\n    return {'x': 1}", "record 0 is of type str; return records as dicts"),
        ("def records():\n    yield {'x': 1}\n    yield [1]", "record 1 is of type list"),
        (
            "import pyarrow as pa\ndef records():\n    yield pa.table({'x': [1]})\n    yield pa.table({'x': ['a']})",
            "from record 1 on the schema differs",
        ),
        (
            "import pyarrow as pa\ndef records():\n    yield {'x': 1}\n    yield pa.table({'x': [1]})",
            "returned both dicts and Arrow batches",
        ),
        ("def record():\n    pass", r"\.py has no function 'records'; did you mean record\?"),
        ("def records(x):\n    pass", "TypeError: records\\(\\) missing 1 required positional argument"),
        ("import nothing_of_that_name", r"\.py:1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("def records(:", r"\.py:1: SyntaxError"),
        ("raise SystemExit(3)", r"\.py:1: SystemExit: 3"),
        ("\n\ndef records():\n    yield {'x': 1}\n    help_()\ndef help_():\n    1 / 0", r"\.py:7: ZeroDivisionError"),
        ("import json\ndef records():\n    json.loads('{')", r"\.py:3: JSONDecodeError: Expecting"),
    ],
)
def test_a_bad_function_is_named_with_its_fault(write: Write, code: str, reason: str) -> None:
    with pytest.raises(SourceError, match=reason) as caught:
        opened(write(code))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nothing", "a Python source is MODULE:FUNCTION"),
        ("a/b.py:records", "a Python source is MODULE:FUNCTION"),
        (
            "nothing_of_that_name:records",
            "there is no module 'nothing_of_that_name' in /.* or among the installed ones",
        ),
        ("json.nothing:records", "there is no module 'json.nothing'"),
    ],
)
def test_urls_without_a_function_are_refused(url: str, reason: str, write: Write) -> None:
    with pytest.raises(SourceError, match=reason):
        open_source(url, None, "python")


@pytest.mark.parametrize(
    "array",
    [
        "pa.array([b'x', b'\\xff']).view(pa.string())",
        "pa.ListArray.from_buffers(pa.list_(pa.int8()), 2, "
        "[None, pa.py_buffer(bytes([0] * 4 + [99, 0, 0, 0, 1, 0, 0, 0]))], children=[pa.array([1], pa.int8())])",
    ],
)
@pytest.mark.parametrize("label", [None, "y"])
def test_invalid_arrow_data_are_reported(write: Write, array: str, label: str | None) -> None:
    name = write(
        "import pyarrow as pa\ndef records():\n    yield "
        f"pa.RecordBatch.from_arrays([{array}, pa.array([1, 2])], names=['x', 'y'])"
    )
    with pytest.raises(SourceError, match=r":records: the batch from record 0 on is invalid: .*; fix it"):
        records(opened(name, label))


def test_records_that_change_from_call_to_call_are_found(write: Write) -> None:
    once = "made = iter([{'x': 1}, {'x': 2}])\ndef records():\n    return made"
    source = opened(write(once), "x")
    with pytest.raises(SourceError, match="returned 2 records in its first call, and 0 now"):
        labels(source)
    assert source.sample(source.parts[0], 3).num_rows == 0
    calls = "calls = 0\ndef records():\n    global calls\n    calls += 1\n    return [{%s}]"
    source = opened(write(calls % "'x': 1 if calls == 1 else 'a'"))
    with pytest.raises(SourceError, match=r"among the records 0 to 0: .*; return the same records in each call"):
        records(source)
    source = opened(write(calls % "'x' * calls: 1"))
    with pytest.raises(SourceError, match="the column 'xx' is new"):
        records(source)
    source = opened(write(calls % "'x': [1] * (1 + calls)"))
    with pytest.raises(SourceError, match="an array does not have 2 elements"):
        records(source)


def test_half_a_surrogate_pair_is_reported(write: Write) -> None:
    source = opened(write("def records():\n    return [{'x': '\\ud800'}]"))
    with pytest.raises(SourceError, match=r"the column 'x': half a surrogate pair is no text: '\\ud800'; fix it"):
        records(source)


def test_a_value_beyond_arrow_is_reported_with_its_column(write: Write) -> None:
    source = opened(write("import datetime\ndef records():\n    return [{'i': 1, 'x': datetime.timedelta.max}]"))
    with pytest.raises(SourceError, match=r"records 0 to 0: the column 'x': Timedelta too large.*, or fix it"):
        records(source)


def test_the_fingerprint_depends_on_the_code(write: Write) -> None:
    code = "def records():\n    return [{'x': 1}]"
    name, other = write(code), write(code + "\n")
    assert opened(name).fingerprint == opened(name).fingerprint != opened(other).fingerprint


def test_worker_processes_give_the_same_bytes(write: Write, tmp_path: Path) -> None:
    name = write("def records():\n    return ({'x': i, 'y': 'ab'[i % 2]} for i in range(100))")
    for workers in (1, 2):
        source = f"{name}:records"
        built(source, tmp_path / str(workers), label="y", shards=3, source_kind="python", workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


numbers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
columns = st.one_of(
    st.lists(st.none() | numbers),
    st.lists(st.none() | floats | st.integers(-(2**53), 2**53)),
    st.lists(st.none() | st.text()),
    st.lists(st.none() | st.binary()),
    st.lists(st.none() | st.booleans()),
    st.lists(st.none() | st.lists(numbers, max_size=3)),
    st.lists(st.none() | st.lists(floats, min_size=2, max_size=2)),
    st.lists(st.none() | st.lists(st.text(max_size=2), max_size=3)),
    st.lists(st.none() | st.datetimes()),
    st.lists(st.none() | st.integers(-128, 127).map(np.int8) | st.integers(0, 255).map(np.uint8)),
)


@given(columns)
def test_the_inferred_type_holds_every_value(values: list[Any]) -> None:
    together, one_by_one = ColumnType(), ColumnType()
    together.add(values, 0)
    for i, value in enumerate(values):
        one_by_one.add_one(value, i)
    field = together.field("x")
    assert field.equals(one_by_one.field("x"), check_metadata=True)
    assert column_of_values(values, field).to_pylist() == values


@pytest.mark.parametrize("unit", ["D", "s", "ms", "us", "ns"])
def test_numpy_times_keep_their_unit(unit: str) -> None:
    array = np.array(["2020-01-02", "NaT"], f"datetime64[{unit}]")
    column = ColumnType()
    column.add([*array, None], 0)
    assert column_of_values([*array, None], column.field("x")).equals(pa.array([*pa.array(array), None]))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.sampled_from(["i2", "f4", "bool", "u8"]))
def test_arrays_of_several_lengths_make_lists(lengths: list[int], dtype: str) -> None:
    arrays = [np.arange(length).astype(dtype) for length in lengths]
    column = ColumnType()
    column.add(arrays, 0)
    field = column.field("x")
    found = column_of_values([*arrays, None], field).to_pylist()
    assert found == [*(array.tolist() for array in arrays), None]
    assert field.type.value_type == column_of_values(arrays, field).flatten().type


@pytest.mark.parametrize(
    "value", [2.5, np.float32(2.5), np.float16(2.5), True, 3, "x", np.datetime64("2020-01-02", "s")]
)
def test_zero_dimensional_arrays_are_scalars(value: Any) -> None:
    column = ColumnType()
    column.add([np.array(value), None], 0)
    field = column.field("x")
    assert column_of_values([np.array(value), None], field).equals(pa.array([value, None], field.type))


def test_lists_of_zero_dimensional_arrays_are_lists_of_scalars() -> None:
    column = ColumnType()
    values = [[np.array(1.5), np.array(2)], [np.array(3), np.array(4)]]
    column.add(values, 0)
    assert column_of_values(values, column.field("x")).to_pylist() == [[1.5, 2.0], [3.0, 4.0]]


def test_numpy_integers_widen_to_floats_as_python_ones_do() -> None:
    column = ColumnType()
    values = [np.int64((1 << 60) + 1), np.uint64(1 << 63), (1 << 60) + 1, np.float32(0.5)]
    column.add(values, 0)
    found = column_of_values(values, column.field("x"))
    assert found.equals(pa.array([2.0**60, 2.0**63, 2.0**60, 0.5]))


def test_arrays_of_signed_and_unsigned_integers_keep_every_bit() -> None:
    arrays = [np.array([2**60 + 1, 3], np.int64), np.array([2**60 + 3, 5], np.uint64), np.array([7], np.int8)]
    column = ColumnType()
    column.add(arrays, 0)
    assert column_of_values(arrays, column.field("x")).to_pylist() == [[2**60 + 1, 3], [2**60 + 3, 5], [7]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pd.Timestamp("2020-01-01T00:00:00.000000001"), "has a Timestamp with nanoseconds.*; use its to_numpy()"),
        (pd.Timedelta("1ns"), "has a Timedelta with nanoseconds"),
        (pd.NaT, "has NaT; use None"),
        (datetime.time(1, 2, tzinfo=datetime.timezone.utc), "has a time with a zone, which Arrow drops"),
        (np.ma.array([1, 2], mask=[False, True]), "has masked arrays"),
        ([np.ma.array([1, 2], mask=[False, True]), np.ones(2)], "has masked arrays"),
    ],
)
def test_values_that_would_be_truncated_are_refused(value: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        ColumnType().add([value], 0)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc), datetime.datetime(2020, 1, 1)], "in record 0"),  # noqa: DTZ001
        ([datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)], "has date32.* values in record"),  # noqa: DTZ001
        ([[datetime.date(2020, 1, 1)]], "has lists of date32.* values, which no column can hold"),
    ],
)
def test_mixed_dates_are_refused(values: list[Any], reason: str) -> None:
    column = ColumnType()
    column.add(values, 0)
    with pytest.raises(TypeError, match=reason):
        column.field("x")
