"""The files that a run writes: its model and its metrics, on any storage that fsspec opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from tempfile import TemporaryFile
from typing import Any

from ringfeed.sharding.destination.held_file import write_held_file
from ringfeed.sharding.errors import StorageError
from ringfeed.sharding.storage.atomic_files import create_in_folder
from ringfeed.sharding.storage.storage import Storage
from ringfeed.training.reports.tracker import finite

METRICS_FORMAT = "ringfeed-metrics-1"


def write_file(url: str, data: bytes) -> None:
    """Write a file at a path or URL, whole or not at all, and remove what killed processes have left of it.

    A ConfigError says that the URL names a bucket, but no file in it; a StorageError that the storage fails.
    """
    storage, name = locate_file(url)
    write_held_file(storage, name, data)


def check_writable(url: str, *, in_stores: bool = True) -> None:
    """Raise a ConfigError or StorageError unless a file can be written, before a run, and leave nothing behind.

    Remote stores, which take time, are checked if `in_stores`. In one that lets no file be removed, nothing is tried,
    since an empty file would be left.
    """
    storage, name = locate_file(url)
    if storage.local_path is None and not in_stores:
        return
    if not name or (storage.local_path is not None and (storage.local_path / name).is_dir()):
        raise StorageError(f"cannot write {url}: it is a folder; name a file")
    absent = storage.absent_folders()
    if storage.local_path is None:
        try:
            storage.remove(f"{name}.trial")
        except StorageError:
            return
        write_held_file(storage, f"{name}.trial", b"")
        storage.remove(f"{name}.trial")
    else:
        with storage.errors("write", name):
            create_in_folder(storage.local_path, partial(TemporaryFile, dir=storage.local_path)).close()
    storage.remove_folders(absent)


def locate_file(url: str) -> tuple[Storage, str]:
    folder, separator, name = url.rpartition("/")
    if not folder or folder.rstrip("/").endswith(":"):  # the slash belongs to the root or to the scheme
        folder += separator
    return Storage(folder or "."), name


def encode_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Encode the metrics file: JSON, with null for numbers that are not finite."""
    return (json.dumps(finite(metrics), indent=1) + "\n").encode()
