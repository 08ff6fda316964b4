"""JSON Lines files (`jsonl.py`, `json_*.py`), their declared types and their parts (`blocks.py`, `text_source.py`)."""

import bz2
import gzip
import json
import lzma
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding import ConfigError, SourceError
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.prepare.open import open_prepared
from ringfeed.sharding.prepare.steps import Drop, Select
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.base import BadRecord, ReadSizes
from ringfeed.sharding.sources.text import blocks as text
from ringfeed.sharding.sources.text import json_types
from tests.helpers.builds import built
from tests.helpers.contents import labels, records

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*lines: Any, name: str = "x.jsonl", end: str = "\n") -> str:
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        (tmp_path / name).write_bytes("".join(f"{line}{end}" for line in texts).encode("utf-8", "surrogatepass"))
        return str(tmp_path / name)

    return write


@pytest.fixture(params=[1 << 23, 16])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of any size, down to one line, of which but the first is read by Python's parser if Arrow's can."""
    monkeypatch.setattr(text, "_BLOCK_BYTES", request.param)
    monkeypatch.setattr(json_types, "_FIRST_LINES", 1)


def types(source: Source) -> dict[str, Any]:
    return {f.name: (f.dtype, f.shape) if f.shape else f.dtype for f in source.schema.features}


@pytest.mark.usefixtures("blocks")
def test_values_are_read_as_written(write: Write) -> None:
    url = write(
        {"i": 1, "f": 2.5, "s": "a\n\0ü", "b": True, "day": "2020-01-01", "o": {"x": 1, "y": {"z": "é"}}, "n": None},
        "",
        {"i": -5, "f": 1e-3, "s": "", "b": False, "day": "2020-01-02", "o": None},
        {"o": {"y": {}}, "i": 2**63 - 1},
    )
    source = open_source(url, "o.x")
    assert types(source) == {
        "i": "int64", "f": "float64", "s": "string", "b": "bool", "day": "string", "o.x": "int64", "o.y.z": "string",
        "n": "string",
    }  # fmt: skip
    assert [list(row.values()) for row in records(source)] == [
        [1, 2.5, "a\n\0ü", True, "2020-01-01", 1, "é", None],
        [-5, 0.001, "", False, "2020-01-02", None, None, None],
        [2**63 - 1, None, None, None, None, None, None, None],
    ]
    assert labels(source) == [1, None, None]
    assert source.sample(source.parts[0], 1).to_pylist() == records(source)[:1]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(
    ("values", "dtype", "read"),
    [
        ([1, 2.5], "float64", [1.0, 2.5]),
        ([2.5, None, -(2**63)], "float64", [2.5, None, -(2.0**63)]),
        ([1, 2**64 - 1], "uint64", [1, 2**64 - 1]),
        ([-1, 2**64 - 1, 0.5], "float64", [-1.0, 2.0**64, 0.5]),
        ([0.5, 2**70], "float64", [0.5, 2.0**70]),
        ([2**70, None, "x"], "string", [str(2**70), None, "x"]),
        ([1, "x", 1.50, True, None], "string", ["1", "x", "1.5", "true", None]),
        ([True, 0], "string", ["true", "0"]),
        ([None, None], "string", [None, None]),
        (["2020-01-01", "x"], "string", ["2020-01-01", "x"]),
        ([float("inf"), float("-inf"), 1], "float64", [float("inf"), float("-inf"), 1.0]),
        ([[1, 2], [3, 4]], ("int64", (2,)), [[1, 2], [3, 4]]),
        ([[1, 2], None, [3.5, 4]], ("float64", (2,)), [[1.0, 2.0], None, [3.5, 4.0]]),
        ([[], [1], None, [1, 2]], ("int64", (None,)), [[], [1], None, [1, 2]]),
        ([[], []], ("string", (None,)), [[], []]),
        ([[1, None], ["x", True]], ("string", (2,)), [["1", None], ["x", "true"]]),
        ([[[1, 2, 3], [4, 5, 6]], None], ("int64", (2, 3)), [[1, 2, 3, 4, 5, 6], None]),
    ],
)
def test_a_column_has_the_narrowest_type_that_holds_its_values(
    write: Write, values: list[Any], dtype: Any, read: list[Any]
) -> None:
    source = open_source(write(*[{"x": value} for value in values]), None)
    assert types(source) == {"x": dtype}
    assert [row["x"] for row in records(source)] == read


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=5)


def as_text(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else json.dumps(value)


@given(
    st.lists(st.dictionaries(st.text("ab.\n", max_size=2), SCALARS, min_size=1), min_size=1, max_size=30),
    st.integers(1, 300),
    st.sampled_from([",:", ", :"]),
)
def test_any_records_are_read_as_python_reads_them(rows: list[dict[str, Any]], block_bytes: int, marks: str) -> None:
    separators = (marks[:-1], marks[-1])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "x.jsonl"
        path.write_text("".join(json.dumps(row, separators=separators) + "\n" for row in rows), encoding="utf-8")
        sizes = ReadSizes(block_bytes=block_bytes, part_bytes=2 * block_bytes)
        patch.setattr(json_types, "_FIRST_LINES", 1)
        source = open_source(str(path), None, sizes=sizes)
        found = records(source)
        kinds = types(source)
    assert list(kinds) == list(dict.fromkeys(key for row in rows for key in row))
    assert len(found) == len(rows)
    make = {"int64": int, "uint64": int, "float64": float, "bool": bool, "string": as_text}
    for row, read in zip(rows, found, strict=True):
        for key, kind in kinds.items():
            value = row.get(key)
            expected = None if value is None else make[kind](value)
            assert repr(read[key]) == repr(expected)


FAR = [
    ([2**64], 1, "is beyond 64 bits"),
    ([1, 2**63, -(2**70), 2**64], 3, "is beyond 64 bits"),
    ([-1, 2**64 - 1], 2, "is beyond 63 bits, and others are negative"),
    ([2**63, 1, -1], 1, "is beyond 63 bits, and others are negative"),
    ([[1, 2], [3, 2**64]], 2, "is beyond 64 bits"),
]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("values", "line", "what"), FAR)
def test_integers_are_never_rounded_unless_declared(write: Write, values: list[Any], line: int, what: str) -> None:
    url = write(*[{"i": i, "x": value} for i, value in enumerate(values)])
    with pytest.raises(SourceError, match=rf"x\.jsonl: line {line}: 'x': the integer -?\d+ {what}; declare 'x'"):
        open_source(url, None)
    assert [row["i"] for row in records(open_source(url, None, wanted=lambda name: name != "x"))] == [
        *range(len(values))
    ]
    if not isinstance(values[0], list):
        source = open_source(url, None, features=features(x="string"))
        assert [row["x"] for row in records(source)] == list(map(str, values))
        source = open_source(url, None, features=features(x="int64"))
        kept = [value for value in values if -(2**63) <= value < 2**63]
        assert [row["x"] for row in records(source, reject=lambda _: None)] == kept


def test_types_hold_over_all_files_and_parts(write: Write, tmp_path: Path) -> None:
    sizes = ReadSizes(block_bytes=64, part_bytes=256)
    write(*[{"i": i} for i in range(100)], name="a.jsonl")
    write({"i": 100.5, "late": "x"}, name="b.ndjson")
    write(name="c.jsonl")
    source = open_source(str(tmp_path), "i", sizes=sizes)
    assert len(source.parts) > 3
    assert [row["i"] for row in records(source)] == labels(source) == [*map(float, range(100)), 100.5]
    firsts = [next(iter(source.drafts(part))).column(0)[0].as_py() for part in source.parts if "a.js" in part.path]
    assert firsts == [part.first_record for part in source.parts if "a.js" in part.path]


def test_any_store_is_read_in_parts(store: Any) -> None:
    sizes = ReadSizes(block_bytes=1000, part_bytes=3000)
    store.write_bytes("x.jsonl", b"".join(b'{"i": %d}\n' % i for i in range(1000)))
    source = open_source(f"{store.url}/x.jsonl", "i", sizes=sizes)
    assert len(source.parts) > 2
    assert labels(source) == [row["i"] for row in records(source)] == list(range(1000))


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst"])
def test_compressed_files_are_read_and_damaged_ones_named(tmp_path: Path, ending: str) -> None:
    plain = b"".join(b'{"i": %d}\n' % (i * 7919 % 10007) for i in range(10000))
    pack = {
        "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress,
        "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    }[ending]  # fmt: skip
    path = tmp_path / f"x.jsonl.{ending}"
    path.write_bytes(pack(plain))
    source = open_source(str(path), "i")
    assert len(source.parts) == 1
    assert labels(source) == [i * 7919 % 10007 for i in range(10000)]
    path.write_bytes(pack(plain)[:-100])
    with pytest.raises(SourceError, match=rf"x\.jsonl\.{ending}.*the compressed file is damaged or cut short"):
        open_source(str(path), None)


GOOD = '{"i": 1, "s": "a"}'
BAD = [
    ('{"i": 1', "line 2: no JSON object: Expecting ',' delimiter at character 8"),
    ("null", "no JSON object: it is no object in braces"),
    ("[1]", "it is no object in braces"),
    ('[{"i": 1},', "begins a list; jq -c '.[]' FILE makes lines of it"),
    ("{", "the object goes on in other lines; jq -c . FILE writes each as a line"),
    ('{"i": 1} {"i": 2}', "Extra data at character 10"),
    ('{"i":\n1}', "line 2: no JSON object"),
    ('{"i": 1, "i": 2}', "the key 'i' is there twice"),
    ('{"i": 1, "o": {"s": 1, "s": 2}}', "the key 's' is there twice"),
    ('{"i": 01}', "Expecting ',' delimiter"),
    ('{"i": 1e400}', "the number 1e400 is beyond what a float64 holds"),
    ('{"i": 1' + "0" * 400 + "}", "is beyond what a float64 holds"),
    ('{"i": 1, "x": -Inf}', "Expecting value"),
    ('{"s": "a\tb"}', "Invalid control character"),
    ('{"s": "a\0b"}', "Invalid control character"),
    ('{"i": 1}\0', "Extra data"),
    ('{"s": "\\ud800"}', "half a surrogate pair is no character"),
    ('{"s": "\ud800"}', "line 2, byte 8 is not UTF-8"),
    ('{"i": ' + "[" * 200_000 + "]" * 200_000 + "}", "it is nested too deeply"),
    ("\ufeff{}", "no JSON object"),
    ("\x0b", "no JSON object"),
]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("bad", "message"), BAD, ids=[case[1] for case in BAD])
def test_labels_and_drafts_name_or_skip_the_same_bad_lines(write: Write, bad: str, message: str) -> None:
    url = write(GOOD, bad, '{"i": 3, "s": "ü"}')
    with pytest.raises(SourceError, match=r"x\.jsonl.*line 2") as caught:
        open_source(url, None)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    seen: list[list[BadRecord]] = [[], [], []]
    source = open_source(url, "i", reject=seen[0].append)
    assert labels(source, reject=seen[1].append) == [1, 3]
    assert [list(row.values()) for row in records(source, reject=seen[2].append)] == [[1, "a"], [3, "ü"]]
    assert seen[0] == seen[1] == seen[2] != []
    with pytest.raises(SourceError, match="line 2"):
        labels(source)
    assert 1 <= source.sample(source.parts[0], 9).num_rows <= 2


@pytest.mark.usefixtures("blocks")
def test_both_parsers_agree_on_what_is_a_number(write: Write) -> None:
    url = write('{"f": 0.5}', '{"f": -Infinity}', '{"f": -Inf}', '{"f": [-Inf]}', '{"f": 1}')
    with pytest.raises(SourceError, match="line 3: no JSON object"):
        open_source(url, None)
    source = open_source(url, "f", reject=lambda _: None)
    assert labels(source, reject=lambda _: None) == [0.5, float("-inf"), 1.0]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[1]"], r"line 1: no JSON object"),
        ([], "no record has a key"),
        (["", "{}"], "no record has a key"),
        (['{"x": 1}', '{"x": [1]}'], r"line 2: 'x' is a list in one record, and none in another"),
        (['{"x": 1}', '{"x": {"y": 1}}'], r"line 2: 'x' is an object in one record, and none in another"),
        (['{"x": {"y": 1}}', '{"x": 1}'], r"line 2: 'x' is an object in one record, and none in another"),
        (['{"x": [{"y": 1}]}'], "'x' is a list of objects"),
        (['{"x": [[1], [1, 2]]}'], "'x' holds lists of lists that differ in length"),
        (['{"x": [[1], null]}'], "'x' holds lists of lists that differ in length"),
        (['{"x": [1, [2]]}'], "'x' is a list of values and lists"),
        (['{"x": {"y": 1}, "x.y": 2}'], r"the keys \['x', 'y'\] and \['x.y'\] both make column 'x.y'; rename one"),
        (['{"a\\u0000": 2}'], "holds a zero byte; rename it"),
        (['{"a":' * 40 + "1" + "}" * 40], "objects within objects, more than 32"),
        (['{"a":' + "[" * 40 + "1" + "]" * 40 + "}"], "lists within lists, more than 32"),
    ],
)
@pytest.mark.usefixtures("blocks")
def test_objects_that_make_no_columns_are_named(write: Write, lines: list[str], message: str) -> None:
    with pytest.raises(SourceError, match=rf"x\.jsonl.*{message}"):
        open_source(write(*lines), None)


UNFIT = [
    ([{"x": 1}, {"x": [1]}], ("x",)),
    ([{"x": 1}, {"x": {"y": 1}}], ("x",)),
    ([{"x": {"y": 1}}, {"x": 1}, {"x": {"z": 1}}], ("x",)),
    ([{"x": [{"y": 1}]}, {}, {"x": None}], ("x",)),
    ([{"x": [[1], [1, 2]]}], ("x",)),
    ([{"x": {"y": [{}], "z": 1}}, {"x": {"z": 2, "y": {}}}], ("x",)),
    ([{"x": {"y": [{}], "z": 1}}, {"x": {"y": 3}}], ("x.y", "x.z")),
    ([{"x": {"y": [{}]}}, {"x": {"y": 3}}], ("x.y",)),
    ([{"x": {"y": 1}, "x.y": 2}], ("x.y",)),
    ([{"x\0": 1}], ("x\0",)),
    ([{"x": {str(i): i for i in range(60)}}], ("x",)),
    ([{str(i): i for i in range(60)}], tuple(map(str, range(60)))),
    ([json.loads('{"x":' * 40 + "1" + "}" * 40)], ("x",)),
    ([json.loads('{"x":' + "[" * 40 + "1" + "]" * 40 + "}")], ("x",)),
    ([{"x": {"y": 1}}, {"x": {"y": 2}}], ("x",)),
]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("rows", "names"), UNFIT)
def test_objects_that_make_no_columns_can_be_left_out(
    write: Write, monkeypatch: pytest.MonkeyPatch, rows: list[Any], names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(json_types, "_MOST_COLUMNS", 50)
    url = write(*[{"i": i} | row | {"end": "e"} for i, row in enumerate(rows)])
    for step in (Drop(names), Select(("i", "end"))):
        source = open_prepared(url, "end", "auto", PrepareOptions(steps=(step,)))
        read = records(source)
        assert read == [{"i": i, "end": "e"} for i in range(len(rows))]


def test_keys_of_an_object_can_be_kept(write: Write) -> None:
    url = write({"x": {"y": 1, "tags": [{}]}}, {"x": {"y": 2, "z": 3}})
    for step in (Drop(("x.tags",)), Select(("x.y", "x.z"))):
        source = open_prepared(url, None, "auto", PrepareOptions(steps=(step,)))
        assert source.schema.names == ("x.y", "x.z")
    with pytest.raises(
        SourceError, match=r"line 1: 'x\.tags' is a list of objects.*or leave 'x\.tags' out by the first"
    ):
        open_prepared(url, None, "auto", PrepareOptions(steps=(Drop(("x.y",)),)))
    typed = PrepareOptions(features=features(**{"x.y": "float32"}), steps=(Select(("x.y",)),))
    assert open_prepared(url, None, "auto", typed).schema["x.y"].dtype == "float32"
    with pytest.raises(ConfigError, match="no column is left"):
        open_prepared(url, None, "auto", PrepareOptions(steps=(Drop(("x",)),)))


def test_too_many_different_keys_are_refused(write: Write) -> None:
    with pytest.raises(SourceError, match=r"line 10001: the key '10000' is one of more than 10,000 different keys"):
        open_source(write(*[{str(i): i} for i in range(12_000)]), None)


def test_any_line_ends_and_a_byte_order_mark_are_read(write: Write) -> None:
    for end in ("\n", "\r\n", "  \n", "\n\n \n"):
        url = write("\ufeff" + GOOD, GOOD, end=end)
        assert [list(row.values()) for row in records(open_source(url, None))] == [[1, "a"]] * 2
    Path(url).write_text(f"{GOOD}\n{GOOD}", encoding="utf-8")
    assert len(records(open_source(url, None))) == 2


def features(**kinds: Any) -> dict[str, Feature]:
    return {
        name: Feature(name=name, dtype=kind) if isinstance(kind, str) else Feature(name=name, **kind)
        for name, kind in kinds.items()
    }


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(
    ("kind", "values", "read", "reasons"),
    [
        ("string", [123, "00123", 1.50, True, None], ["123", "00123", "1.5", "true", None], []),
        ("int8", [1, 127, 5.0, "7", None], [1, 127, 5, 7, None], []),
        ("int8", [1, 128, 5.5, "x", [1], {"y": 1}], [1], ["128", "5.5", "'x'", r"\['1'\]", r"\{'y': '1'\}"]),
        ("uint64", [2**64 - 1, -1], [2**64 - 1], ["-1"]),
        ("float32", [0.5, 1, 1e39, "Infinity"], [0.5, 1.0, float("inf")], ["1e\\+39"]),
        ("float16", [0.5, 70000], [0.5], ["70000"]),
        ("bool", [True, False, "yes"], [True, False], ["'yes'"]),
        ("binary", ["ü", "b"], ["ü".encode(), b"b"], []),
        ({"dtype": "float32", "shape": (2,)}, [[1, 2], [1], None, [3, "x"]], [[1.0, 2.0], None], ["1", "x"]),
        ({"dtype": "int32", "shape": (None,)}, [[1, 2], [], None, 3], [[1, 2], [], None], ["3"]),
        ({"dtype": "uint8", "shape": (2, 1)}, [[[1], [2]], [[1, 2]]], [[1, 2]], ["1"]),
        ({"dtype": "int32", "logical": "date32[day]"}, ["1970-01-03", "x"], [2], ["x"]),
    ],
)
def test_declared_types_hold_or_the_record_is_rejected(
    write: Write, kind: Any, values: list[Any], read: list[Any], reasons: list[str]
) -> None:
    url = write(*[{"i": i, "x": value} for i, value in enumerate(values)])
    source = open_source(url, "i", "jsonl", features(x=kind))
    assert source.schema["x"] == features(x=kind)["x"]
    seen: tuple[list[BadRecord], list[BadRecord]] = ([], [])
    found = records(source, reject=seen[0].append)
    assert [row["x"] for row in found] == read
    assert labels(source, reject=seen[1].append) == [row["i"] for row in found]
    assert seen[0] == seen[1]
    kept = {row["i"] for row in found}
    assert [bad.place for bad in seen[0]] == [f"line {i + 1}" for i in range(len(values)) if i not in kept]
    for bad, reason in zip(seen[0], reasons, strict=True):
        assert re.search(rf"'x': .*{reason}.* is no ", bad.reason)
    if reasons:
        with pytest.raises(SourceError, match=r"x\.jsonl: line \d+: 'x': .*fix or remove it.*--on-bad-record"):
            labels(source)


def test_declared_types_of_missing_columns_are_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="'zpi', but there is no such column; did you mean 'zip'"):
        open_source(write({"zip": 1}), None, features=features(zpi="string"))
    with pytest.raises(ConfigError, match=r"'zip' cannot be read from text as time32\[s\]"):
        open_source(write({"zip": 1}), None, features=features(zip={"dtype": "int32", "logical": "time32[s]"}))


def test_a_file_that_changes_after_it_was_opened_is_noticed(write: Write) -> None:
    source = open_source(write({"x": 123}), None)
    write({"x": "a"})
    with pytest.raises(SourceError, match="line 1: 'x': 'a' is no int64; the file changed while it was read"):
        records(source)


def test_batches_stay_small_if_values_are_missing(write: Write) -> None:
    url = write({f"k{i}": i for i in range(2000)}, *["{}"] * 5000)
    source = open_source(url, None)
    batches = list(source.drafts(source.parts[0]))
    assert sum(batch.num_rows for batch in batches) == 5001
    assert max(batch.nbytes for batch in batches) < 32 << 20


def peak_mib(code: str, path: Path) -> int:
    """The most memory that a process needs to run some code on a file, which knows itself as `url`."""
    head = "import sys\nfrom ringfeed.sharding.sources import open_source\nurl = sys.argv[1]\n"
    tail = "\nprint(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    command = [sys.executable, "-c", head + code + tail, str(path)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout) >> 10


def test_memory_stays_bounded_whatever_the_decompressed_size(tmp_path: Path) -> None:
    member = gzip.compress((json.dumps({"x": "a" * 100_000}).encode() + b"\n") * 100)
    (tmp_path / "a.jsonl.gz").write_bytes(member * 15)  # 150 MB
    code = "source = open_source(url, None)\nassert sum(map(len, source.labels(source.parts[0]))) == 1500"
    assert peak_mib(code, tmp_path / "a.jsonl.gz") < 270
    member = gzip.compress(b"a" * (1 << 20))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"x": "') + member * 150)
    code = (
        "try: open_source(url, None)\n"
        "except ValueError as error: assert 'starts in line 1 is longer than 64 MiB' in str(error)\n"
        "else: sys.exit(9)"
    )
    assert peak_mib(code, tmp_path / "b.jsonl.gz") < 400


def test_a_dataset_is_built_from_json_lines(write: Write, tmp_path: Path) -> None:
    url = write(*[{"id": i, "label": "ab"[i % 3 == 0], "v": [i / 2, 1.0]} for i in range(300)])
    source = open_source(url, "label", features=features(v={"dtype": "float32", "shape": (2,)}))
    assert pickle.loads(pickle.dumps(source)) == source
    dataset = built(url, tmp_path / "out", label="label", shards=3)
    assert dataset.manifest.records == 300
