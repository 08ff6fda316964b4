"""Temporary folders that go with their process: one that a killed process left is removed by the next.

`process_folder` is one for whatever `tempfile` makes. Libraries leave files there when a process ends at once:
TensorFlow removes the sources that AutoGraph generates only at the end of the interpreter. `mark_folder` is for one
that a library made and must not be renamed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import xxhash

from .lease import boot_id, process_start_ticks

_NAMES = re.compile(r"([a-z-]+)-([0-9a-f]{16})-(\d+)-(\d+)-[0-9a-f]{8}")  # groups: kind, machine, process, its start
_KIND = "ringfeed-tmp"
_MARKED = "pymp-"  # `multiprocessing` names its folders so, and `mark_folder` marks them
_REMOVALS = 20  # attempts: a thread that is about to end may still write into the folder
_REMOVAL_SECONDS = 0.05
_mine: list[Path] = []


@contextmanager
def temporary_folder(parent: str | os.PathLike[str] | None = None) -> Iterator[Path]:
    """Make a folder, and remove it after the body; first remove folders that killed processes left.

    Args:
        parent: the folder to make it in; None: the folder of `tempfile`.
    """
    parent = Path(tempfile.gettempdir() if parent is None else parent)
    remove_killed_folders(parent)
    folder = parent / name_of_process(_KIND)
    folder.mkdir(0o700)
    _mine.append(folder)
    try:
        yield folder
    finally:
        _mine.remove(folder)
        for _ in range(_REMOVALS):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(_REMOVAL_SECONDS)


@contextmanager
def process_folder() -> Iterator[None]:
    """Let `tempfile` make its files and folders in one of this process in the body."""
    before = tempfile.tempdir
    if is_of_living(Path(tempfile.gettempdir()).name, _KIND):  # within the body of another call
        yield
        return
    with temporary_folder() as folder:
        tempfile.tempdir = str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before


def mark_folder(folder: str) -> None:
    """Mark the folder of `multiprocessing` as this process's; first remove folders that killed processes left."""
    if not any(is_of_living(name, _KIND) for name in os.listdir(folder)):
        remove_killed_folders(Path(folder).parent)
        Path(folder, name_of_process(_KIND)).touch()


def end_process(status: int) -> NoReturn:
    """End this process at once with an exit status, as `os._exit` does, and remove its folders."""
    for folder in _mine:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(status)


def name_of_process(kind: str) -> str:
    """A new name for a file or folder that goes with this process."""
    started = process_start_ticks(os.getpid()) or "0"  # 0: this system does not tell
    return f"{kind}-{_machine()}-{os.getpid()}-{started}-{secrets.token_hex(4)}"


def is_of_living(name: str, kind: str) -> bool | None:
    """Whether the process that a name goes with lives; None if that is no process of this machine, since its boot."""
    match = _NAMES.fullmatch(name)
    if match is None or (match[1], match[2]) != (kind, _machine()):
        return None
    return match[4] == "0" or process_start_ticks(int(match[3])) == match[4]


def _machine() -> str:
    return xxhash.xxh3_64_hexdigest(boot_id().encode())


def remove_killed_folders(parent: Path | None = None) -> None:
    """Remove the folders of killed processes of this machine, since its boot; those of others stay.

    Args:
        parent: the folder to look in; None: the folder of `tempfile`.
    """
    for entry in os.scandir(tempfile.gettempdir() if parent is None else parent):
        names = [entry.name]
        if entry.name.startswith(_MARKED) and entry.is_dir(follow_symlinks=False):
            with suppress(OSError):  # another user's, or gone meanwhile
                names = os.listdir(entry.path)
        if any(is_of_living(name, _KIND) is False for name in names) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
