"""A folder that appears at once, on every store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding import DestinationError
from ringfeed.sharding.appear import appearing_folder
from ringfeed.sharding.storage import Storage
from tests.servers.store import Store

NAMES = ("a.tar", "README.md")


def fill(target: Storage, data: bytes, then: Callable[[], None] = lambda: None) -> None:
    with appearing_folder(target, NAMES) as draft:
        draft.write("a.tar", data)
        then()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_the_files_are_there_when_the_body_has_ended(store: Store) -> None:
    target = Storage(f"{store.url}/new/out")
    with appearing_folder(target, NAMES) as draft:
        draft.write("a.tar", b"a")
        if not target.is_object_store:
            assert target.list() == []
        draft.write("README.md", b"r")
    assert store.list() == ["new/out/README.md", "new/out/a.tar"]
    assert target.read("a.tar") == b"a"


def test_a_body_that_fails_leaves_nothing(store: Store) -> None:
    target = Storage(f"{store.url}/new/out")
    absent = target.absent_folders()
    with pytest.raises(KeyboardInterrupt):
        fill(target, b"a", then=interrupt)
    assert store.list() == []
    assert target.absent_folders() == absent


def test_what_is_there_stays_there(store: Store) -> None:
    store.write_bytes("out/thesis.txt", b"mine")
    with (
        pytest.raises(DestinationError, match=r"is not empty \(there is 'thesis.txt'\)"),
        appearing_folder(Storage(f"{store.url}/out"), NAMES),
    ):
        pass
    assert store.list() == ["out/thesis.txt"]


def test_a_folder_that_is_empty_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with appearing_folder(Storage(str(tmp_path / "out")), NAMES) as draft:
        draft.write("a.tar", b"a")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a.tar"]


def test_the_first_of_two_wins(tmp_path: Path) -> None:
    target = Storage(str(tmp_path / "out"))
    with pytest.raises(DestinationError, match="was filled by another in the meantime"):
        fill(target, b"second", then=lambda: fill(target, b"first"))
    assert target.read("a.tar") == b"first"
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "a.tar"]


def test_in_an_object_store_what_a_killed_one_left_is_overwritten() -> None:
    target = Storage("memory://killed/out")
    target.write("_exporting.json", b"{}")
    target.write("a.tar", b"half")
    with appearing_folder(target, NAMES) as draft:
        draft.write("a.tar", b"whole")
        draft.write("README.md", b"r")
    assert target.list() == ["README.md", "a.tar"]
    assert target.read("a.tar") == b"whole"
    target.write("_exporting.json", b"{}")
    target.write("thesis.txt", b"mine")
    with pytest.raises(DestinationError, match=r"there is 'thesis\.txt'"), appearing_folder(target, NAMES):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DestinationError, match="is a file; name a folder"):
        appearing_folder(Storage(str(tmp_path / "out")), NAMES).__enter__()
