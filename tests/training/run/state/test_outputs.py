"""The files of a run, by path and URL."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.run.state.outputs import check_writable, write_file


def test_a_bare_name_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, url in enumerate(("a.json", "./b.json", "new/c.json", f"file://{tmp_path}/d.json")):
        check_writable(url)
        write_file(url, b"%d" % number)
        assert (tmp_path / url.removeprefix(f"file://{tmp_path}/")).read_bytes() == b"%d" % number


def test_runs_that_start_together_do_not_remove_the_folder_of_each_other(tmp_path: Path) -> None:
    """As a sweep does whose outputs lie in one new folder."""
    urls = [str(tmp_path / "new/sweep" / f"{number}.json") for number in range(4)]
    with ThreadPoolExecutor(len(urls)) as pool:
        for _ in range(50):
            assert list(pool.map(check_writable, urls)) == [None] * len(urls)


@pytest.mark.parametrize("attempt", [check_writable, lambda url: write_file(url, b"")])
def test_a_bucket_without_a_file_name_is_not_a_local_file(
    attempt: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(attempt)
    with pytest.raises(ConfigError, match="s3:// names no bucket"):
        attempt("s3://bucket")
    assert list(tmp_path.iterdir()) == []


class NoRemovals(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A store that takes files and removes none."""

    protocol = "noremovals"
    store: ClassVar[dict[str, Any]] = {}

    def rm_file(self, path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)


def test_a_store_that_removes_nothing_gets_no_trial() -> None:
    fsspec.register_implementation("noremovals", NoRemovals, clobber=True)
    check_writable("noremovals://run/model.keras")
    assert NoRemovals.store == {}


def test_what_killed_processes_left_of_a_file_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from ringfeed.sharding.storage.atomic_files import LocalDraft
draft = LocalDraft(Path(sys.argv[1]))
draft.write(b"half")
if sys.argv[2] == "die":
    os.kill(os.getpid(), signal.SIGKILL)
print(flush=True)
sys.stdin.read()
draft.commit()
"""
    path, other = tmp_path / "model.keras", tmp_path / ".other.keras.0123abcd.part"
    other.touch()
    for target in (path, path):
        subprocess.run([sys.executable, "-c", program, str(target), "die"], check=False)
    assert len(list(tmp_path.iterdir())) == 3
    command = [sys.executable, "-c", program, str(path), "live"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as living:
        assert living.stdout is not None
        living.stdout.readline()
        write_file(str(path), b"whole")
        assert len(list(tmp_path.iterdir())) == 3  # the other's, the file, and what is being written
        living.communicate()
    assert living.returncode == 0
    assert set(tmp_path.iterdir()) == {path, other}
    assert path.read_bytes() == b"half"
