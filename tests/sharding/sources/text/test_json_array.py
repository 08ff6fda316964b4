"""JSON arrays as sources (`json_array.py`, `JsonSource`): the records of `json`, or one line of what is wrong."""

from __future__ import annotations

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding import SourceError
from ringfeed.sharding.prepare.screening.record_origins import describe_origin
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import BadRecord
from ringfeed.sharding.sources.detect import kind_of
from ringfeed.sharding.sources.text import blocks as text
from ringfeed.sharding.sources.text import json_array
from tests.helpers.contents import records

RECORDS = [{"name": 'a "b"\\', "place": {"x": 1, "y": 2.5}}, {"name": "[é},{", "place": {"x": 2, "y": None}}]


def _value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(6 if depth < 3 else 4):
        case 0:
            return rng.choice([None, True, 0.5, -12])
        case 1 | 2 | 3:
            return "".join(rng.choice('ab"\\\n,[]{} é') for _ in range(rng.randrange(6)))
        case 4:
            return [_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {str(key): _value(rng, depth + 1) for key in range(rng.randrange(3))}


def _read(data: bytes) -> list[Any] | None:
    """The records that the lines of an array hold, None where it or one of them is refused."""
    file = json_array.read_array(io.BytesIO(data), "x.json")
    try:
        lines = b"".join(iter(lambda: file.read(7), b"")).split(b"\n")
        return [json.loads(line) for line in lines if line.strip()]
    except (SourceError, ValueError):
        return None


@pytest.mark.parametrize("read_bytes", [1, 3, 1 << 20])
def test_an_array_has_the_records_that_json_finds_or_is_refused(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "_READ_BYTES", read_bytes)
    rng, refused = random.Random(read_bytes), 0
    for _ in range(200):
        made = [{"a": _value(rng), "b": _value(rng)} for _ in range(rng.randrange(4))]
        data = bytearray(json.dumps(made, indent=rng.choice([None, 0, 2]), ensure_ascii=rng.random() < 0.5).encode())
        assert _read(b"\xef\xbb\xbf \r\n" + data + b"\r\n ") == made
        place = rng.randrange(1, len(data))
        match rng.randrange(3):
            case 0:
                del data[place:]
            case 1:
                del data[place]
            case 2:
                data[place] = rng.randrange(256)
        try:
            expected = json.loads(bytes(data))
        except ValueError:
            expected, refused = None, refused + 1
        if expected is None or isinstance(expected, list):
            assert _read(bytes(data)) == expected
    assert refused > 100


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["x.json", "x.json.gz", "lines.json"])
def test_a_file_named_json_is_read_as_an_array_or_as_lines(
    name: str, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_BLOCK_BYTES", 16)
    lines = "".join(f"{json.dumps(record)}\n" for record in RECORDS)
    data = lines if name == "lines.json" else json.dumps(RECORDS, indent=indent)
    (tmp_path / name).write_bytes(gzip.compress(data.encode()) if name.endswith("gz") else data.encode())
    (tmp_path / "y.jsonl").write_text(lines)
    assert kind_of(str(tmp_path / name)) == "json"
    assert kind_of(str(tmp_path)) == "jsonl"  # JSON beside other files describes them
    source, expected = (open_source(str(tmp_path / other), None) for other in (name, "y.jsonl"))
    assert source.schema == expected.schema
    assert records(source) == records(expected)
    place = describe_origin(source, source.parts[0], 1, None)
    assert place.startswith("line 2" if name == "lines.json" else "record 1 (from 0)")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            '[{"a": 1}, {"a": 2}',
            "the array ends in record 1, without a ]; the file is cut short, or a quote",
        ),
        ('[{"a": 1}, {"a": "2}]', "the array ends in a text without an end in record 1, without a ]"),
        ('[{"a": 1},, {"a": 2}]', "record 1 of the array is empty; remove the comma"),
        ('[{"a": 1}, ]', "record 1 of the array is empty; remove the comma"),
        ('[{"a": 1}}, {"a": 2}]', "a } ends the array in record 0; mend the brackets"),
        ('[{"a": 1}] {"a": 2}', "something follows the end of the array; remove it"),
        ('[{"a": 1}, {"a": 2} {"a": 3}]', "record 1: no JSON object: Extra data at character 9"),
        ('[{"a": 1}, [2]]', "record 1: no JSON object: it is no object in braces but begins a list"),
        ('[{"a": 1}, {"a": [}]}]', "a } ends the array in record 1; mend the brackets"),
        ('[{"a": 1}, {"a": [2}}]', "record 1: no JSON object: Expecting ',' delimiter at character 9"),
        ('[{"a": 1}, {"a": 99999999999999999999}]', "record 1: 'a': the integer 99999999999999999999 is beyond 64"),
    ],
)
def test_what_is_wrong_is_said_with_the_record(data: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(data)
    with pytest.raises(SourceError) as caught:
        open_source(str(tmp_path / "x.json"), None)
    assert str(caught.value).startswith(f"file://{tmp_path}/x.json: {message}")
    assert "\n" not in str(caught.value)


def test_bad_records_of_an_array_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'[{"a": 1}, 7,\n {"a": "\xff"}, {"a": 4}]')
    rejected: list[BadRecord] = []
    source = open_source(str(tmp_path / "x.json"), None, reject=rejected.append)
    assert [record.place for record in rejected] == ["record 1", "record 2"]
    assert sum(mark.records for part in source.parts for mark in part.pieces) == 2
    assert records(source, reject=lambda _: None) == [{"a": 1}, {"a": 4}]
