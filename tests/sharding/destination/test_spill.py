"""Spill folders on this machine and on stores: reused by a resumed build, then removed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ringfeed.sharding import BuildOptions, Progress, SourceError, StorageError, build, clean, plan_build
from ringfeed.sharding.destination.spill import open_spill, side_folder, spill_root, spilled_files
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.commands import Cli
from tests.helpers.files import contents
from tests.servers.store import Store

SHARDS = 12


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What spills elsewhere puts nothing into the folder for temporary files."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    yield
    assert not any(folder.iterdir())


@pytest.fixture
def parts(tmp_path: Path, table: pa.Table) -> str:
    """The table in six files, a part each."""
    (tmp_path / "source").mkdir()
    for number in range(6):
        pq.write_table(table.slice(100 * number, 100), tmp_path / "source" / f"{number}.parquet")
    return str(tmp_path / "source")


def interrupted_at(stage: str, options: BuildOptions) -> list[Progress]:
    """What a build reports until its store goes away."""
    seen: list[Progress] = []

    def report(progress: Progress) -> None:
        seen.append(progress)
        if progress.stage == stage and progress.done >= 2:
            raise StorageError("planted")

    with pytest.raises(StorageError, match="planted"):
        build(options, report=report)
    return seen


def test_a_build_that_spills_to_a_store_resumes_from_there(parts: str, store: Store, tmp_path: Path) -> None:
    how: dict[str, Any] = {"label": "label", "shards": SHARDS, "prepare": PrepareOptions(dedup=("id",))}
    spill = Storage(f"{store.url}/spill")
    options = BuildOptions(source=parts, destination=str(tmp_path / "out"), spill=f"{store.url}/spill", **how)
    interrupted_at("write", options)
    assert [name for name in spill.list() if name.endswith(".arrow")]
    assert not [name for name in spill.list() if name.endswith(".hashes")]
    seen: list[Progress] = []
    build(options, report=seen.append)
    first = next(progress for progress in seen if progress.stage == "partition")
    assert first.resumed == first.total == 6
    assert spill.list() == []
    build(BuildOptions(source=parts, destination=str(tmp_path / "whole"), spill=str(tmp_path / "s"), **how))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("named", [True, False])
def test_clean_removes_spill_files(parts: str, store: Store, tmp_path: Path, cli: Cli, named: bool) -> None:
    spill = f"{store.url}/spill"
    other = Storage(spill)
    other.write("others.txt", b"x")
    options = BuildOptions(source=parts, destination=str(tmp_path / "out"), label="label", shards=SHARDS, spill=spill)
    interrupted_at("write", options)
    assert len(other.list()) > 6
    flags = ["--spill", spill] if named else []
    dry = cli("shard-dataset", "clean", str(tmp_path / "out"), *flags, "--dry-run", env=store.env, check=True)
    assert "000005.arrow" in dry.stdout
    cli("shard-dataset", "clean", str(tmp_path / "out"), *flags, env=store.env, check=True)
    assert other.list() == ["others.txt"]
    assert not any((tmp_path / "out").rglob("*"))


@pytest.mark.parametrize("named", ["first", "then", "both"])
def test_a_build_resumed_with_another_spill_folder_removes_the_first(
    parts: str, store: Store, tmp_path: Path, named: str
) -> None:
    default, other = str(tmp_path / "t"), f"{store.url}/spill"
    first, then = (None if named == "then" else other), (None if named == "first" else str(tmp_path / "s"))
    options = BuildOptions(source=parts, destination=str(tmp_path / "out"), label="label", shards=SHARDS, spill=first)
    interrupted_at("write", options)
    assert len(Storage(first or default).list()) > 6
    build(replace(options, spill=then))
    assert Storage(first or default).list() == []
    assert not (tmp_path / "s").exists()


def test_an_error_of_the_source_leaves_no_spill_files(store: Store, tmp_path: Path, parts: str) -> None:
    options = BuildOptions(source=parts, destination=str(tmp_path / "out"), label="label", spill=f"{store.url}/spill")

    def change(progress: Progress) -> None:
        if progress.stage == "partition" and progress.done >= 2:
            raise SourceError("planted")

    with pytest.raises(SourceError, match="planted"):
        build(options, report=change)
    assert Storage(store.url).list() == []


@pytest.mark.parametrize("how", [{}, {"balance": "bytes"}, {"prepare": PrepareOptions(dedup=("id",))}])
def test_a_spill_folder_created_by_the_build_is_removed_and_an_existing_one_stays(
    parquet: str, tmp_path: Path, how: dict[str, Any]
) -> None:
    for name in ("there", "there/made/for/it"):
        (tmp_path / "there").mkdir(exist_ok=True)
        options = BuildOptions(source=parquet, destination=str(tmp_path / "out"), spill=str(tmp_path / name), **how)
        plan_build(options)
        build(replace(options, overwrite=True))
        assert list((tmp_path / "there").iterdir()) == []


def test_spill_files_of_another_plan_are_removed_and_side_folders_stay(tmp_path: Path) -> None:
    root = spill_root(str(tmp_path), "/somewhere")
    first = open_spill(root, "first")
    with first.create(0) as file:
        file.write(b"x")
    with side_folder(root) as side:
        side.write("hashes", b"y")
        second = open_spill(root, "second", side)
        assert second != first
        assert [name.rpartition("/")[2] for name in root.list()] == ["hashes"]
    assert root.list() == []


SIDE = """
import sys, time
from ringfeed.sharding.destination.spill import side_folder, spill_root
from ringfeed.sharding import Storage
with side_folder(spill_root(sys.argv[1], sys.argv[2])) as folder:
    folder.write("hashes", b"x")
    print(folder.locate("hashes"), flush=True)
    time.sleep(600)
"""


def test_a_side_folder_stays_while_its_process_lives(parts: str, store: Store, tmp_path: Path) -> None:
    spill, out = f"{store.url}/spill", str(tmp_path / "out")
    command = [sys.executable, "-c", SIDE, spill, out]
    with subprocess.Popen(command, env={**os.environ, **store.env}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        hashes = process.stdout.readline().strip()
        options = BuildOptions(source=parts, destination=out, label="label", shards=SHARDS, spill=spill)
        interrupted_at("write", options)
        assert len(spilled_files(spill_root(spill, out))) > 6
        removed = clean(out, spill=spill)
        assert hashes not in removed
        build(options)
        assert clean(out, spill=spill) == []
        assert [Storage(store.url).locate(name) for name in store.list()] == [hashes]
        process.kill()
    assert clean(out, spill=spill) == [hashes]


def test_the_next_side_folder_removes_those_of_killed_processes(store: Store, tmp_path: Path) -> None:
    spill, out = f"{store.url}/spill", str(tmp_path / "out")
    command = [sys.executable, "-c", SIDE, spill, out]
    with subprocess.Popen(command, env={**os.environ, **store.env}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with side_folder(spill_root(spill, out)):
            assert len(store.list()) == 1
        process.kill()
    with side_folder(spill_root(spill, out)):
        assert store.list() == []
    assert spill_root(spill, out).absent_folders() != () or store.name == "s3"


def test_a_spill_folder_that_disappears_is_reported(tmp_path: Path) -> None:
    spill = open_spill(Storage(str(tmp_path / "spill")), "plan")
    with pytest.raises(StorageError, match=r"000003\.arrow was removed while it was needed"), spill.create(3):
        shutil.rmtree(tmp_path / "spill")


def test_the_error_for_an_unwritable_spill_folder_names_it(parquet: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    options = BuildOptions(source=parquet, destination=str(tmp_path / "out"), spill=str(tmp_path / "file"))
    with pytest.raises(StorageError, match=r"file/ringfeed-spill-"):
        build(options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prepare", [PrepareOptions(), PrepareOptions(dedup=("id",))])
def test_a_spill_store_that_does_not_answer_is_waited_for_once(
    parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: PrepareOptions
) -> None:
    asked: list[str] = []

    def silenced(name: str) -> Any:
        def call(*_: object, **__: object) -> None:
            asked.append(name)
            raise TimeoutError

        return call

    def impatient(url: str | None, destination: str) -> Storage:
        return replace(spill_root(url, destination), retries=RetryPolicy(attempts=5, base_seconds=0.01))

    monkeypatch.setattr(sys.modules["ringfeed.sharding.building.build"], "spill_root", impatient)
    for name in ("find", "cat_file", "pipe_file", "open"):
        monkeypatch.setattr(MemoryFileSystem, name, silenced(name))
    options = BuildOptions(
        source=parts, destination=str(tmp_path / "out"), label="label", spill="memory://spill-silent", prepare=prepare
    )
    with pytest.raises(StorageError, match=r"^cannot (list|write) memory://.*: no answer .* \(5 attempts in"):
        build(options)
    assert asked[-1] == "find"  # for the removal, which is tried once
    assert asked.count("find") == 5 + 1


def test_a_failed_removal_does_not_hide_the_original_error(
    parts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(progress: Progress) -> None:
        if progress.stage == "partition":
            monkeypatch.setattr(MemoryFileSystem, "find", refuse)
            raise SourceError("planted")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    options = BuildOptions(source=parts, destination=str(tmp_path / "out"), label="label", spill="memory://refusing")
    with pytest.raises(SourceError, match="planted"):
        build(options, report=report)
