"""Temporary folders go with their process, however it ends."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding.storage.temporary_folder import (
    mark_folder,
    process_folder,
    remove_killed_folders,
    temporary_folder,
)

_PROGRAM = """
import os, signal, sys, tempfile
from ringfeed.sharding.storage.temporary_folder import end_process, mark_folder, process_folder
with process_folder():
    open(tempfile.mkdtemp() + "/file", "w").close()
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif sys.argv[1] == "end":
        end_process(3)
if sys.argv[1] == "mark":
    mark_folder(tempfile.mkdtemp(prefix="pymp-"))
"""


def _run(folder: Path, how: str) -> int:
    environ = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run([sys.executable, "-c", _PROGRAM, how], env=environ, check=False).returncode


@pytest.mark.parametrize(("how", "status"), [("return", 0), ("end", 3)])
def test_a_process_that_ends_takes_its_folder_along(tmp_path: Path, how: str, status: int) -> None:
    assert _run(tmp_path, how) == status
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_others_have_stays(tmp_path: Path) -> None:
    (tmp_path / "ringfeed-tmp-0123456789abcdef-1-1-01234567").mkdir()  # of another machine
    (tmp_path / "other").mkdir()
    foreign = set(tmp_path.iterdir())
    assert _run(tmp_path, "kill") == -signal.SIGKILL
    (killed,) = set(tmp_path.iterdir()) - foreign
    link = killed.with_name(f"{killed.name[:-8]}00000000")
    link.symlink_to(tmp_path / "other")
    with temporary_folder(tmp_path) as mine:
        assert _run(tmp_path, "return") == 0
        assert set(tmp_path.iterdir()) == {*foreign, mine, link}
    assert set(tmp_path.iterdir()) == {*foreign, link}


def test_a_marked_folder_of_a_process_that_has_ended_is_removed_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "pymp-unmarked").mkdir()
    (tmp_path / "pymp-mine").mkdir()
    mark_folder(str(tmp_path / "pymp-mine"))
    stays = set(tmp_path.iterdir())
    assert _run(tmp_path, "mark") == 0
    assert len(set(tmp_path.iterdir()) - stays) == 1
    (tmp_path / "pymp-link").symlink_to(*(set(tmp_path.iterdir()) - stays))
    remove_killed_folders(tmp_path)
    assert set(tmp_path.iterdir()) == {*stays, tmp_path / "pymp-link"}
    mark_folder(str(tmp_path / "pymp-mine"))
    assert len(list((tmp_path / "pymp-mine").iterdir())) == 1


def test_tempfile_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with process_folder():
        inner = tempfile.gettempdir()
        with process_folder():
            assert tempfile.gettempdir() == inner
        assert Path(inner).parent == tmp_path
    assert tempfile.gettempdir() == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_thread_writes_late_is_removed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, calls = shutil.rmtree, []

    def remove_and_write(folder: Path, **options: Any) -> None:
        remove(folder, **options)
        calls.append(folder)
        if len(calls) == 1:  # as a thread of a loader does that was filling a cache
            (folder / "shards").mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", remove_and_write)
    with temporary_folder(tmp_path):
        pass
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []
