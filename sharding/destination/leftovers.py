"""Recognizes and removes the files that builds, appends and repairs may leave in a folder.

Tested in tests/sharding/destination/test_clean.py and tests/sharding/building/test_resume.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ringfeed.sharding.dataset.dataset import Dataset
from ringfeed.sharding.dataset.file_names import OWN_FOLDER, REJECTED_NAMES, SHARD_NAMES, TABLE_NAMES
from ringfeed.sharding.dataset.tfds_files import TFDS_PATHS
from ringfeed.sharding.errors import DestinationError, RingfeedError
from ringfeed.sharding.storage.atomic_files import draft_target
from ringfeed.sharding.storage.lease import LEASE_NAME, TAKEOVER_PREFIX
from ringfeed.sharding.storage.storage import Storage

from .journal import JOURNAL_FOLDER

STAGING = "_replacing"
_OURS = re.compile(
    rf"{SHARD_NAMES.pattern}|{TABLE_NAMES.pattern}"
    rf"|{REJECTED_NAMES.pattern}|{TFDS_PATHS.pattern}"
    rf"|{re.escape(LEASE_NAME)}|{re.escape(TAKEOVER_PREFIX)}.*\.json|{JOURNAL_FOLDER}/.*\.json|{STAGING}/.*"
)
_FOLDERS = re.compile(rf"({OWN_FOLDER}|g\d{{5,}}|({JOURNAL_FOLDER}|{STAGING})(/.*)?)?")
_REMOVERS = 16


def is_build_file(name: str) -> bool:
    """Whether builds, appends or repairs write files of this name, `dataset.json` excepted."""
    return is_build_draft(name) or _OURS.fullmatch(name) is not None


def is_build_draft(name: str) -> bool:
    """Whether a path names an unfinished file in a folder that builds write to; other subfolders belong to others."""
    return bool(draft_target(name)) and _FOLDERS.fullmatch(name.rpartition("/")[0]) is not None


def check_no_links(destination: Storage) -> None:
    """Refuse a link where builds keep folders, or the lease: it leads to the files of others (a DestinationError)."""
    folder = destination.local_path
    if folder is None or not folder.is_dir():
        return
    with destination.errors("list", ""):
        names = [entry.name for entry in os.scandir(folder) if entry.is_symlink()]
    for name in names:
        if name == LEASE_NAME or _FOLDERS.fullmatch(name):
            raise DestinationError(f"{folder / name} is a link, which another user may have planted; remove it")


def dataset_files(dataset: Dataset) -> list[str]:
    """The files of a dataset, without `dataset.json`."""
    shards = (path for shard in dataset.shards for path in shard.files)
    return [dataset.manifest.shards_path, *shards, *dataset.manifest.files]


def parent_folders(names: Iterable[str]) -> set[str]:
    """The folders that files lie in, without the root."""
    return {name.rpartition("/")[0] for name in names} - {""}


def remove_files(storage: Storage, names: Iterable[str]) -> None:
    """Remove files, in parallel where each removal is a request."""
    if storage.local_path is not None:
        for name in names:
            storage.remove(name)
        return
    with ThreadPoolExecutor(_REMOVERS) as pool:
        list(pool.map(storage.remove, names))


def remove_empty_folders(storage: Storage, folders: Iterable[str]) -> None:
    """Remove folders that hold no files, where the store has folders."""
    with suppress(RingfeedError):
        for folder in folders:
            storage.prune(folder)


def abort_uploads(storage: Storage, mine: Callable[[str], bool] = is_build_file, *, dry_run: bool = False) -> list[str]:
    """Abort the S3 uploads of killed processes, in a folder that nobody else writes to.

    Returns:
        The URLs of the uploads; files of these names may exist, written by others.
    """
    uploads = [(path, upload) for path, upload in storage.uploads() if mine(path)]
    for path, upload in () if dry_run else uploads:
        storage.abort_upload(path, upload)
    return [storage.locate(f"{path}?uploadId={upload}") for path, upload in uploads]
