"""Folders under names that other users can predict, such as those in /tmp: nobody else may have planted them.

A planted link would lead what is written and removed there to files of the victim; a planted folder would let its
owner read records, or replace them.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ringfeed.sharding.errors import DestinationError

from .atomic_files import make_folder


def make_private_folder(folder: Path, remedy: str) -> None:
    """Create a folder that only this user can open, and its parents; one that exists must be such a folder.

    Raises:
        DestinationError: another user may have planted it.
        NotADirectoryError: one of its parents is a file.
    """
    check_private(folder, remedy)
    make_folder(folder, mode=0o700)
    check_private(folder, remedy)  # again: it may have been planted in between


def check_private(folder: Path, remedy: str) -> None:
    """Check that a folder is absent, or belongs to this user and nobody else can open it. Links are not followed.

    Raises:
        DestinationError: another user may have planted it.
    """
    try:
        status = os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(status.st_mode):
        raise DestinationError(f"{folder} is a link, which another user may have planted; remove it, or {remedy}")
    if not stat.S_ISDIR(status.st_mode):
        raise DestinationError(f"{folder} is not a folder; remove it, or {remedy}")
    if status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return
    owner, mode = _of_new_folders(folder.parent, default=(os.getuid(), 0))
    if status.st_uid != owner:
        raise DestinationError(f"{folder} belongs to another user; {remedy}")
    if status.st_mode & 0o077 & ~mode:
        shown = f"{stat.S_IMODE(status.st_mode):o}"
        raise DestinationError(f"{folder} is open to other users (mode {shown}); remove it, or {remedy}")


def _of_new_folders(parent: Path, *, default: tuple[int, int]) -> tuple[int, int]:
    """The owner and mode that a folder of mode 0700 gets: file systems such as exFAT or NFS may give others."""
    try:
        with tempfile.TemporaryDirectory(prefix=".ringfeed-", dir=parent) as probe:
            status = os.lstat(probe)
    except OSError:
        return default
    return status.st_uid, status.st_mode
