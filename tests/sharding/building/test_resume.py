"""A killed build resumes, and ends with the bytes of an undisturbed one."""

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    DatasetError,
    DestinationError,
    Progress,
    SourceError,
    StorageError,
    append,
    build,
    open_dataset,
    verify,
)
from ringfeed.sharding.destination import clean as cleaning
from ringfeed.sharding.destination.clean import clean
from ringfeed.sharding.destination.dataset_draft import draft_dataset
from ringfeed.sharding.destination.leftovers import remove_files
from ringfeed.sharding.prepare import Cast, Filter, PrepareOptions
from ringfeed.sharding.storage.lease import Lease, hold_lease
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.builds import built, interrupt_after, interrupted, make_table
from tests.helpers.files import contents
from tests.servers.store import Store

pytestmark = pytest.mark.usefixtures("temporary_folder")

Files = dict[str, bytes]
SHARDS = 12


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """600 records, which no test changes."""
    path = tmp_path_factory.mktemp("source") / "source.parquet"
    pq.write_table(make_table(600), path, row_group_size=100)
    return str(path)


@pytest.fixture(scope="module")
def whole(parquet: str, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files that the build of `options` writes if nobody disturbs it."""
    folder = tmp_path_factory.mktemp("whole")
    built(parquet, folder, label="label", shards=SHARDS)
    return contents(folder)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def options(parquet: str, out: Path) -> BuildOptions:
    return BuildOptions(source=parquet, destination=str(out), label="label", shards=SHARDS)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("planted"), OSError("planted")])
@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_finished_shards_are_kept_and_not_written_again(
    parquet: str, out: Path, error: BaseException, shard_format: str
) -> None:
    how: dict[str, Any] = {"label": "label", "shards": SHARDS, "shard_format": shard_format}
    built(parquet, out.with_name("whole"), **how)
    options = BuildOptions(source=parquet, destination=str(out), **how)
    with pytest.raises(type(error)) as raised:
        build(options, report=interrupt_after(5, error))
    told = re.search(r"(\d+) of 12 shards (is|are) finished: start the same command again", str(raised.value))
    assert (told is None) == (type(error) is OSError)
    assert told is None or (told[2] == "is") == (told[1] == "1")
    with pytest.raises(DatasetError, match="no dataset at"):
        open_dataset(str(out))
    written = {path.name: path.stat().st_mtime_ns for path in out.rglob("train-*.*")}
    seen: list[Progress] = []
    build(options, report=seen.append)
    writing = [progress for progress in seen if progress.stage == "write"]
    assert writing[0].done == writing[0].resumed >= 5
    assert told is None or int(told.group(1)) == writing[0].resumed
    again = {path.name: path.stat().st_mtime_ns for path in out.rglob("train-*.*")}
    assert sum(again[name] == changed for name, changed in written.items()) >= 2 * 5
    assert contents(out) == contents(out.with_name("whole"))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("planted")])
@pytest.mark.parametrize("overwrite", [False, True])
def test_finished_shards_stay_if_the_resuming_build_fails_before_it_writes(
    options: BuildOptions,
    whole: Files,
    out: Path,
    error: BaseException,
    overwrite: bool,
) -> None:
    """Interrupted as it reads, or refused: two preemptions in a row, or a flag that was forgotten, cost no shard."""
    if overwrite:
        build(replace(options, shards=3))
    options = replace(options, overwrite=overwrite)
    interrupted(options, 5)
    left = {path: path.stat().st_mtime_ns for path in out.rglob("train-*.tfrecord")}

    for stage in ("count", "partition"):

        def interrupt(progress: Progress, stage: str = stage) -> None:
            if progress.stage == stage:
                raise error

        with pytest.raises(type(error), match=r"\d+( of 12)? shards are finished: start the same command again"):
            build(options, report=interrupt)
    for wrong in (Filter("id < 0"), Cast((("id", "int8"),))):
        with pytest.raises(SourceError):
            build(replace(options, prepare=PrepareOptions(steps=(wrong,))))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("train-*.tfrecord")} == left
    seen: list[Progress] = []
    build(options, report=seen.append)
    assert next(progress for progress in seen if progress.stage == "write").resumed >= 5
    assert contents(out) == whole


def test_a_finished_shard_damaged_in_the_meantime_is_written_again(
    options: BuildOptions, whole: Files, out: Path
) -> None:
    interrupted(options, 6)
    first, second, third = sorted(out.glob("train-*.tfrecord"))[:3]
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    second.write_bytes(second.read_bytes()[:-1])
    third.unlink()
    build(options)
    assert contents(out) == whole


@pytest.mark.parametrize("change", [{"seed": 1}, {"shards": 5}, {"shard_format": "parquet"}])
def test_the_work_of_another_plan_is_not_resumed(options: BuildOptions, out: Path, change: dict[str, Any]) -> None:
    interrupted(options, 5)
    build(replace(options, **change))
    build(replace(options, destination=str(out.with_name("whole")), **change))
    assert contents(out) == contents(out.with_name("whole"))


def test_a_source_that_changed_is_read_anew(options: BuildOptions, tmp_path: Path, out: Path) -> None:
    options = replace(options, source=shutil.copy(options.source, tmp_path))
    interrupted(options, 5)
    pq.write_table(make_table(500), options.source, row_group_size=100)
    build(options)
    build(replace(options, destination=str(out.with_name("whole"))))
    assert contents(out) == contents(out.with_name("whole"))


def test_a_bad_source_leaves_nothing_to_resume(options: BuildOptions, nothing_left: Path) -> None:
    options = replace(options, destination=str(nothing_left))
    with pytest.raises(SourceError, match=r"^planted$"):
        build(options, report=interrupt_after(5, SourceError("planted")))


def test_a_build_killed_after_its_commit_is_tidied_up(options: BuildOptions, out: Path) -> None:
    build(options)
    whole = contents(out)
    plan = open_dataset(str(out)).manifest.plan
    holder = {"token": "1", "host": "elsewhere", "boot": "", "pid": 1, "started": "", "about": {}, "released": True}
    (out / "_building.json").write_text(json.dumps(holder))
    (out / "_building" / plan).mkdir(parents=True)
    (out / "_building" / plan / "000000-000000.json").write_text("{}")
    build(options)
    assert contents(out) == whole
    with pytest.raises(DestinationError, match="already holds a dataset"):
        build(options)


def test_clean_removes_what_a_killed_build_left_and_nothing_else(options: BuildOptions, out: Path) -> None:
    build(options)
    whole = contents(out)
    interrupted(replace(options, seed=1, overwrite=True), 5)
    assert len(contents(out)) > len(whole)
    foreseen = clean(Storage(str(out)), dry_run=True)
    assert len(contents(out)) == len(whole) + sum(url.startswith(f"{out}/") for url in foreseen)
    assert clean(Storage(str(out))) == foreseen
    assert contents(out) == whole


@pytest.mark.parametrize("killed_again", [False, True])
def test_clean_removes_a_build_killed_just_before_its_commit(
    parquet: str, out: Path, monkeypatch: pytest.MonkeyPatch, killed_again: bool
) -> None:
    built(parquet, out, label="label", shards=3)
    (out / "_ringfeed/dataset.json").unlink()
    (out / "_building.json").write_text(json.dumps(HOLDER | {"released": True}))
    foreseen = clean(str(out), dry_run=True)
    assert f"{out}/_ringfeed/shards.table" in foreseen
    if killed_again:  # over its first removal, and so without a word
        with monkeypatch.context() as patched:
            patched.setattr(cleaning, "remove_spill", Mock(side_effect=SystemExit))
            patched.setattr(Lease, "release", lambda lease, *, keep: None)
            with pytest.raises(SystemExit):
                clean(str(out))
        (out / "_building.json").write_bytes(re.sub(rb'"pid": ', b'"pid": 9', (out / "_building.json").read_bytes()))
    assert clean(str(out)) == foreseen
    assert not out.exists()
    out.mkdir()  # as a clean leaves it that is killed after it gave its lease up
    assert clean(str(out)) == []
    assert not out.exists()


@pytest.mark.parametrize("mark", ["_building.json", "_building.takeover-1.json"])
@pytest.mark.parametrize("cleaned", [False, True])
def test_a_build_killed_at_its_first_write_does_not_block_others(
    parquet: str, out: Path, cleaned: bool, mark: str
) -> None:
    out.mkdir()
    (out / f".{mark}.d38f0616.part").write_bytes(b"{")
    if cleaned:
        assert clean(Storage(str(out))) == [f"{out}/.{mark}.d38f0616.part"]
        assert not out.exists()
    built(parquet, out, label="label", shards=3)
    built(parquet, out.with_name("undisturbed"), label="label", shards=3)
    assert contents(out) == contents(out.with_name("undisturbed"))


def test_clean_leaves_another_program_s_files_alone(tmp_path: Path) -> None:
    out = tmp_path / "tfds"
    out.mkdir()
    for name in ("mnist-train.tfrecord-00000-of-00001", "x-00000-of-00001.tfrecord", "dataset_info.json"):
        (out / name).write_bytes(b"theirs")
    before = contents(out)
    assert clean(Storage(str(out))) == []
    assert contents(out) == before


def test_clean_leaves_a_dataset_within_the_folder_alone(parquet: str, out: Path) -> None:
    for root in (out, out / "another"):
        built(parquet, root, label="label", shards=3)
    (out / "another" / ".train-00000-of-00003.tfrecord.0123abcd.part").write_bytes(b"begun")
    (out / "another" / ".train-00000-of-00003.tfrecord.0123abcd.part").write_bytes(b"of a build at work")
    whole, another = contents(out), contents(out / "another")
    (out / "_building.json").write_text(json.dumps(HOLDER | {"released": True}))
    assert clean(Storage(str(out))) == [f"{out}/_building.json"]
    assert contents(out) == whole
    append(AppendOptions(source=parquet, destination=str(out), again=True))
    built(parquet, out, label="label", shards=2, overwrite=True)
    assert contents(out / "another") == another


def at_shard(number: int, act: Callable[[], object]) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        if (progress.stage, progress.done) == ("write", number):
            act()

    return report


def test_a_destination_removed_during_a_build_is_reported_and_can_be_cleaned(options: BuildOptions, out: Path) -> None:
    with pytest.raises(DestinationError, match=r"out was removed or cleaned up while .* with: shard-dataset clean"):
        build(options, report=at_shard(5, lambda: shutil.rmtree(out, ignore_errors=True)))
    clean(str(out))
    assert not out.exists()


def test_a_failed_write_mentions_a_removal_only_if_there_was_one(out: Path) -> None:
    with draft_dataset(Storage(str(out)), "new", {"task": "build"}) as draft:
        with pytest.raises(StorageError, match="no room"), draft.checking_lease():
            raise StorageError("no room")
        shutil.rmtree(out)
        with pytest.raises(DestinationError, match="was removed or cleaned up"), draft.checking_lease():
            raise StorageError("there is no such file or folder")


def test_a_build_that_lost_its_lease_and_its_spill_reports_the_lost_lease(store: Store) -> None:
    def build_and_fail() -> None:
        with draft_dataset(Storage(store.url), "new", {"task": "build"}) as draft, draft.checking_lease():
            store.write_bytes("_building.json", json.dumps(HOLDER).encode())
            raise StorageError("/tmp/spill/000000.arrow was removed while it was needed; leave the folder alone")

    with pytest.raises(DestinationError, match="was taken over by another process"):
        build_and_fail()
    assert store.list() == ["_building.json"]


def test_a_build_that_lost_its_lease_does_not_overwrite_the_table_of_the_holder(
    options: BuildOptions, out: Path
) -> None:

    def take_over() -> None:
        (out / "_building.json").write_text(json.dumps(HOLDER))
        (out / "_ringfeed/shards.table").write_bytes(b"theirs")

    with pytest.raises(DestinationError, match="was taken over by another process"):
        build(options, report=at_shard(5, take_over))
    assert (out / "_ringfeed/shards.table").read_bytes() == b"theirs"


def test_a_spill_removed_during_a_build_costs_no_shard(options: BuildOptions, whole: Files, out: Path) -> None:
    spill = out.with_name("spill")
    options = replace(options, spill=str(spill))
    with pytest.raises(StorageError, match=r"was removed while it was needed; .* finished: start"):
        build(options, report=at_shard(2, lambda: shutil.rmtree(spill)))
    build(options)
    assert contents(out) == whole


@pytest.mark.parametrize("gone", ["000000.arrow", "000000.json"])
def test_a_spill_that_lacks_a_part_is_written_again(options: BuildOptions, whole: Files, out: Path, gone: str) -> None:
    """As by a clean that was killed."""
    spill = out.with_name("spill")
    options = replace(options, spill=str(spill))
    interrupted(options, 5)
    (left,) = spill.rglob(gone)
    left.unlink()
    seen: list[Progress] = []
    build(options, report=seen.append)
    assert max(progress.resumed for progress in seen if progress.stage == "write") >= 5
    assert contents(out) == whole


def test_a_spill_without_the_records_of_a_damaged_shard_is_written_again(
    options: BuildOptions, whole: Files, out: Path
) -> None:
    spill = out.with_name("spill")
    options = replace(options, spill=str(spill))
    for shards in (3, 7):
        shutil.rmtree(spill, ignore_errors=True)  # so that the second spills no records of what the first finished
        interrupted(options, shards)
    min(out.glob("train-*.tfrecord")).unlink()
    interrupted(options, 8)  # this one spills them
    seen: list[Progress] = []
    build(options, report=seen.append)
    assert next(progress for progress in seen if progress.stage == "partition").resumed
    assert contents(out) == whole


HOLDER = {"token": "1", "host": "elsewhere", "boot": "", "pid": 1, "started": "", "about": {}}


def test_clean_leaves_a_dataset_alone_that_is_committed_while_it_looks(
    parquet: str, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(parquet, out, label="label", shards=3)
    whole = contents(out)
    (out / "_ringfeed/dataset.json").rename(tmp_path / "dataset.json")
    (out / "_ringfeed/shards.table").rename(tmp_path / "shards.table")
    (out / "_building.json").write_text(json.dumps(HOLDER))

    def finish(seconds: float) -> None:  # as the builder elsewhere does, while its beat is waited for
        (tmp_path / "shards.table").rename(out / "_ringfeed/shards.table")
        (tmp_path / "dataset.json").rename(out / "_ringfeed/dataset.json")
        (out / "_building.json").unlink()

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=finish)  # its own: other threads sleep, too
    monkeypatch.setattr("ringfeed.sharding.storage.lease.time", clock)
    clean(str(out))
    assert contents(out) == whole


def test_nobody_writes_while_clean_removes(options: BuildOptions, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(options, 5)
    removed: list[str] = []

    def build_first(storage: Storage, names: list[str]) -> None:
        with pytest.raises(DestinationError, match="another clean is writing to"):
            build(options)
        removed.extend(names)
        remove_files(storage, names)

    monkeypatch.setattr("ringfeed.sharding.destination.clean.remove_files", build_first)
    clean(str(out))
    assert removed
    assert not out.exists()


def test_clean_works_on_a_full_disk(options: BuildOptions, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(options, 5)

    def full(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(Storage, "create", full)
    monkeypatch.setattr(Storage, "write", full)
    assert clean(str(out))
    assert not out.exists()


def test_clean_on_a_full_disk_still_respects_a_writer(small_disk: Path) -> None:
    out = small_disk / "out"
    with hold_lease(Storage(str(out)), {"task": "build"}) as lease:
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "fill").write_bytes(bytes(1 << 20))
        with pytest.raises(DestinationError, match="another build is writing"):
            clean(str(out))
        lease.check()
        (small_disk / "fill").unlink()


def test_a_replacement_leaves_nothing_of_earlier_killed_ones(options: BuildOptions, whole: Files, out: Path) -> None:
    build(replace(options, shards=3))
    (out / "._building.json.d38f0616.part").write_bytes(b"{")  # of one that was killed at its first write
    build(replace(options, overwrite=True))
    assert contents(out) == whole
    for name in ("dataset.json", "shards.table"):  # of one that was killed over its renames
        (out / "_ringfeed" / name).unlink()
    (out / "_building.json").write_text(json.dumps(HOLDER | {"released": True}))
    (out / "_replacing" / "_building" / "0123456789abcdef").mkdir(parents=True)
    build(replace(options, overwrite=True))
    assert contents(out) == whole
    assert [path for path in out.rglob("*") if path.is_dir()] == [out / "_ringfeed"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_same_build_tidies_up_after_one_killed_after_its_replacement(
    parquet: str, out: Path, overwrite: bool
) -> None:
    """What lies in `_replacing`, or in the folder itself: of a build that found no dataset there to replace."""
    plan = built(parquet, out, label="label", shards=3).manifest.plan
    whole = contents(out)
    for folder in ("_building", "_replacing/_building"):
        (out / folder / plan).mkdir(parents=True)
        (out / folder / plan / "000000-000000.json").write_text("{}")
    (out / "_building.json").write_text(json.dumps(HOLDER | {"released": True, "plan": plan}))
    built(parquet, out, label="label", shards=3, overwrite=overwrite)
    assert contents(out) == whole
    assert [path for path in out.rglob("*") if path.is_dir()] == [out / "_ringfeed"]


def test_a_killed_replacement_resumes(options: BuildOptions, whole: Files, out: Path) -> None:
    build(replace(options, shards=3))
    options = replace(options, overwrite=True)
    interrupted(options, 5)
    assert verify(str(out)) == []
    seen: list[Progress] = []
    build(options, report=seen.append)
    assert max(progress.resumed for progress in seen if progress.stage == "write") >= 5
    assert contents(out) == whole


def test_a_killed_replacement_does_not_take_the_dataset_with_appended_records_for_its_own(
    parquet: str, out: Path
) -> None:
    """The first generation of that is of the same plan. A killed one may also leave the folder of a generation."""
    how = {"label": "label", "shards": 3}
    plan = built(parquet, out, **how).manifest.plan
    whole = contents(out)
    append(AppendOptions(source=parquet, destination=str(out), again=True))
    (out / "_building.json").write_text(json.dumps(HOLDER | {"released": True, "plan": plan}))
    (out / "g00001").mkdir()
    built(parquet, out, overwrite=True, **how)
    assert contents(out) == whole
    assert [path for path in out.rglob("*") if path.is_dir()] == [out / "_ringfeed"]


# --- kills -------------------------------------------------------------------------------------------------------


def write_source(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    words = pa.array([f"word {n}" for n in range(50)]).take(pa.array(rng.integers(0, 50, rows)))
    labels = pa.array(rng.choice(["a", "b", "c"], rows, p=[0.7, 0.25, 0.05]))
    table = pa.table({"id": np.arange(rows), "x": rng.random(rows), "word": words, "label": labels})
    pq.write_table(table, path, row_group_size=rows // 8)


def command(source: Path, url: str, shard_format: str) -> list[str]:
    program = str(Path(sys.executable).with_name("shard-dataset"))
    options = ["--label", "label", "--shards", "24", "--workers", "2", "--split", "train=0.8,test=0.2"]
    return [program, "build", str(source), url, "--format", shard_format, "--json", *options]


def kill_until_done(argv: list[str], store: Store, kills: int, seconds: float, rng: random.Random) -> int:
    """Start a build again and again, killing it after random times, and then let it end; returns the kills."""
    env = {**os.environ, **store.env}
    killed = 0
    for _ in range(kills):
        process = subprocess.Popen(
            argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(rng.uniform(0.1, seconds))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        elif process.returncode == 0:
            process.wait()
            break
        process.wait()
        try:
            open_dataset(store.url)
        except DatasetError as error:
            if "no dataset at" not in str(error):
                raise
        else:
            assert "_ringfeed/dataset.json" in store.list()  # a store may have got it from who was killed meanwhile
    if "_ringfeed/dataset.json" not in store.list() or "_building.json" in store.list():
        subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL)
    return killed


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """A build that nobody killed: what it read, wrote, and how long it took."""

    source: Path
    shard_format: str
    files: dict[str, bytes]
    seconds: float


@pytest.fixture(scope="module", params=["tfrecord", "parquet"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder: Path = tmp_path_factory.mktemp("undisturbed")
    source, whole = folder / "source.parquet", folder / "whole"
    write_source(source, 200_000)
    start = time.monotonic()
    subprocess.run(command(source, str(whole), request.param), check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    return Undisturbed(source=source, shard_format=request.param, files=contents(whole), seconds=seconds)


# The campaign has every pair.
@pytest.mark.parametrize(
    ("store", "undisturbed"),
    [("local", "tfrecord"), ("local", "parquet"), ("s3", "tfrecord"), ("hdfs", "parquet")],
    indirect=True,
)
def test_a_build_killed_at_random_ends_byte_identical(store: Store, undisturbed: Undisturbed) -> None:
    """The short version of the campaign below."""
    _campaign(store, undisturbed, kills=3, seed=1)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_campaign_of_kills(store: Store, undisturbed: Undisturbed) -> None:
    """On each store and in each format until 34 builds were killed: 204 in all."""
    seeds, total = itertools.count(), 0
    while total < 34:
        total += _campaign(store, undisturbed, kills=6, seed=next(seeds))


def _campaign(store: Store, undisturbed: Undisturbed, kills: int, seed: int) -> int:
    child = Store(name=store.name, url=f"{store.url}/{seed}", env=store.env, storage_options=store.storage_options)
    argv = command(undisturbed.source, child.url, undisturbed.shard_format)
    killed = kill_until_done(argv, child, kills, undisturbed.seconds, random.Random(seed))
    assert {name: child.read_bytes(name) for name in child.list()} == undisturbed.files
    return killed
