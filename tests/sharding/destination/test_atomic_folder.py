"""A folder appears as a whole on every store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding import DestinationError, clean
from ringfeed.sharding.destination.atomic_folder import open_atomic_folder
from ringfeed.sharding.destination.provenance import Provenance
from ringfeed.sharding.storage.lease import LEASE_NAME, hold_lease
from ringfeed.sharding.storage.private_folders import make_private_folder
from ringfeed.sharding.storage.storage import Storage
from tests.servers.store import Store

TAR = "train-00000-of-00001.tar"


def fill(target: Storage, data: bytes, then: Callable[[], None] = lambda: None) -> None:
    with open_atomic_folder(target) as draft:
        draft.write(TAR, data)
        then()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_the_files_appear_after_the_body(store: Store) -> None:
    target = Storage(f"{store.url}/new/out")
    with open_atomic_folder(target) as draft:
        draft.write(TAR, b"a")
        if not target.is_object_store:
            assert target.list() == []
        draft.write("README.md", b"r")
    assert store.list() == ["new/out/README.md", "new/out/train-00000-of-00001.tar"]
    assert target.read(TAR) == b"a"


def test_a_body_that_fails_leaves_nothing(store: Store) -> None:
    target = Storage(f"{store.url}/new/out")
    absent = target.absent_folders()
    with pytest.raises(KeyboardInterrupt):
        fill(target, b"a", then=interrupt)
    assert store.list() == []
    assert target.absent_folders() == absent


def test_a_nonempty_folder_is_refused_and_unchanged(store: Store) -> None:
    store.write_bytes("out/thesis.txt", b"mine")
    with (
        pytest.raises(DestinationError, match=r"is not empty \(there is 'thesis.txt'\)"),
        open_atomic_folder(Storage(f"{store.url}/out")),
    ):
        pass
    assert store.list() == ["out/thesis.txt"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with open_atomic_folder(Storage(str(tmp_path / "out"))) as draft:
        draft.write(TAR, b"a")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", TAR]


def test_the_target_of_a_link_is_filled(tmp_path: Path) -> None:
    (tmp_path / "disk" / "out").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "out")
    fill(Storage(str(tmp_path / "link")), b"a")
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "link", "out", TAR]
    assert (tmp_path / "disk" / "out" / TAR).read_bytes() == b"a"


def test_a_mount_point_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "out")
    with pytest.raises(DestinationError, match=r"a disk is mounted at .*out, .*; choose a folder within it"):
        fill(Storage(str(tmp_path / "out")), b"a")
    fill(Storage(str(tmp_path / "out" / "within")), b"a")
    assert clean(str(tmp_path / "out")) == []


def test_a_second_concurrent_writer_is_refused(store: Store) -> None:
    target = Storage(f"{store.url}/out")
    with open_atomic_folder(target) as draft:
        draft.write(TAR, b"first")
        with pytest.raises(DestinationError, match=r"another export is writing to .*; wait for it, or stop it first"):
            fill(target, b"second")
        with pytest.raises(DestinationError, match="another export is writing to"):
            clean(target)
    assert store.list() == [f"out/{TAR}"]
    assert target.read(TAR) == b"first"


def test_files_that_appear_during_the_body_stay(tmp_path: Path) -> None:
    target = Storage(str(tmp_path / "out"))
    with pytest.raises(DestinationError, match="was filled by another process in the meantime"):
        fill(target, b"second", then=lambda: target.write(TAR, b"first"))
    assert target.read(TAR) == b"first"
    assert [path.name for path in tmp_path.rglob("*")] == ["out", TAR]


@pytest.mark.parametrize("cleaned", [False, True])
def test_the_next_export_or_clean_removes_what_a_killed_one_left(tmp_path: Path, cleaned: bool) -> None:
    target = Storage(f"{tmp_path}/new/out")
    make_private_folder(tmp_path / "new" / ".out.exporting", "")
    with hold_lease(Storage(f"{tmp_path}/new/.out.exporting"), {"task": "export"}) as lease:
        for name in ("README.md", "train-00000-of-00002.tar"):
            Storage(f"{tmp_path}/new/.out.exporting/files").write(name, b"half")
        lease.release(keep=True)
    if cleaned:
        left = [f"{tmp_path}/new/.out.exporting/{name}" for name in ("_building.json", "files/README.md")]
        found = clean(target, dry_run=True)
        assert found == [*left, f"{tmp_path}/new/.out.exporting/files/train-00000-of-00002.tar"]
        assert clean(target) == found
        assert list((tmp_path / "new").iterdir()) == []
        assert clean(target) == []
    fill(target, b"whole")
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "out", TAR]


@pytest.mark.parametrize("cleaned", [False, True])
def test_object_stores_are_cleaned_too(cleaned: bool) -> None:
    target = Storage(f"memory://killed-{cleaned}/out")
    with hold_lease(target, {"task": "export"}) as lease:
        target.write("train-00000-of-00002.parquet", b"half")
        lease.release(keep=True)
    if cleaned:
        found = clean(target, dry_run=True)
        assert found == [target.locate(name) for name in ("_building.json", "train-00000-of-00002.parquet")]
        assert clean(target) == found
        assert target.list() == []
    fill(target, b"whole")
    assert target.list() == [TAR]
    target.remove(TAR)
    with hold_lease(target, {"task": "export"}) as lease:
        target.write("thesis.txt", b"mine")
        lease.release(keep=True)
    with pytest.raises(DestinationError, match=r"there is 'thesis\.txt'"), open_atomic_folder(target):
        pass
    clean(target)
    assert target.list() == ["thesis.txt"]


def test_leftovers_of_a_build_are_not_taken_for_those_of_an_export() -> None:
    target = Storage("memory://killed-build/out")
    with hold_lease(target, {"task": "build"}) as lease:
        target.write("train-00000-of-00002.parquet", b"of a shard")
        lease.release(keep=True)
    with pytest.raises(DestinationError, match=r"there is 'train-00000-of-00002\.parquet'"), open_atomic_folder(target):
        pass
    assert len(target.list()) == 2


def test_a_file_at_the_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DestinationError, match="is a file; name a folder"):
        open_atomic_folder(Storage(str(tmp_path / "out"))).__enter__()


def provenance(digest: str) -> Provenance:
    return Provenance(record="README.md", digest=digest, files=[TAR])


def write_made(draft: Storage | None, digest: str) -> None:
    assert draft is not None
    draft.write(TAR, digest.encode())
    draft.write("README.md", f"made from {digest}".encode())


@pytest.mark.parametrize("killed_at", ["the end of its body", "its rename", "no time"])
def test_an_export_that_is_complete_stays_and_is_found_by_the_same_one_alone(store: Store, killed_at: str) -> None:
    target = Storage(f"{store.url}/out")
    room = target if target.is_object_store else Storage(f"{store.url}/.out.exporting")
    with open_atomic_folder(target, provenance("aa")) as draft:
        mark = room.read(LEASE_NAME)
        write_made(draft, "aa")
    if room.local_path is not None and killed_at != "no time":
        make_private_folder(room.local_path, "")
    if killed_at != "no time":
        room.write(LEASE_NAME, mark)  # as a kill leaves it
    if killed_at == "the end of its body" and room != target:
        for name in target.list():
            room.folder("files").write(name, target.read(name))
            target.remove(name)
    with open_atomic_folder(target, provenance("aa")) as again:
        if killed_at == "the end of its body" and room != target:
            write_made(again, "aa")  # the folder had not appeared
        else:
            assert again is None
    assert store.list() == ["out/README.md", f"out/{TAR}"]
    assert target.read(TAR) == b"aa"
    with (
        pytest.raises(DestinationError, match=r"holds an export already, but not this one .*; remove it, or choose an"),
        open_atomic_folder(target, provenance("bb")),
    ):
        pass
    assert store.list() == ["out/README.md", f"out/{TAR}"]


def test_an_export_that_lacks_a_file_is_not_taken_for_complete(store: Store) -> None:
    target = Storage(f"{store.url}/out")
    with open_atomic_folder(target, provenance("aa")) as draft:
        write_made(draft, "aa")
    target.remove(TAR)
    with pytest.raises(DestinationError, match="holds an export already"), open_atomic_folder(target, provenance("aa")):
        pass
    target.remove("README.md")
    with open_atomic_folder(target, provenance("aa")) as draft:
        write_made(draft, "aa")
    assert target.list() == ["README.md", TAR]


def test_files_of_others_beside_a_complete_export_stay(tmp_path: Path) -> None:
    target = Storage(str(tmp_path / "out"))
    with open_atomic_folder(target, provenance("aa")) as draft:
        write_made(draft, "aa")
    target.write("thesis.txt", b"mine")
    with open_atomic_folder(target, provenance("aa")) as again:
        assert again is None
    assert target.list() == ["README.md", "thesis.txt", TAR]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
