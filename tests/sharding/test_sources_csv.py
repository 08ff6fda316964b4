"""CSV sources: types hold over every line of every file."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding import SourceError
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources import csv as module

Write = Callable[..., str]


def records(source: Source) -> list[dict[str, Any]]:
    return [row for part in source.parts for batch in source.drafts(part) for row in batch.to_pylist()]


def dtypes(source: Source) -> dict[str, str]:
    return {feature.name: feature.dtype for feature in source.schema.features}


def test_values_come_as_they_were_written(write_csv: Write) -> None:
    url = write_csv(
        ["i", "f", "s", "größe, m", "t"], [1, "", "a,b", "ü\n2", "2020-01-01"], [-5, 2.5, "", "", "1999-12-31"]
    )
    source = open_source(url, "i")
    assert dtypes(source) == {"i": "int64", "f": "float64", "s": "string", "größe, m": "string", "t": "int32"}
    assert [list(row.values()) for row in records(source)] == [
        [1, None, "a,b", "ü\n2", 18262],
        [-5, 2.5, "", "", 10956],
    ]
    assert [v for b in source.labels(source.parts[0]) for v in b.to_pylist()] == [1, -5]


@pytest.mark.parametrize(
    ("late", "dtype"), [("2.5", "float64"), ("x", "string"), ("2020-01-01", "string"), ("", "int64")]
)
def test_a_late_value_widens_the_column(
    write_csv: Write, monkeypatch: pytest.MonkeyPatch, late: str, dtype: str
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 64)
    url = write_csv(["x", "y"], *[[i, "a"] for i in range(100)], [late, "b"])
    source = open_source(url, "y")
    assert dtypes(source)["x"] == dtype
    assert len(records(source)) == 101


@pytest.mark.parametrize("late", ["maybe", "3", "1.5"])
def test_a_late_value_widens_bools_and_dates_to_text(
    write_csv: Write, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 64)
    rows = [["true", "2020-01-01 00:00:00", "12:30:00"] for _ in range(50)]
    source = open_source(write_csv(["b", "t", "c"], *rows, [late, late, late]), None)
    assert dtypes(source) == {"b": "string", "t": "string", "c": "string"}
    assert list(records(source)[-1].values()) == [late] * 3


def test_line_breaks_within_values_survive_the_edges_of_blocks(
    write_csv: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_BYTES", 64)
    rows = [[i, f"{i}\n" * (i % 9)] for i in range(200)]
    assert [list(row.values()) for row in records(open_source(write_csv(["i", "s"], *rows), None))] == rows


def test_types_hold_over_all_files(write_csv: Write, tmp_path: Path) -> None:
    write_csv(["x"], [1], name="a.csv")
    write_csv(["x"], [1.5], name="b.csv")
    assert [row["x"] for row in records(open_source(str(tmp_path), None))] == [1.0, 1.5]


@pytest.mark.parametrize(("ending", "module"), [(".gz", gzip), (".bz2", bz2)])
def test_compressed_files_are_read_and_damaged_ones_named(
    write_csv: Write, tmp_path: Path, ending: str, module: Any
) -> None:
    plain = Path(write_csv(["x", "y"], *[[i * 7919 % 1000, i] for i in range(3000)])).read_bytes()
    path = tmp_path / f"z.csv{ending}"
    path.write_bytes(module.compress(plain))
    assert len(records(open_source(str(path), None))) == 3000
    path.write_bytes(module.compress(plain)[:-200])
    with pytest.raises(SourceError, match=r"z\.csv.*the compressed file is damaged or cut short"):
        open_source(str(path), None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; a CSV needs a header and at least one line"),
        (b"a,b\n", "the file is empty; a CSV needs a header and at least one line"),
        (b"a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        (b"a,b\n1,\xe9t\xe9\n", "line 2, byte 3 is not UTF-8; convert the file first, for example with: iconv"),
        (b"a,\xfc\n1,2\n", "line 1, byte 3 is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "not UTF-8"),
        (b"a,a\n1,2\n", "column names must differ, got 'a' more than once"),
        (b"a;b\n1;2\n", "separated by ';'; write the file with commas"),
        (b"a\tb\n1\t2\n", r"separated by '\\t'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(SourceError, match=rf"x\.csv.*{message}"):
        open_source(str(tmp_path / "x.csv"), None)


def test_files_of_different_headers_are_refused(write_csv: Write, tmp_path: Path) -> None:
    write_csv(["x"], [1], name="a.csv")
    write_csv(["y"], [1], name="b.csv")
    with pytest.raises(SourceError, match=r"b\.csv: its header differs"):
        open_source(str(tmp_path), None)


def test_a_file_that_changes_after_it_was_opened_is_found(write_csv: Write) -> None:
    url = write_csv(["x"], [1])
    source = open_source(url, None)
    write_csv(["x"], ["text"])
    with pytest.raises(SourceError, match="the file changed while it was read; build again"):
        records(source)
