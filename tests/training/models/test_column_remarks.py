"""Remarks on identifiers and dates: one for all columns, and none for columns that a model can learn from."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ringfeed.sharding import ConfigError, build, open_dataset
from ringfeed.sharding.common.strict_yaml import load_yaml
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.column_remarks import column_remarks

ROWS = 300


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """300 records: identifiers of three kinds, a date, a free text, and columns to learn from."""
    numbers = range(ROWS)
    columns = {
        "number": [1000 + i for i in numbers],
        "name": [f"name {i * 173 // ROWS}" for i in numbers],  # 173 different ones
        "born": [date(1990, 1, 1) + timedelta(i % 40) for i in numbers],
        "seen": [f"{i % 28 + 1:02d}.{i // 28 + 1:02d}.2026" for i in numbers],
        "comment": ["word " * (i % 7 + 400) + str(i) for i in numbers],
        "note": ["note " * (i % 5 + 400) + str(i) for i in numbers],
        "age": [20 + i % 60 for i in numbers],
        "city": [f"city {i % 90}" for i in numbers],
        "y": [i % 2 == 0 for i in numbers],
    }
    url = str(tmp_path_factory.mktemp("columns") / "data")
    build(source=pa.table(columns), destination=url, label="y", split={"train": 0.9, "test": 0.1}, workers=1)
    return url


def test_a_name_that_yaml_reads_otherwise_is_quoted(tmp_path: Path) -> None:
    columns = {name: list(range(ROWS)) for name in ("", "a: b", "id")} | {"y": [0, 1] * (ROWS // 2)}
    build(source=pa.table(columns), destination=str(tmp_path), label="y", workers=1)
    manifest, tree = open_dataset(str(tmp_path)).manifest, {"data": {"url": str(tmp_path)}}
    (remark,) = column_remarks(manifest, parse_config(tree, "a test"))
    assert [load_yaml(names) for names in re.findall(r"data\.exclude=(\[.*\]),", remark)] == [["", "a: b", "id"]]


def test_all_identifiers_and_dates_are_reported_at_once(data: str) -> None:
    tree = {"data": {"url": data, "exclude": ["comment", "note", "seen"]}}
    manifest = open_dataset(data).manifest
    (remark,) = column_remarks(manifest, parse_config(tree, "a test"))
    assert "'number' holds a number of its own in each record" in remark
    assert "'name' holds 1" in remark  # 173 names, but for those of the test split alone
    assert " different texts in 270 records" in remark
    assert "'born' holds dates, as numbers (date32[day])" in remark
    assert "data.exclude=[number, name, born]" in remark
    assert "docs/cookbook.md has one for dates" in remark
    tree["data"]["exclude"] = ["comment", "note", "number", "name", "born"]
    (remark,) = column_remarks(manifest, parse_config(tree, "a test"))
    assert "'seen' holds 270 different dates, as texts, in 270 records" in remark
    tree["data"]["exclude"] = ["comment", "note", "number", "name", "born", "seen"]
    assert column_remarks(manifest, parse_config(tree, "a test")) == []


def test_all_columns_that_cannot_be_inputs_are_refused_at_once(data: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(open_dataset(data).manifest, parse_config({"data": {"url": data}}, "a test"))
    assert str(caught.value) == (
        "column 'comment' holds too many different texts to embed; column 'note' holds too many different texts to "
        "embed; leave them out with data.exclude=[comment, note]"
    )
