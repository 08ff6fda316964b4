"""CSV files (`csv*.py`), declared types (`declared_types.py`), parts (`blocks.py`, `text_source.py`) and `find.py`."""

import bz2
import gzip
import lzma
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import ConfigError, SourceError
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.base import BadRecord, ReadSizes
from tests.helpers.contents import labels, records
from tests.servers.store import Store

Write = Callable[..., str]


def features(**dtypes: str) -> dict[str, Feature]:
    return {name: Feature(name=name, dtype=dtype) for name, dtype in dtypes.items()}


def dtypes(source: Source) -> dict[str, str]:
    return {feature.name: feature.dtype for feature in source.schema.features}


def test_values_are_read_as_written(write_csv: Write) -> None:
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
def test_a_late_value_widens_the_column(write_csv: Write, late: str, dtype: str) -> None:
    sizes = ReadSizes(block_bytes=64)
    url = write_csv(["x", "y"], *[[i, "a"] for i in range(100)], [late, "b"])
    source = open_source(url, "y", sizes=sizes)
    assert dtypes(source)["x"] == dtype
    assert len(records(source)) == 101


@pytest.mark.parametrize("late", ["maybe", "3", "1.5"])
def test_a_late_value_widens_bools_and_dates_to_text(write_csv: Write, late: str) -> None:
    sizes = ReadSizes(block_bytes=64)
    rows = [["true", "2020-01-01 00:00:00", "12:30:00"] for _ in range(50)]
    source = open_source(write_csv(["b", "t", "c"], *rows, [late, late, late]), None, sizes=sizes)
    assert dtypes(source) == {"b": "string", "t": "string", "c": "string"}
    assert list(records(source)[-1].values()) == [late] * 3


def test_line_ends_within_values_survive_block_boundaries(write_csv: Write) -> None:
    sizes = ReadSizes(block_bytes=64)
    rows = [[i, f"{i}\n" * (i % 9)] for i in range(200)]
    assert [list(row.values()) for row in records(open_source(write_csv(["i", "s"], *rows), None, sizes=sizes))] == rows


def test_types_hold_over_all_files(write_csv: Write, tmp_path: Path) -> None:
    write_csv(["x"], [1], name="a.csv")
    write_csv(["x"], [1.5], name="b.csv")
    assert [row["x"] for row in records(open_source(str(tmp_path), None))] == [1.0, 1.5]


def zstd(data: bytes) -> bytes:
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


@pytest.mark.parametrize(("ending", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", zstd)])
def test_compressed_files_are_read_and_damaged_ones_named(
    write_csv: Write, tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    plain = Path(write_csv(["x", "y"], *[[i * 7919 % 1000, i] for i in range(3000)])).read_bytes()
    path = tmp_path / f"z.csv{ending}"
    path.write_bytes(compress(plain))
    assert len(records(open_source(str(path), None))) == 3000
    packed = compress(plain)
    for damaged in (packed[:-200], b"a,b\n" * 100):
        path.write_bytes(damaged)
        with pytest.raises(SourceError, match=r"z\.csv.*the compressed file is damaged or cut short"):
            open_source(str(path), None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; a CSV needs a header and at least one line"),
        (b"a,b\n", "the file is empty; a CSV needs a header and at least one line"),
        (b"a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        (
            b"a,b\n1,\xe9t\xe9\n",
            "line 2, byte 3 is not UTF-8; if the file has another encoding, name it, for example: --encoding",
        ),
        (b"a,\xfc\n1,2\n", "line 1, byte 3 is not UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "not UTF-8"),
        (b"a,a\n1,2\n", "column names must differ, got 'a' more than once"),
        (b"a;b\n1;2\n", "separated by ';'; if so, add --delimiter"),
        (b"a\tb\n1\t2\n", r"separated by '\\t'"),
        (b'a,b\n1,2\n3,"x\n4,5\n', "line 3: a quoted field begins there and never ends; close it"),
        (b"a,b\0\n1,2\n", r"the column name 'b\\x00' holds a zero byte; rename it"),
        (b"a" + b",a" * 32768 + b"\n1,2\n", "the header has 32,769 columns, but the limit is 32,768"),
        (b"a" + b",a" * 10**6 + b"\n1,2\n", "the header has 1,000,001 columns, but the limit is 32,768"),
    ],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(SourceError, match=rf"x\.csv.*{message}"):
        open_source(str(tmp_path / "x.csv"), None)


def test_files_of_different_headers_are_refused(write_csv: Write, tmp_path: Path) -> None:
    write_csv(["x"], [1], name="a.csv")
    write_csv(["y"], [1], name="b.csv")
    with pytest.raises(SourceError, match=r"b\.csv: its columns differ .*only one of the two has a column 'x'"):
        open_source(str(tmp_path), None)


@pytest.mark.parametrize("label", ["y", "x", None])
def test_the_order_of_columns_may_differ(write_csv: Write, tmp_path: Path, label: str | None) -> None:
    write_csv(["x", "y", "z"], [1, "p", "+5"], name="a.csv")
    write_csv(["z", "x", "y"], ["6", 2.5, "7"], name="b.csv")
    write_csv(["y", "z", "x"], ["NA", "7", 3], name="c.csv")
    source = open_source(str(tmp_path), label, features={"x": Feature(name="x", dtype="float32")})
    expected = [{"x": 1.0, "y": "p", "z": 5}, {"x": 2.5, "y": "7", "z": 6}, {"x": 3.0, "y": "NA", "z": 7}]
    assert records(source) == expected
    assert labels(source) == [None if label is None else row[label] for row in expected]


def test_a_file_that_changes_after_it_was_opened_is_noticed(write_csv: Write) -> None:
    url = write_csv(["x"], [1])
    source = open_source(url, None)
    write_csv(["x"], ["text"])
    with pytest.raises(SourceError, match="the file changed while it was read; build again"):
        records(source)


BAD = [
    ("3", "line 3: Expected 3 columns, got 1"),
    ("3,4,5,6", "line 3: Expected 3 columns, got 4"),
    (" ", "line 3: Expected 3 columns, got 1"),
    ('"3\n",4', "line 3: Expected 3 columns, got 2"),
    ("\xff,1,2", "line 3, byte 1 is not UTF-8"),
    ('"\n\n\xff",1,2', "line 5, byte 1 is not UTF-8"),
    ("1,2,3\n\n4,5", "line 5: Expected 3 columns, got 2"),
]


@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
@pytest.mark.parametrize(("bad", "message"), BAD, ids=[case[1] for case in BAD])
def test_labels_and_drafts_name_or_skip_the_same_bad_lines(
    tmp_path: Path, block_bytes: int, bad: str, message: str
) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    path = tmp_path / "x.csv"
    path.write_bytes(f'a,b,c\n1,x,0.5\n{bad}\n7,"y\n",0.5\n8,9\n'.encode("latin-1"))
    with pytest.raises(SourceError) as caught:
        open_source(str(path), None, sizes=sizes)
    assert message in str(caught.value)
    seen: list[list[BadRecord]] = [[], [], []]
    source = open_source(str(path), "a", reject=seen[0].append, sizes=sizes)
    found = records(source, reject=seen[1].append)
    assert [row["a"] for row in found][-1] == 7
    assert labels(source, reject=seen[2].append) == [row["a"] for row in found]
    assert seen[0] == seen[1] == seen[2]
    assert [bad.reason for bad in seen[0]][1:] == ["Expected 3 columns, got 2"]
    assert source.sample(source.parts[0], 9).to_pylist() == found
    with pytest.raises(SourceError, match=r"x\.csv: line.*--on-bad-record"):
        labels(source)


PIECES = st.sampled_from(["a", '"', '""', "\n", "\r", "\r\n", ",", "x,y\n", '"q"', " ", '"a\nb",c\n'])


@given(st.lists(PIECES, max_size=25).map("".join), st.integers(1, 40))
def test_records_end_where_arrow_ends_them(body: str, block_bytes: int) -> None:
    bad: list[str] = []

    def skip(row: Any) -> str:
        bad.append(row.text)
        return "skip"

    names = ["h1", "h2"]
    whole = pacsv.read_csv(
        pa.BufferReader(body.encode() or b"\n"),
        read_options=pacsv.ReadOptions(column_names=names),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=skip),
        convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
    ).to_pylist()
    seen: list[BadRecord] = []
    with tempfile.TemporaryDirectory() as folder:
        sizes = ReadSizes(block_bytes=block_bytes, part_bytes=2 * block_bytes)
        path = Path(folder) / "x.csv"
        path.write_bytes(b"h1,h2\n" + body.encode())
        try:
            source = open_source(
                str(path), None, "csv", features(h1="string", h2="string"), lambda _: None, sizes=sizes
            )
        except SourceError as error:
            if "never ends" in str(error) or (not whole and re.search("is empty|no other record", str(error))):
                return
            raise
        assert records(source, reject=seen.append) == whole
        lines = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    assert len(seen) == len(bad)
    for record, line in zip(seen, bad, strict=True):
        first = line.replace("\r\n", "\n").replace("\r", "\n").partition("\n")[0]
        assert lines[int(record.place.removeprefix("line ")) - 1] == first.encode()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["1", "18446744073709551615"], "uint64"),
        (["18446744073709551615", "0", "1"], "uint64"),
        (["18446744073709551615", "-1", "0.5"], "float64"),
        (["", "2e19", "18446744073709551616"], "float64"),
        (["18446744073709551615", "1.5", " 7"], "float64"),
        (["2020-01-01", "2020-01-01 00:00:01"], "timestamp[s]"),
        (["2020-01-01 00:00:01.5", "2020-01-01"], "timestamp[ns]"),
        (["2020-01-01 00:00:01.5", "0001-01-01"], "string"),
        (["1", "true"], "string"),
        (["2020-01-01T00:00Z", "2020-01-01"], "string"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
def test_a_type_does_not_depend_on_where_blocks_end(
    write_csv: Write, values: list[str], dtype: str, block_bytes: int
) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    source = open_source(write_csv(["x"], *[[value] for value in values]), None, sizes=sizes)
    (feature,) = source.schema.features
    assert (feature.logical or feature.dtype) == dtype
    found = [row["x"] for row in records(source)]
    if dtype == "uint64":
        assert found == list(map(int, values))
    if dtype == "string":
        assert found == values


@pytest.mark.parametrize("late", ["0x10", "0Xff", " 0x1"])
@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
def test_hexadecimal_is_text(write_csv: Write, late: str, block_bytes: int) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    url = write_csv(["x", "y"], [7, 1], [late, 2])
    source = open_source(url, "y", sizes=sizes)
    assert dtypes(source) == {"x": "string", "y": "int64"}
    assert [row["x"] for row in records(source)] == ["7", late]


def test_hexadecimal_is_a_number_if_declared(write_csv: Write) -> None:
    url = write_csv(["x", "y"], [7, 1], ["0x10", 2], ["0Xff", 3])
    source = open_source(url, "y", features=features(x="int64"))
    assert [row["x"] for row in records(source)] == [7, 16, 255]


@pytest.mark.parametrize("value", ["1e400", "-1e400", "9" * 5000])
def test_a_number_beyond_float64_is_not_read_as_infinite(write_csv: Write, value: str) -> None:
    url = write_csv(["x", "y"], ["inf", 1], ["-Infinity", 1], ["0.5", 1], [value, 1])
    with pytest.raises(SourceError, match=r"\.csv: line 5: 'x': the number \S+ is beyond what a float64 holds"):
        open_source(url, None)
    source = open_source(url, None, features=features(x="float64"))
    assert [row["x"] for row in records(source, reject=lambda _: None)] == [float("inf"), float("-inf"), 0.5]


@pytest.mark.parametrize(
    ("name", "codec", "told"),
    [
        ("x.csv", gzip, r"is compressed \(gzip\); decompress it, or let its name end in \.gz"),
        ("x.csv", bz2, r"is compressed \(bzip2\); decompress it, or let its name end in \.bz2"),
        ("x.jsonl", lzma, r"is compressed \(xz\); decompress it, or let its name end in \.xz"),
        ("x.csv", pa.Codec("zstd"), r"is compressed \(zstd\); decompress it, or let its name end in \.zst"),
        ("x.csv.gz", gzip, r"is compressed twice \(gzip\); decompress it once"),
        ("x.jsonl.gz", bz2, r"is compressed twice \(bzip2\); decompress it once"),
    ],
)
def test_a_file_compressed_more_than_its_name_says(tmp_path: Path, name: str, codec: Any, told: str) -> None:
    data = codec.compress(b"a,b\n1,2\n")
    data = data.to_pybytes() if isinstance(data, pa.Buffer) else data
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(SourceError, match=rf"{name}: it {told}"):
        open_source(str(tmp_path / name), None)


def test_the_remedy_for_utf_16_names_it(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("a,b\n1,2\n".encode("utf-16"))
    with pytest.raises(SourceError, match="--encoding utf-16"):
        open_source(str(tmp_path / "x.csv"), None)


def test_the_remedy_for_other_bytes_keeps_euro_signs(tmp_path: Path) -> None:
    """As Latin-1, in which the bytes from 0x80 to 0x9F are control characters, they would come out as those."""
    (tmp_path / "x.csv").write_bytes("a,b\n1,€\n".encode("windows-1252"))
    with pytest.raises(SourceError, match="--encoding windows-1252"):
        open_source(str(tmp_path / "x.csv"), None)


def test_a_file_added_since_another_listing_is_found(store: Store) -> None:
    for number, name in enumerate(("a.csv", "b.csv", "c.csv"), start=1):
        store.write_bytes(f"in/{name}", b"x\n1\n")
        assert len(open_source(f"{store.url}/in/*.csv", None).parts) == number
        assert len(open_source(f"{store.url}/in", None).parts) == number


def test_a_name_may_hold_the_separator_of_chained_urls(store: Store) -> None:
    if store.name == "hdfs":
        pytest.skip("names there have no colons")
    store.write_bytes("in/std::vector.csv", b"x\n1\n")
    store.write_bytes("in/zip::y/a.csv", b"x\n2\n")
    assert records(open_source(f"{store.url}/in", None)) == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("pattern", ["in", "in/*.csv", "in*", "in/**"])
def test_a_broken_link_is_reported(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("x\n1\n")
    (tmp_path / "in" / "b.csv").symlink_to("annex/b.csv")
    with pytest.raises(SourceError, match=r"in/b\.csv is a broken link to annex/b\.csv; restore its target"):
        open_source(f"{tmp_path}/{pattern}", None)


def test_a_glob_skips_hidden_folders_that_it_does_not_name(store: Store) -> None:
    for number, name in enumerate(("a/x.csv", "a/_temporary/0/x.csv", "_old/.b/x.csv")):
        store.write_bytes(f"in/{name}", b"x\n%d\n" % number)
    assert records(open_source(f"{store.url}/in/**/*.csv", None)) == [{"x": 0}]
    assert records(open_source(f"{store.url}/in/a/**", None)) == [{"x": 0}]
    with pytest.raises(SourceError, match="no file matches"):
        open_source(f"{store.url}/in/_old/**/*.csv", None)
    assert records(open_source(f"{store.url}/in/_o*/**/*.csv", None)) == [{"x": 2}]


def test_a_pattern_without_a_match_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no file matches .*/\*\.csv; check the pattern"):
        open_source(f"{tmp_path}/*.csv", None)


def test_one_of_several_files_may_be_empty(tmp_path: Path) -> None:
    for name, content in {"a": "x,y\n", "b": "x,y\n1,2\n", "c": "x,y\n3\n"}.items():
        (tmp_path / f"{name}.csv").write_text(content)
    assert records(open_source(str(tmp_path), None, reject=lambda _: None), reject=lambda _: None) == [{"x": 1, "y": 2}]
    (tmp_path / "b.csv").rename(tmp_path / "b.txt")
    (tmp_path / "c.csv").write_text("x,y\n")
    with pytest.raises(SourceError, match=r"a\.csv: this file and 1 other are empty"):
        open_source(str(tmp_path), None)


def test_a_file_of_only_bad_lines_is_not_called_empty(write_csv: Write) -> None:
    with pytest.raises(SourceError, match=r"line 2: Expected 2 columns, got 1; .*: there is no other record"):
        open_source(write_csv(["x", "y"], [1], [2]), None, reject=lambda _: None)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (["18446744073709551615", "-1"], 2),
        (["1", "NA", "9223372036854775808", "", "18446744073709551616", "99999999999999999999"], 6),
        (["-9223372036854775809"], 2),
    ],
)
@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
def test_integers_are_never_rounded_unless_declared(
    write_csv: Write, values: list[str], line: int, block_bytes: int
) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    url = write_csv(["x", "y"], *[[value, 1] for value in values])
    with pytest.raises(SourceError, match=rf"\.csv: line {line}: 'x': the integer -?\d+\S* is beyond 6.*--schema"):
        open_source(url, None, sizes=sizes)
    assert len(records(open_source(url, None, wanted=lambda name: name == "y", sizes=sizes))) == len(values)
    assert [row["x"] for row in records(open_source(url, None, features=features(x="string"), sizes=sizes))] == values


def test_a_file_is_cut_into_parts_of_numbered_lines(write_csv: Write) -> None:
    sizes = ReadSizes(block_bytes=50, part_bytes=200)
    url = write_csv(["i", "s"], *[[i, "x\n" if i % 3 == 0 else "yy"] for i in range(300)])
    source = open_source(url, "s", "csv", features(i="uint8"), sizes=sizes)
    assert len(source.parts) > 5
    bad: list[BadRecord] = []
    assert [row["i"] for row in records(source, reject=bad.append)] == list(range(256))
    assert labels(source, reject=lambda _: None) == ["x\n" if i % 3 == 0 else "yy" for i in range(256)]
    lines = [f"line {2 + i + (i + 2) // 3}" for i in range(256, 300)]
    assert [(b.place, b.reason) for b in bad] == [
        (line, f"column 'i': '{i}' is no uint8") for line, i in zip(lines, range(256, 300), strict=True)
    ]
    early = [part for part in source.parts if part.first_record < 256]
    assert [next(source.drafts(part)).column(0)[0].as_py() for part in early[:3]] == [p.first_record for p in early[:3]]


def test_declared_types_hold(write_csv: Write) -> None:
    url = write_csv(["zip", "n", "f", "b"], ["00123", "1.0", "0.1", "1"], ["NA", "NA", "", ""])
    source = open_source(url, "zip", "csv", features(zip="string", n="int16", f="float32", b="bool"))
    assert dtypes(source) == {"zip": "string", "n": "int16", "f": "float32", "b": "bool"}
    assert [list(row.values()) for row in records(source)] == [
        ["00123", 1, pytest.approx(0.1), True],
        ["NA", None, None, None],
    ]
    with pytest.raises(ConfigError, match="'zpi', but there is no such column; did you mean 'zip'"):
        open_source(url, None, "csv", features(zpi="string"))
    with pytest.raises(ConfigError, match="'zip' is of CSV, which has no lists; give it a scalar type"):
        open_source(url, None, "csv", {"zip": Feature(name="zip", dtype="int8", shape=(2,))})


@pytest.mark.parametrize("text", ["1_000", "\uff11\uff12"])
def test_text_that_only_python_reads_as_an_integer_is_refused(write_csv: Write, text: str) -> None:
    source = open_source(write_csv(["n"], [text]), None, "csv", features(n="int16"))
    with pytest.raises(SourceError, match=f"line 2: column 'n': '{text}' is no int16"):
        list(source.drafts(source.parts[0]))


def test_tabs_separate_the_fields_of_tsv_files(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(b'\xef\xbb\xbfa\tb\r\n1,5\t"x\ty"\r\n2,5\tz\r\n')
    (tmp_path / "y.tsv.gz").write_bytes(gzip.compress(b"a\tb\n3\t\n"))
    source = open_source(str(tmp_path), None)
    assert [list(row.values()) for row in records(source)] == [["1,5", "x\ty"], ["2,5", "z"], ["3", ""]]
    (tmp_path / "x.tsv").write_bytes(b"a,b\n1,5\n")
    with pytest.raises(
        SourceError, match=r"x\.tsv: the fields seem to be separated by ','; if so, add --delimiter ','"
    ):
        open_source(str(tmp_path / "x.tsv"), None)


@pytest.mark.parametrize("name", ["in/a.tsv", "in/*.tsv.gz", "in"])
def test_members_of_archives_are_read(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.b.zip", "w") as archive:
        archive.writestr("in/a.tsv", "x\ty\n1\t2,5\n")
        archive.writestr("in/b.tsv.gz", gzip.compress(b"x\ty\n1\t2,5\n"))
    for chain in (f"zip://{name}::{tmp_path}/a.b.zip", f"simplecache::zip://{name}::file://{tmp_path}/a.b.zip"):
        assert records(open_source(chain, None)) == [{"x": 1, "y": "2,5"}] * (2 if name == "in" else 1)


def test_the_greatest_number_of_columns_is_read(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(1 << 15)]
    row = ",".join(map(str, range(1 << 15)))
    (tmp_path / "x.csv").write_text("\n".join([",".join(names), row, row, row, ""]))
    source = open_source(str(tmp_path / "x.csv"), None)
    batch = next(source.drafts(source.parts[0]))
    assert [column.to_pylist() for column in batch.columns] == [[i] * 3 for i in range(1 << 15)]


def test_unusual_names_and_values_are_kept(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'"a\nb",c\n"x\0",1\n"",2')
    assert records(open_source(str(tmp_path / "x.csv"), None)) == [{"a\nb": "x\0", "c": 1}, {"a\nb": "", "c": 2}]


def test_memory_stays_bounded_whatever_the_decompressed_size(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,") + gzip.compress(b"a" * (1 << 20)) * 150)
    code = """if True:
        import sys
        from ringfeed.sharding.sources import open_source
        try: open_source(sys.argv[1], None)
        except ValueError as error: assert "starts in line 2 is longer than 64 MiB" in str(error), error
        else: sys.exit(9)
        print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
    """
    peak = subprocess.run([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert int(peak) >> 10 < 400


@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["+9007199254740993", "+1", "-2", "3"], "int64"),
        (["+18446744073709551615", " +1", ""], "uint64"),
        (["+1", "18446744073709551615"], "uint64"),
        (["+1", "NA", "2.5"], "float64"),
        (["+4917612345678", "+49 176"], "string"),
        (["1e+5", "2"], "float64"),
    ],
)
def test_integers_may_have_a_plus_sign(write_csv: Write, values: list[str], dtype: str, block_bytes: int) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    source = open_source(write_csv(["x", "y"], *[[value, 1] for value in values]), "y", sizes=sizes)
    assert dtypes(source)["x"] == dtype
    parse: Callable[[str], Any] = {"string": str, "float64": float}.get(dtype, int)
    assert [row["x"] for row in records(source)] == [None if v in ("", "NA") else parse(v) for v in values]
    assert labels(source) == [1] * len(values)


def test_a_plus_sign_does_not_let_an_integer_be_rounded(write_csv: Write) -> None:
    url = write_csv(["x"], ["+18446744073709551616"], [1])
    with pytest.raises(SourceError, match=r"line 2: 'x': the integer 18446744073709551616 is beyond 64 bits"):
        open_source(url, None)


@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["01", "1", "2"], ["01", "1", "2"]),
        (["1", "+1", "-1"], ["1", "+1", "-1"]),
        (["01", "02", "10"], [1, 2, 10]),
        (["+1", "-1"], [1, -1]),
    ],
)
def test_a_label_that_spells_an_integer_in_two_ways_is_text(
    write_csv: Write,
    caplog: pytest.LogCaptureFixture,
    values: list[str],
    classes: list[Any],
    block_bytes: int,
) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    url = write_csv(["y", "x"], *[[value, value] for value in values])
    source = open_source(url, "y", sizes=sizes)
    assert labels(source) == classes
    assert [row["y"] for row in records(source)] == classes
    told = [record.getMessage() for record in caplog.records]
    assert (len(told) == 1 and f"'y' is read as text, because {values[0]!r} and {values[1]!r} are" in told[0]) or (
        classes == list(map(int, values)) and not told
    )
    assert dtypes(open_source(url, "x", sizes=sizes))["y"] == "int64"


@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
def test_text_that_may_mean_a_missing_value_is_counted(
    write_csv: Write, caplog: pytest.LogCaptureFixture, block_bytes: int
) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    url = write_csv(["n", "s", "y"], [1, "NA", "a"], ["NA", 2, "NA"], ["", "", ""], [4, "NA", "null"], [5, "b", "a"])
    source = open_source(url, "y", sizes=sizes)
    assert [row["s"] for row in records(source)] == ["NA", "2", "", "NA", "b"]
    (record,) = caplog.records
    assert record.getMessage().partition(": ")[2] == (
        "text that may mean a missing value stays text: 2 NA in 's', 1 NA in 'y', 1 empty in 'y', 1 null in 'y'; to "
        "read it as missing, add --null-values NA,'\"\"',null"
    )


@pytest.mark.parametrize("block_bytes", [1 << 23, 5])
def test_null_values_are_missing_in_columns_of_every_type(
    write_csv: Write, caplog: pytest.LogCaptureFixture, block_bytes: int
) -> None:
    sizes = ReadSizes(block_bytes=block_bytes)
    url = write_csv(["n", "p", "s", "y"], [-999, "+1", "-999", "NA"], ["NA", -999, "NA", "a"], [3, 4, "", "nan"])
    source = open_source(url, "y", null_values=("-999", "NA", ""), features=features(p="int64"), sizes=sizes)
    assert records(source) == [
        {"n": None, "p": 1, "s": None, "y": None},
        {"n": None, "p": None, "s": None, "y": "a"},
        {"n": 3, "p": 4, "s": None, "y": "nan"},
    ]
    assert labels(source) == [None, "a", "nan"]
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "1 nan in 'y'; to read it as missing, add --null-values -999,NA,'\"\"',nan"
    ]


def test_null_values_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": "NA"}\n')
    with pytest.raises(ConfigError, match=r"--null-values is for CSV and TSV, and .* is of kind jsonl"):
        open_source(str(tmp_path), None, null_values=("NA",))
