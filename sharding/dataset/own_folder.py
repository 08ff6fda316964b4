"""Finds where a dataset keeps ringfeed's own files: in `_ringfeed/` or, as earlier versions did, beside the shards.

The manifest decides: the names of all other files follow from where it lies (`file_names.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from ringfeed.sharding.storage.storage import Storage

from .file_names import ALL_NAMES, NAMES, OWN_FOLDER, FileNames

_MOST_BYTES = 256 << 20  # a manifest with a million classes has some 30 MB


def is_own_folder(storage: Storage) -> bool:
    """Whether a folder is the `_ringfeed` of a dataset, which is no dataset, though its manifest lies there."""
    return storage.address().rstrip("/").rpartition("/")[2] == OWN_FOLDER


def _names_in(storage: Storage) -> tuple[FileNames, ...]:
    return (NAMES,) if is_own_folder(storage) else ALL_NAMES


def read_manifest(storage: Storage) -> tuple[FileNames, bytes]:
    """Read the manifest of a dataset, or raise a FileNotFoundError; also return the names that its files have."""
    error: FileNotFoundError | None = None
    for names in _names_in(storage):
        try:
            return names, storage.read(names.manifest, _MOST_BYTES)
        except FileNotFoundError as missing:
            error = error or missing
    assert error is not None
    raise error


def find_names(storage: Storage) -> FileNames | None:
    """Return the names that the files of a dataset have; None if there is no manifest."""
    return next((names for names in _names_in(storage) if storage.exists(names.manifest)), None)


def holds_dataset(storage: Storage) -> bool:
    """Whether a folder holds a manifest."""
    return find_names(storage) is not None


def listed_names(files: Collection[str]) -> FileNames | None:
    """Return the names that the files of a dataset have, from a listing of its folder; None if it has no manifest."""
    return next((names for names in ALL_NAMES if names.manifest in files), None)


def sync_names(storage: Storage, names: FileNames, generation: int = 0) -> None:
    """Make the names of all files written to a dataset survive a power cut, as their contents already do."""
    for folder in {names.own, names.folder(generation)} - {""}:
        storage.folder(folder.rstrip("/")).sync()
    storage.sync()
