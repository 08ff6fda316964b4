"""New records: the steps of a build without those that choose records, on the columns that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import ConfigError, Feature, SourceError
from ringfeed.sharding.prepare import PrepareOptions, parse_step
from ringfeed.sharding.prepare.new_records import open_new_records
from tests.helpers.pictures import write_pictures

X = Feature(name="x", dtype="float32")
NAME = Feature(name="name", dtype="string")


def read(path: Path, steps: list[tuple[str, str]], features: list[Feature], **options: Any) -> tuple[Any, Any]:
    prepare = PrepareOptions(steps=tuple(parse_step(flag, text, "") for flag, text in steps))
    batches = list(open_new_records(str(path), prepare, features, **options).batches())
    inputs, kept = zip(*batches, strict=True)
    return pa.Table.from_batches(inputs).to_pydict(), pa.Table.from_batches(kept).to_pydict()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Five records without a label, the second without a value of x."""
    path = tmp_path / "new.csv"
    path.write_text("id,a,name\n1,2,p\n2,,q\n3,4,r\n4,2,p\n5,9,\n")
    return path


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("--rename", "a=x")], [2, None, 4, 2, 9]),
        ([("--rename", "a=x,late=label"), ("--cast", "x=float32,label=string")], [2, None, 4, 2, 9]),
        ([("--filter", "a > 3"), ("--rename", "a=x"), ("--drop-nulls", "x")], [2, None, 4, 2, 9]),
        ([("--fill-nulls", "a=7,label=none"), ("--rename", "a=x")], [2, 7, 4, 2, 9]),
        ([("--drop-columns", "id,label"), ("--rename", "a=x")], [2, None, 4, 2, 9]),
        ([("--select", "a,name,label"), ("--rename", "a=x")], [2, None, 4, 2, 9]),
        ([("--rename", "a=name,name=x"), ("--rename", "x=name,name=x")], [2, None, 4, 2, 9]),
    ],
)
def test_every_record_stays_whatever_the_steps_were(
    source: Path, steps: list[tuple[str, str]], expected: list[Any]
) -> None:
    inputs, kept = read(source, steps, [X, NAME], keep=["id", "a"])
    assert inputs == {"x": expected, "name": ["p", "q", "r", "p", ""]}
    assert kept == {"id": [1, 2, 3, 4, 5], "a": expected}


def test_functions_make_columns(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prepare_new.py").write_text(
        "def double(batch):\n"
        "    import pyarrow.compute as pc\n"
        "    return batch.append_column('x', pc.multiply(batch.column('a'), 2.0))\n"
    )
    monkeypatch.chdir(tmp_path)
    double = ("--map", "prepare_new:double")
    assert read(source, [double], [X])[0] == {"x": [4, None, 8, 4, 18]}
    steps = [double, ("--select", "x,late"), ("--drop-columns", "late")]  # the label, which new records lack
    assert read(source, steps, [X], keep=["name"]) == ({"x": [4, None, 8, 4, 18]}, {"name": ["p", "q", "r", "p", ""]})
    (tmp_path / "prepare_less.py").write_text("def less(batch):\n    return batch.select(['a'])\n")
    with pytest.raises(ConfigError, match=r"--keep: a function of --map leaves out the column 'name'; keep another"):
        read(source, [("--map", "prepare_less:less"), ("--rename", "a=x")], [X], keep=["name"])
    with pytest.raises(ConfigError, match=r"new.csv lacks column 'y', which the model takes"):
        read(source, [("--map", "prepare_new:double")], [Feature(name="y", dtype="int64")])


def test_new_images_need_no_class_folders(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "photos", 6, ("jpg",)) / "cat"
    image = Feature(name="image", dtype="binary", encoding="image")
    for url, keep in ((folder, ["path"]), (folder, []), (next(folder.glob("*.jpg")), [])):
        inputs, kept = read(url, [], [image], keep=keep)
        files = sorted(folder.glob("*.jpg")) if url == folder else [url]
        assert inputs["image"] == [path.read_bytes() for path in files]
        assert kept["path"] == [path.name for path in files]


@pytest.mark.parametrize(
    ("column", "feature", "expected"),
    [
        (pa.array([1, 2], pa.int8()), X, [1.0, 2.0]),
        (pa.array([1.0, 2.0]), Feature(name="x", dtype="int64"), [1, 2]),
        (pa.array([1.5, 2.0]), Feature(name="x", dtype="int64"), "column 'x', which the model takes as int64"),
        (pa.array(["1", "2"]), Feature(name="x", dtype="int64"), [1, 2]),
        (pa.array(["1", "two"]), Feature(name="x", dtype="int64"), "column 'x': 'two' is no int64, which the model"),
        (pa.array(["2024-01-02"] * 2), Feature(name="x", dtype="int32", logical="date32[day]"), [19724] * 2),
        (pa.array([0, 86_400_000_000], pa.timestamp("us")), Feature(name="x", dtype="int32", logical="date32[day]"),
         [0, 1]),
        (pa.array([[1, 2], [3, 4]]), Feature(name="x", dtype="int64", shape=(None,)), [[1, 2], [3, 4]]),
        (pa.array([[1, 2], [3, 4]]), X, "takes values of shape [] in column 'x', which holds values of shape [None]"),
    ],
)  # fmt: skip
def test_values_become_those_of_the_model_or_are_refused(
    tmp_path: Path, column: pa.Array, feature: Feature, expected: Any
) -> None:
    path = tmp_path / "new.parquet"
    pq.write_table(pa.table({"x": column}), path)
    if isinstance(expected, str):
        with pytest.raises((ConfigError, SourceError)) as caught:
            read(path, [], [feature])
        assert expected in str(caught.value)
    else:
        assert read(path, [], [feature])[0] == {"x": expected}


def test_missing_columns_are_all_named(source: Path) -> None:
    features = [Feature(name=name, dtype="int64") for name in ("id", "b", "c")]
    with pytest.raises(ConfigError, match=r"lacks columns that the model takes: b, c; the columns are: id, a, name"):
        read(source, [], features)
    with pytest.raises(ConfigError, match=r"--keep: .* has no column 'nam'; did you mean 'name'"):
        read(source, [], features[:1], keep=["nam"])
