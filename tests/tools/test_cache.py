"""`ringfeed cache`: lists entries, and clears those not in use."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from ringfeed.pipeline import Cache
from ringfeed.pipeline.fetch.disk_cache import CacheKey
from ringfeed.pipeline.metrics.stage_counters import Counters
from ringfeed.sharding.common.checksums import checksum
from ringfeed.tools.cli import main

URLS = ("s3://bucket/flights", "s3://bucket/" + "long/" * 60 + "name")


def use(cache: Cache, dataset: str, name: str, size: int) -> pa.Buffer:
    data = name.encode()[:1] * size
    key = CacheKey(dataset=dataset, path=name, size=size, checksum=checksum(data))
    return cache.get(key, lambda: pa.py_buffer(data), Counters())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two datasets; the first file of the first was used a week ago."""
    cache = Cache(tmp_path / "cache", 1 << 20)
    for url in URLS:
        for name in ("a.tfrecord", "b.tfrecord"):
            use(cache, url, name, 5000)
    [old] = (tmp_path / "cache").glob("*flights/a.tfrecord@*")
    week_ago = time.time() - 7 * 86400 - 60
    os.utime(old, (week_ago, week_ago))
    return tmp_path / "cache"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["cache", *words]) == 0
    return capsys.readouterr().out


def test_entries_are_listed_by_last_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = use(Cache(folder), URLS[0], "b.tfrecord", 5000)
    lines = said(capsys, str(folder)).splitlines()
    assert lines[0] == f"{folder}: 4 entries, 32.0 KiB, 8.0 KiB of it in use; limit 1.0 MiB"
    assert lines[3].split()[:4] == ["s3://bucket/flights", "b.tfrecord", "8.0", "KiB"]
    assert lines[3].endswith("in use")
    assert lines[-1].split()[:2] == ["s3://bucket/flights", "a.tfrecord"]
    assert lines[-1].endswith("168 h 01 min ago")
    document = json.loads(said(capsys, str(folder), "--json"))
    assert (document["limit_bytes"], document["bytes"], len(document["entries"])) == (1 << 20, 32768, 4)
    assert [entry["in_use"] for entry in document["entries"]] == [False, False, False, True]
    assert document["entries"][0]["path"] == "a.tfrecord"
    del held


def test_only_selected_entries_are_cleared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, str(folder), "--clear", "--older-than", "8d") == "removed 0 entries, 0 B\n"
    assert said(capsys, str(folder), "--clear", "--older-than", "7d") == "removed 1 entries, 8.0 KiB\n"
    assert said(capsys, str(folder), "--clear", "--dataset", URLS[1]) == "removed 2 entries, 16.0 KiB\n"
    [left] = json.loads(said(capsys, str(folder), "--json"))["entries"]
    assert (left["dataset"], left["path"]) == (URLS[0], "b.tfrecord")


def test_a_dataset_without_entries_is_reported_with_the_cached_ones(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["--clear"], ["--clear", "--json"]):
        assert main(["cache", str(folder), "--dataset", "s3://bucket/flight", *words]) == 0
        [line] = capsys.readouterr().err.splitlines()
        if "--json" in words:
            event = json.loads(line)
            line = f"ringfeed: {event.pop('message')}"
            assert event == {"event": "note"}
        told = (
            "ringfeed: the cache holds nothing of s3://bucket/flight; it holds s3://bucket/flights, s3://bucket/long/"
        )
        assert line.startswith(told)
    assert main(["cache", str(folder), "--dataset", URLS[0], "--older-than", "8d"]) == 0
    assert capsys.readouterr().err == ""
    said(capsys, str(folder), "--clear")
    assert main(["cache", str(folder), "--dataset", "s3://bucket/flights"]) == 0
    assert capsys.readouterr().err == "ringfeed: the cache holds nothing of s3://bucket/flights; it is empty\n"


def test_entries_used_before_the_clock_was_set_back_are_shown_and_cleared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for entry in folder.rglob("*@*"):
        os.utime(entry, (time.time() + 3600, time.time() + 3600))
    assert said(capsys, str(folder)).startswith(f"{folder}: 4 entries, ")
    assert said(capsys, str(folder), "--clear", "--older-than", "0s").startswith("removed 0 entries")
    assert said(capsys, str(folder), "--clear").startswith("removed 4 entries")


def test_foreign_files_are_neither_shown_nor_removed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = [folder / name for name in ("photos/thesis.txt", "flights/train@9.tfrecord", "downloads/movie.mkv.part")]
    for other in others:
        other.parent.mkdir()
        other.write_bytes(b"mine" * 5000)
    Cache(folder, 20_000)
    assert len(json.loads(said(capsys, f"file://{folder}", "--json"))["entries"]) == 1  # makes room by its own alone
    assert said(capsys, str(folder), "--clear").startswith("removed 1 entries")
    assert all(other.exists() for other in others)


def test_entries_in_use_are_kept_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = use(Cache(folder), URLS[0], "a.tfrecord", 5000)
    assert said(capsys, str(folder), "--clear").splitlines() == [
        "removed 3 entries, 24.0 KiB",
        "kept 1 in use, 8.0 KiB",
    ]
    document = json.loads(said(capsys, str(folder), "--clear", "--json"))
    assert (document["removed"], [kept["path"] for kept in document["kept_in_use"]]) == (0, ["a.tfrecord"])
    assert held.to_pybytes() == b"a" * 5000
    del held
    assert said(capsys, str(folder), "--clear") == "removed 1 entries, 8.0 KiB\n"
    assert [path.name for path in folder.iterdir()] == ["ringfeed-cache.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}/none"], r"none is not a cache; a loader creates one on a local disk: Loader\(..., cache="),
        (["s3://bucket/cache"], "s3://bucket/cache is not a cache; a loader creates one on a local disk"),
        (["{}", "--clear", "--older-than", "a week"], "an age is a number with s, m, h or d, such as 12h or 7d"),
    ],
)
def test_a_mistake_is_one_line_and_removes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["cache", *(word.format(folder) for word in words)]) == 1
    complaint = capsys.readouterr().err
    assert re.search(message, complaint)
    assert complaint.count("\n") == 1
    assert len(list(folder.rglob("*@*"))) == 4


def test_a_reader_that_leaves_is_not_an_error(tmp_path: Path) -> None:
    Cache(tmp_path / "cache", 1 << 20)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        program = str(Path(sys.executable).with_name("ringfeed"))
        done = subprocess.run(
            [program, "cache", str(tmp_path / "cache")], stdout=output, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_cache_of_another_user_is_refused_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    user = os.geteuid()
    folder.chmod(0)
    if user == 0:  # whom nothing is forbidden
        os.seteuid(65534)
    try:
        assert main(["cache", str(folder)]) == 1
    finally:
        os.seteuid(user)
        folder.chmod(0o700)
    told = f"ringfeed: error: cannot open the cache {folder}: Permission denied; ask its owner, or root\n"
    assert capsys.readouterr().err == told
