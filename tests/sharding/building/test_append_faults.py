"""Appends that are interrupted, killed or fail, and damage to their files: no record is lost or stored twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    CorruptionError,
    DestinationError,
    Progress,
    RingfeedError,
    SourceError,
    StorageError,
    append,
    check_dataset,
    clean,
    open_dataset,
    repair,
    verify,
)
from ringfeed.sharding.storage.lease import LEASE_NAME
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.appending import appended, rows_of
from tests.helpers.builds import (
    NEW,
    OLD,
    SPLITS,
    Killed,
    built,
    interrupt_after,
    interrupted,
    is_heartbeat,
    make_table,
    newer_table,
)
from tests.helpers.files import contents

pytestmark = pytest.mark.usefixtures("temporary_folder")


# --- interrupts and kills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageError("planted")])
def test_finished_shards_are_kept_and_the_dataset_is_the_old_one_meanwhile(
    dataset: Path, newer: str, tmp_path: Path, error: BaseException
) -> None:
    built(open_dataset(str(dataset)).manifest.source["url"], tmp_path / "whole", label="label", splits=SPLITS, shards=7)
    appended(newer, tmp_path / "whole")
    options = AppendOptions(source=newer, destination=str(dataset))
    with pytest.raises(type(error), match="shards are finished: start the same command again"):
        append(options, report=interrupt_after(3, error))
    assert rows_of(open_dataset(str(dataset))) == make_table(OLD).to_pylist()
    assert verify(str(dataset)) == []
    seen: list[Progress] = []
    append(options, report=seen.append)
    assert max(progress.resumed for progress in seen) >= 3
    assert contents(dataset) == contents(tmp_path / "whole")


def test_a_mistaken_append_leaves_the_work_of_a_killed_one_alone(dataset: Path, newer: str, tmp_path: Path) -> None:
    options = AppendOptions(source=newer, destination=str(dataset))
    interrupted(options, 3)
    pq.write_table(newer_table().drop_columns(["price"]), tmp_path / "other.parquet")
    with pytest.raises(SourceError, match="has no column 'price'"):
        appended(str(tmp_path / "other.parquet"), dataset)
    seen: list[Progress] = []
    append(options, report=seen.append)
    assert max(progress.resumed for progress in seen) >= 3


def test_another_append_replaces_an_abandoned_one(dataset: Path, newer: str, tmp_path: Path) -> None:
    interrupted(AppendOptions(source=newer, destination=str(dataset)), 3)
    pq.write_table(newer_table(100, 9000), tmp_path / "third.parquet")
    appended(str(tmp_path / "third.parquet"), dataset)
    built(open_dataset(str(dataset)).manifest.source["url"], tmp_path / "whole", label="label", splits=SPLITS, shards=7)
    appended(str(tmp_path / "third.parquet"), tmp_path / "whole")
    assert contents(dataset) == contents(tmp_path / "whole")
    assert appended(newer, dataset).manifest.records == OLD + 100 + NEW


def test_an_append_that_fails_leaves_nothing(dataset: Path, newer: str) -> None:
    before = contents(dataset)
    with pytest.raises(SourceError, match=r"^planted$"):
        append(AppendOptions(source=newer, destination=str(dataset)), report=interrupt_after(3, SourceError("planted")))
    assert contents(dataset) == before


class Deadly:
    """Lets a process die before or after its n-th change of a store, as far as the store can tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.changes = 0
        self.happened = False
        self.after = False
        self._lock = threading.Lock()
        for name in ("write", "create", "remove", "move"):
            monkeypatch.setattr(Storage, name, self._wrap(getattr(Storage, name)))

    def arm(self, left: int, *, after: bool) -> None:
        self.left, self.after, self.happened, self.changes = left, after, False, 0

    def _wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def change(storage: Storage, path: str, *args: Any, **options: Any) -> Any:
            if "ringfeed-spill" in storage.url or is_heartbeat():
                return real(storage, path, *args, **options)
            with self._lock:
                if self.happened:
                    raise Killed
                self.changes += 1
                self.happened = self.changes == self.left
                if self.happened and not self.after:
                    raise Killed
            result = real(storage, path, *args, **options)
            if self.happened:
                raise Killed
            return result

        return change


def forget_holder(folder: Path) -> None:
    """Make the lease of this process one of a process that is no more."""
    lease = folder / LEASE_NAME
    if lease.exists():
        lease.write_text(json.dumps(json.loads(lease.read_text()) | {"started": "0"}))


@pytest.mark.parametrize("after", [False, True])
def test_an_append_killed_at_any_write_leaves_the_old_or_the_new_dataset_and_resumes(
    parquet: str, newer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:

    built(parquet, tmp_path / "old", label="label", shards=2)
    shutil.copytree(tmp_path / "old", tmp_path / "whole")
    appended(newer, tmp_path / "whole", shards=2)
    expected = contents(tmp_path / "whole")
    deadly = Deadly(monkeypatch)
    seen = set()
    for number in range(1, 100):
        out = tmp_path / f"out{number}"
        shutil.copytree(tmp_path / "old", out)
        options = AppendOptions(source=newer, destination=str(out), shards=2)
        deadly.arm(number, after=after)
        try:
            with ThreadPoolExecutor(1) as pool:
                append(options, executor=pool)
        except (Killed, RuntimeError):
            pass
        died, deadly.left, deadly.happened = deadly.happened, -1, False
        records = open_dataset(str(out)).manifest.records
        assert records in (OLD, OLD + NEW)
        seen.add(records)
        assert verify(str(out)) == []
        if not died:
            break
        forget_holder(out)
        if LEASE_NAME in contents(out) or records == OLD:
            append(options)
        assert contents(out) == expected
        with pytest.raises(DestinationError, match="--again"):
            append(options)
    assert number > 8
    assert seen == {OLD, OLD + NEW}


def test_an_append_killed_after_its_commit_is_not_repeated_even_with_again(dataset: Path, newer: str) -> None:
    plan = appended(newer, dataset).manifest.generations[1].plan
    holder = {"token": "1", "host": "elsewhere", "boot": "", "pid": 1, "started": "", "released": True}
    for left, records in ((plan, OLD + NEW), ("of another", OLD + 2 * NEW)):
        (dataset / LEASE_NAME).write_text(json.dumps(holder | {"plan": left, "about": {"task": "append"}}))
        assert appended(newer, dataset, again=True).manifest.records == records
        assert not (dataset / LEASE_NAME).exists()


def command(source: Path, url: str) -> list[str]:
    program = str(Path(sys.executable).with_name("shard-dataset"))
    return [program, "append", str(source), url, "--shards", "24", "--workers", "1", "--json"]


def write_rows(path: Path, first: int, rows: int) -> None:
    ids = np.arange(first, first + rows)
    words = pa.array([f"word {n}" for n in range(50)]).take(pa.array(ids % 50))
    pq.write_table(pa.table({"id": ids, "word": words, "label": pa.array(ids % 3)}), path, row_group_size=rows // 8)


def test_an_append_killed_many_times_ends_byte_identical(tmp_path: Path) -> None:
    write_rows(tmp_path / "old.parquet", 0, 3000)
    write_rows(tmp_path / "new.parquet", 3000, 100_000)
    for name in ("whole", "out"):
        built(str(tmp_path / "old.parquet"), tmp_path / name, label="label", shards=2)
    appended(str(tmp_path / "new.parquet"), tmp_path / "whole", shards=24)
    argv = command(tmp_path / "new.parquet", str(tmp_path / "out"))
    killed = 0
    for sign in ("_building.json", "_building/*/*", "*-g00001-0001?-*"):  # it began; wrote a shard; and some more
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and not list((tmp_path / "out").glob(sign)):
            time.sleep(0.002)
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        assert open_dataset(str(tmp_path / "out")).manifest.records in (3000, 103_000)
        assert verify(str(tmp_path / "out")) == []
    if LEASE_NAME in contents(tmp_path / "out"):
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    assert killed
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.fixture
def twice(dataset: Path, newer: str, tmp_path: Path) -> Path:
    """A dataset that was appended to twice."""
    appended(newer, dataset, shards=3)
    pq.write_table(newer_table(100, 9000), tmp_path / "third.parquet")
    appended(str(tmp_path / "third.parquet"), dataset, shards=2)
    return dataset


@pytest.mark.parametrize(
    "names",
    [["_ringfeed/dataset.json"], ["_ringfeed/shards-g00002.table"], ["_ringfeed/train-g00001-00001-of-00003.index"]],
)
def test_lost_files_are_rebuilt_byte_identical(twice: Path, names: list[str]) -> None:
    before = contents(twice)
    for name in names:
        (twice / name).unlink()
    assert {damage.path for damage in verify(str(twice))} == set(names)
    assert repair(str(twice)).lost == ()
    assert contents(twice) == before


def test_the_table_is_rebuilt_beside_an_unfinished_append(twice: Path, parquet: str) -> None:
    interrupted(AppendOptions(source=parquet, destination=str(twice), again=True), 3)
    before = contents(twice)
    before.pop(LEASE_NAME)  # a repair takes the lease, and gives it back
    (twice / "_ringfeed/shards-g00002.table").unlink()
    (twice / "notes-g00003.txt").touch()
    remarks = {n.path: n.remark for n in check_dataset(str(twice)).notes if "-g00003" in n.path}
    assert remarks.pop("notes-g00003.txt") == "not part of this dataset"
    (twice / "notes-g00003.txt").unlink()
    assert set(remarks.values()) == {
        "left by an unfinished append; resume it, or remove its files with: shard-dataset clean"
    }
    assert repair(str(twice)).lost == ()
    assert contents(twice) == before
    assert clean(Storage(str(twice)))
    assert not list(twice.rglob("*-g00003-*"))


def test_without_its_newest_table_dataset_json_is_rebuilt_from_the_one_before(twice: Path) -> None:
    (twice / "_ringfeed/dataset.json").unlink()
    data = bytearray((twice / "_ringfeed/shards-g00002.table").read_bytes())
    data[100] ^= 1
    (twice / "_ringfeed/shards-g00002.table").write_bytes(data)
    damage, *moved = verify(str(twice))
    assert "from before the append that wrote _ringfeed/shards-g00002.table, which is damaged too" in damage.problem
    assert [other.path for other in moved] == ["dataset_info.json"]  # the append had replaced it
    repair(str(twice))
    assert verify(str(twice)) == []
    assert len(rows_of(open_dataset(str(twice)))) == OLD + NEW
    assert (twice / "_ringfeed/shards-g00002.table").exists()


def test_a_damaged_shard_of_a_generation_is_salvaged_and_appended_to(twice: Path, parquet: str) -> None:
    path = next(twice.glob("train-g00001-00000-*.tfrecord"))
    data = bytearray(path.read_bytes())
    data[1000:1200] = bytes(200)
    path.write_bytes(data)
    with pytest.raises(CorruptionError):
        rows_of(open_dataset(str(twice)))
    (lost,) = repair(str(twice)).lost
    assert lost.path == path.name
    manifest = open_dataset(str(twice)).manifest
    assert manifest.shards_path == "_ringfeed/shards-g00002.salvaged.table"
    assert {note.path for note in check_dataset(str(twice)).notes} == {
        "_ringfeed/shards.table",
        "_ringfeed/shards-g00001.table",
    }
    assert repair(str(twice)).remedies == ()
    again = appended(parquet, twice, again=True)
    assert again.manifest.shards_path == "_ringfeed/shards-g00003.table"
    assert len(rows_of(again)) == again.manifest.records == manifest.records + OLD
    assert verify(str(twice)) == []


def test_a_dataset_without_its_table_is_not_appended_to(twice: Path, parquet: str) -> None:
    (twice / "_ringfeed/shards-g00002.table").unlink()
    before = contents(twice)
    with pytest.raises(RingfeedError, match=r"shards-g00002\.table is missing; repair it with: shard-dataset repair"):
        append(AppendOptions(source=parquet, destination=str(twice), again=True))
    assert contents(twice) == before
