"""Names that another user can predict: what they plant there is refused, and no file behind it is touched."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    DestinationError,
    ExportOptions,
    append,
    build,
    clean,
    export,
    plan_build,
    repair,
)
from ringfeed.sharding.destination.spill import open_spill, scratch_root, spill_root
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.repairing.source_matching import Original
from ringfeed.sharding.storage import private_folders
from ringfeed.sharding.storage.private_folders import check_private, make_private_folder
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.commands import Cli
from tests.helpers.files import contents

REMEDY = "choose another"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the victim's, with files in it as ours are named."""
    folder = tmp_path / "victim"
    for name in ("thesis.txt", "files/a.txt", "plan-x/000000.arrow", "000000.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    return folder


@pytest.fixture
def out(parquet: str, tmp_path: Path) -> Path:
    build(BuildOptions(source=parquet, destination=str(tmp_path / "out"), label="label", shards=4))
    return tmp_path / "out"


@pytest.mark.parametrize("chosen", [False, True])
def test_a_link_planted_for_the_spill_folder_is_refused_and_its_files_stay(
    parquet: str, out: Path, victim: Path, spill_folder: Path, tmp_path: Path, chosen: bool
) -> None:
    spill = str(tmp_path / "scratch") if chosen else None
    (tmp_path / "scratch").mkdir()
    before = contents(victim)
    new = str(tmp_path / "new")
    dedup = PrepareOptions(dedup=("id",))
    calls: dict[str, Callable[[], object]] = {
        new: lambda: build(BuildOptions(source=parquet, destination=new, label="label", spill=spill)),
        f"{new}/": lambda: plan_build(BuildOptions(source=parquet, destination=new, spill=spill, prepare=dedup)),
        str(out): lambda: append(AppendOptions(source=parquet, destination=str(out), spill=spill, again=True)),
        f"{out}/": lambda: clean(str(out), spill=spill),
    }
    for destination, call in calls.items():
        root = spill_root(spill, destination).local_path
        assert root is not None
        root.symlink_to(victim)
        with pytest.raises(DestinationError, match=r"ringfeed-spill-\S+ is a link, .*; remove it, or choose a spill"):
            call()
        assert contents(victim) == before
        root.unlink()
    assert not Path(new).exists()


def test_a_link_planted_between_the_look_and_the_build_is_refused_too(victim: Path, tmp_path: Path) -> None:
    root = spill_root(str(tmp_path), "/somewhere")
    assert root.local_path is not None
    root.local_path.symlink_to(victim)
    before = contents(victim)
    with pytest.raises(DestinationError, match="is a link"):
        open_spill(root, "plan")
    assert contents(victim) == before


def test_a_link_planted_for_the_shards_of_a_repair_is_refused(
    parquet: str, out: Path, victim: Path, spill_folder: Path
) -> None:
    shard = next(out.glob("train-*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-100])
    root = scratch_root(None, Storage(str(out))).local_path
    assert root is not None
    root.symlink_to(victim)
    before = contents(victim)
    with pytest.raises(DestinationError, match="is a link"):
        repair(str(out), originals=[Original(url=parquet)])
    assert contents(victim) == before
    root.unlink()
    assert not repair(str(out), originals=[Original(url=parquet)]).lost


def test_a_link_planted_beside_an_export_is_refused(out: Path, victim: Path, tmp_path: Path, cli: Cli) -> None:
    exported = tmp_path / "exported"
    (tmp_path / ".exported.exporting").symlink_to(victim)
    before = contents(victim)
    with pytest.raises(DestinationError, match=r"\.exporting is a link"):
        export(ExportOptions(url=str(out), destination=str(exported), to="webdataset"))
    done = cli("shard-dataset", "clean", str(exported))
    assert done.returncode == 1
    assert "is a link, which another user may have planted" in done.stderr
    assert contents(victim) == before


@pytest.mark.parametrize("name", ["_building", "_replacing", "_ringfeed"])
def test_a_link_planted_in_a_destination_is_refused(
    parquet: str, out: Path, victim: Path, name: str, tmp_path: Path
) -> None:
    shutil.rmtree(out / name, ignore_errors=True)
    (out / name).symlink_to(victim)
    before = contents(victim)
    calls: list[Callable[[], object]] = [
        lambda: append(AppendOptions(source=parquet, destination=str(out), again=True)),
        lambda: build(BuildOptions(source=parquet, destination=str(out), label="label", overwrite=True)),
        lambda: clean(str(out)),
    ]
    for call in calls:
        with pytest.raises(DestinationError, match=f"{name} is a link"):
            call()
        assert contents(victim) == before


def test_only_folders_of_this_user_alone_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parent" / "private"
    make_private_folder(folder, REMEDY)
    assert folder.stat().st_mode & 0o777 == 0o700
    make_private_folder(folder, REMEDY)
    for mode in (0o701, 0o710, 0o777):
        folder.chmod(mode)
        with pytest.raises(DestinationError, match=rf"is open to other users \(mode {mode:o}\); .*{REMEDY}"):
            check_private(folder, REMEDY)
    folder.chmod(0o700)
    monkeypatch.setattr(private_folders, "_of_new_folders", lambda *_, **__: (os.getuid() + 1, 0))
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 2)
    with pytest.raises(DestinationError, match=f"belongs to another user; {REMEDY}"):
        check_private(folder, REMEDY)
    folder.rmdir()
    folder.write_text("")
    with pytest.raises(DestinationError, match="is not a folder"):
        make_private_folder(folder, REMEDY)


def test_a_file_system_that_keeps_no_modes_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    folder.chmod(0o777)  # as every folder of an exFAT disk
    monkeypatch.setattr(private_folders, "_of_new_folders", lambda *_, **__: (os.getuid(), 0o777))
    make_private_folder(folder, REMEDY)


def test_a_file_system_that_gives_folders_another_owner_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_private_folder(tmp_path / "private", REMEDY)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)  # as root is on a file server that maps it to nobody
    make_private_folder(tmp_path / "private", REMEDY)


def test_parents_that_are_missing_are_made_private_too(tmp_path: Path) -> None:
    """The root of a spill may go when another build ends, before a folder is made in it."""
    make_private_folder(tmp_path / "root" / "side", REMEDY)
    check_private(tmp_path / "root", REMEDY)
    assert (tmp_path / "root").stat().st_mode & 0o777 == 0o700
