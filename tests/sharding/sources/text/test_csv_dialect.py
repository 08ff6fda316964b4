"""CSV with and without a header, in any delimiter and encoding (`csv_dialect.py`, `csv_header.py`)."""

import csv
import io
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import ConfigError, Feature, RingfeedError, SourceError, open_dataset, read_records
from ringfeed.sharding.prepare import CsvDialect, PrepareOptions, restore_options
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import ReadSizes
from ringfeed.tools.shard_dataset.program import main
from tests.helpers.contents import records


def read(path: Path, **dialect: Any) -> list[dict[str, Any]]:
    return list(records(open_source(str(path), None, "csv", csv=CsvDialect(**dialect))))


def rows_of(path: Path, **dialect: Any) -> list[list[Any]]:
    return [list(row.values()) for row in read(path, **dialect)]


class TestHeader:
    def test_of_numbers_between_spaces_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("59 2 32.1\n48 1 21.6\n")
        with pytest.raises(SourceError, match="--delimiter spaces, and --header none"):
            read(tmp_path / "a.csv")
        assert rows_of(tmp_path / "a.csv", delimiter="spaces", header="none") == [[59, 2, 32.1], [48, 1, 21.6]]

    @pytest.mark.parametrize("line", ["1,1.5,7", "-1,.5,1e3", "0,0.0,2", "1990,1991,1992", "5,0,1"])
    def test_of_numbers_alone_is_refused(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "a.csv"
        path.write_text(f"{line}\n4,5,6\n")
        with pytest.raises(SourceError, match=r"only numbers.*--header none.*--header first"):
            read(path)
        assert [list(map(float, row)) for row in rows_of(path, header="none")] == [
            list(map(float, line.split(","))),
            [4, 5, 6],
        ]
        assert list(read(path, header="first")[0]) == line.split(",")

    @pytest.mark.parametrize("line", ["1,word 1,0.125", "2020-01-01,x,3", "a,b,0", "0,1,2", "1,,3"])
    def test_that_fits_the_columns_is_reported(
        self, tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "a.csv"
        other = {"1,word 1,0.125": "2,word,1.5", "2020-01-01,x,3": "2021-02-02,y,4"}.get(line, "a,b,7")
        path.write_text(f"{line}\n{other if line not in ('0,1,2', '1,,3') else '4,5,6'}\n")
        assert len(read(path)) == 1
        assert "its first line may be a record" in caplog.text
        caplog.clear()
        assert len(read(path, header="first")) == 1
        assert len(rows_of(path, header="none")) == 2
        assert not caplog.text

    @pytest.mark.parametrize(
        ("line", "record"), [("x,y,z", "1,2,3"), (",0,1", "7,2,3"), ("name,1990b,1991b", "a,2,3"), ("a,b,c", "x,y,z")]
    )
    def test_of_names_is_not_reported(
        self, tmp_path: Path, line: str, record: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "a.csv").write_text(f"{line}\n{record}\n")
        assert len(read(tmp_path / "a.csv")) == 1
        assert not caplog.text

    def test_columns_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("1,2\n3,4\n")
        assert read(tmp_path / "a.csv", header="none") == [{"f0": 1, "f1": 2}, {"f0": 3, "f1": 4}]
        assert read(tmp_path / "a.csv", header="none", columns=("x", "y")) == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
        assert read(tmp_path / "a.csv", header="first", columns=("x", "y")) == [{"x": 3, "y": 4}]
        with pytest.raises(SourceError, match=r"line 1 has 2 fields, and --columns names 1"):
            read(tmp_path / "a.csv", header="none", columns=("x",))

    def test_none_holds_in_each_of_several_files(self, tmp_path: Path) -> None:
        for number in range(3):
            (tmp_path / f"{number}.csv").write_text("".join(f"{number},{row}\n" for row in range(5)))
        assert rows_of(tmp_path, header="none") == [[number, row] for number in range(3) for row in range(5)]
        (tmp_path / "1.csv").write_text("1,2,3\n")
        with pytest.raises(SourceError, match=r"1\.csv: its columns differ from .*0\.csv's"):
            read(tmp_path, header="none")


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t", " ", ":", "^", "~"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "utf-8-sig"])
def test_a_dialect_is_read_as_by_the_standard_library(tmp_path: Path, delimiter: str, encoding: str) -> None:
    rows = [
        ["größe", 'a "b"', "x"],
        [f"d{delimiter}e", "line\nend", "y"],
        *([f"é{n}", "ü" * n, "z"] for n in range(40)),
    ]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    path = tmp_path / "a.txt"
    path.write_bytes(text.getvalue().encode(encoding))
    expected = list(csv.reader(io.StringIO(text.getvalue(), newline=""), delimiter=delimiter))
    assert expected == rows
    dialect, sizes = CsvDialect(header="none", delimiter=delimiter, encoding=encoding), ReadSizes(block_bytes=50)
    read_in_blocks = records(open_source(str(path), None, "csv", csv=dialect, sizes=sizes))
    assert [list(row.values()) for row in read_in_blocks] == expected


_WORDS = st.text("abc.'-ü", min_size=1, max_size=5)


@given(
    st.lists(st.lists(_WORDS, min_size=3, max_size=3), min_size=1, max_size=30),
    st.lists(st.sampled_from([" ", "  ", "\t", " \t "]), min_size=1),
    st.sampled_from([20, 1 << 20]),
)
def test_runs_of_spaces_separate_as_str_split_does(rows: list[list[str]], gaps: list[str], size: int) -> None:
    from ringfeed.sharding.sources.text.csv_dialect import _Recoded

    text = "".join(
        gaps[n % len(gaps)].join(["", *row, ""] if n % 2 else row) + ("\r\n" if n % 3 else "\n")
        for n, row in enumerate(rows)
    )
    file = _Recoded(io.BytesIO(text.encode()), "a", "utf-8", single=True)
    data = b"".join(iter(lambda: file.read(size), b"")).decode()
    assert [line.split(" ") for line in data.splitlines()] == [line.split() for line in text.splitlines()]


def test_quotes_keep_spaces(tmp_path: Path) -> None:
    (tmp_path / "auto.data").write_text('18.0   8  307.0\t"chevrolet  chevelle ""x"""\n  15.5   8   350.0\t"buick"  \n')
    assert rows_of(tmp_path / "auto.data", header="none", delimiter="spaces") == [
        [18.0, 8, 307.0, 'chevrolet  chevelle "x"'],
        [15.5, 8, 350.0, "buick"],
    ]
    (tmp_path / "auto.data").write_text('1  "a\nb"\n')
    with pytest.raises(SourceError, match="does not end in its line"):
        read(tmp_path / "auto.data", header="none", delimiter="spaces")


def test_another_encoding_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("a,b\n1,é\n".encode("latin-1"))
    with pytest.raises(SourceError, match="it is not utf-16"):
        read(tmp_path / "a.csv", encoding="utf-16")
    assert rows_of(tmp_path / "a.csv", encoding="latin-1") == [[1, "é"]]


@pytest.mark.parametrize(
    "wrong",
    [{"delimiter": "ab"}, {"delimiter": "x"}, {"delimiter": '"'}, {"encoding": "base64"}, {"encoding": "nope"},
     {"header": "maybe"}, {"columns": ("a", "a")}, {"decimal": "'"}, {"decimal": ",", "delimiter": ","}],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CsvDialect(**wrong)


@pytest.mark.parametrize("declared", [{}, {"x": Feature(name="x", dtype="float32")}])
def test_a_decimal_comma_begins_a_fraction(tmp_path: Path, declared: dict[str, Feature]) -> None:
    texts = ["1,5", "-0,25", "7", "", "1e3", "+2,75", "98765432109876543210,5", ",5"]
    path = tmp_path / "a.csv"
    path.write_text("x;y\n" + "".join(f"{text};a,{text}\n" for text in texts))
    for block_bytes in (1 << 20, 12):
        source = open_source(
            str(path), None, features=declared, csv=CsvDialect(delimiter=";", decimal=","),
            sizes=ReadSizes(block_bytes=block_bytes),
        )  # fmt: skip
        kind = np.float32 if declared else np.float64
        expected = [float(kind(text.replace(",", "."))) if text else None for text in texts]
        assert [list(row.values()) for row in records(source)] == [
            [number, f"a,{text}"] for number, text in zip(expected, texts, strict=True)
        ]


WARNINGS = {  # a column of text, the delimiter, and what is said of it
    "decimal commas": (["1,5", "2", "NA"], ";", "numbers with a decimal comma stay text, in 'x'; .* --decimal ,"),
    "another word": (["1.5", "k. A.", "2", "n/a"], ",", "because of 'k. A.' in 'x'; .* add --null-values 'k. A.'"),
    "thousands": (['"1,500"', '"2,500"'], ",", ""),
    "words": (["a", "b,5", "c"], ";", ""),
    "keys": (["1", "A2", "B3", "4", "C5", "6", "7"], ",", ""),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_numbers_that_stay_text_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    texts, delimiter, words = WARNINGS[name]
    (tmp_path / "a.csv").write_text("".join(f"{text}{delimiter}y\n" for text in ["x", *texts]))
    read(tmp_path / "a.csv", delimiter=delimiter, header="first")
    found = [text for text in caplog.messages if "may mean a missing value" not in text]
    assert len(found) == bool(words)
    assert all(re.search(words, text) for text in found)


FAULTS = {  # a file, its encoding, the flags that it needs, and its last record
    "delimiter": ("x;y\n1;2\n", "utf-8", "--delimiter ;", [1, 2]),
    "decimal commas, too": ("x|y\n1,5|2\n0,25|3\n", "utf-8", "--delimiter | --decimal ,", [0.25, 3]),
    "encoding, too": ("größe;y\n1;2\n", "cp1252", "--delimiter ; --encoding windows-1252", [1, 2]),
    "encoding of a later line": (
        *("x\ty\n1\t2\n-1,5\té\n", "cp1252", "--delimiter tab --decimal , --encoding windows-1252", [-1.5, "é"]),
    ),
    "two bytes a letter": ("x;y\n1,5;2\n", "utf-16", "--delimiter ; --decimal , --encoding utf-16", [1.5, 2]),
    "no header": ("1,5;7\n2,5;8\n", "utf-8", "--delimiter ; --decimal , --header none", [2.5, 8]),
    "commas in the header": ("x, in m;y\n1,5;a,b,c\n", "utf-8", "--delimiter ; --decimal ,", [1.5, "a,b,c"]),
    "spaces and no header": ("59 2 32.1\n4 5 6\n", "utf-8", "--delimiter spaces --header none", [4, 5, 6]),
    "encoding and decimal commas": (
        *("x;y\n1,5;\xe9\n", "latin-1", "--decimal , --encoding windows-1252", [1.5, "é"]),
        {"delimiter": ";"},
    ),
    "one column": ("x\n1\né\n", "cp1252", "--encoding windows-1252", ["é"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_all_that_does_not_fit_the_dialect_is_named_at_once(tmp_path: Path, name: str) -> None:
    text, encoding, flags, last, *rest = FAULTS[name]
    given: dict[str, str] = rest[0] if rest else {}
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    with pytest.raises(SourceError) as raised:
        read(tmp_path / "a.csv", **given)
    words = raised.value.flags
    assert " ".join(words) == flags
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    assert all(re.search(f"{flag} '?{re.escape(value)}", str(raised.value)) for flag, value in wanted.items())
    dialect = given | {flag[2:]: value for flag, value in wanted.items()}
    assert rows_of(tmp_path / "a.csv", **dialect)[-1] == last


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mass,kind\n1,5,a\n2,6,b\n", "header has 2 fields, and each record after it 3; name every"),
        ("# from the lab\nx,y\n1,2\n", "header has 1 field, and each record after it 2; .* remove the first line if"),
        ("x,y\n1,2,3\n4,5\n", "line 2: Expected 2 columns, got 3"),
    ],
)
def test_a_header_of_another_length_than_all_records_is_named(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(SourceError, match=error):
        read(tmp_path / "a.csv")


def test_the_command_that_fits_is_printed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_bytes("größe;y\n1,5;2\n".encode("cp1252"))
    command = ["build", str(tmp_path / "a.csv"), str(tmp_path / "out"), "--shards", "1", "-q", "--workers", "1"]
    command += ["--min-class-records", "1"]
    assert main(command) == 1
    whole = capsys.readouterr().err.strip().partition("; the whole command: ")[2]
    assert main(shlex.split(whole)[1:]) == 0
    assert [list(row.values()) for row in read_records(open_dataset(str(tmp_path / "out")), "train", 9)] == [[1.5, 2]]


def test_other_kinds_take_no_dialect(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(RingfeedError, match=r"are for CSV and TSV.*jsonl"):
        open_source(str(tmp_path / "a.jsonl"), None, csv=CsvDialect(header="none"))


def test_a_dialect_is_recorded_and_restored() -> None:
    dialect = CsvDialect(header="none", columns=("a,b", "c"), delimiter="tab", encoding="UTF-16", decimal=",")
    recorded = PrepareOptions(csv=dialect).recorded()
    assert restore_options(recorded, "").csv == dialect
    assert PrepareOptions().recorded() == PrepareOptions(csv=CsvDialect(header="first")).recorded() == {}


def test_append_and_repair_read_as_the_build_did(tmp_path: Path) -> None:
    source, out = tmp_path / "a.data", tmp_path / "out"
    source.write_bytes("".join(f"{n}   é{n}  {n % 2}\n" for n in range(20)).encode("latin-1"))
    flags = ["--source-kind", "csv", "--header", "none", "--columns", "n,s,y", "--delimiter", "spaces"]
    flags += ["--encoding", "latin-1", "--label", "y", "--shards", "2", "-q", "--workers", "1"]
    assert main(["build", str(source), str(out), *flags]) == 0
    (tmp_path / "b.data").write_bytes(b"99  \xe9  1\n98  x  0\n")
    assert (
        main(["append", str(tmp_path / "b.data"), str(out), "--source-kind", "csv", "--min-class-records", "1", "-q"])
        == 0
    )
    shard = sorted(out.glob("train-*"))[0]
    content = shard.read_bytes()
    shard.write_bytes(content[:50] + b"\0\0\0\0" + content[54:])
    sources = ["--source-kind", "csv", "--source", str(source), "--source", f"{tmp_path}/b.data"]
    assert main(["repair", str(out), "-q", *sources]) == 0
    assert shard.read_bytes() == content
    dataset = open_dataset(str(out))
    assert {"n": 99, "s": "é", "y": 1} in list(read_records(dataset, "train", dataset.manifest.records))
