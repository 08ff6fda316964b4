"""The files that a run leaves behind: its model and its metrics, on any storage that fsspec opens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from tempfile import TemporaryFile
from typing import Any

from ..sharding.drafts import make_folder
from ..sharding.errors import StorageError
from ..sharding.storage import Storage

__all__ = ["METRICS_FORMAT", "check_writable", "encode_metrics", "write_file"]

METRICS_FORMAT = "ringfeed-metrics-1"


def write_file(url: str, data: bytes) -> None:
    """Write a file at a path or URL, whole or not at all.

    Raises:
        StorageError: the storage refuses.
    """
    storage, name = _place(url)
    storage.write(name, data)


def check_writable(url: str) -> None:
    """Find out before a run that its output, on a disk of this machine, will not be written. Leaves nothing there.

    Of stores only writing itself tells: one may allow it, and not that a trial is removed.

    Raises:
        StorageError: it will not.
    """
    storage, name = _place(url)
    if storage.local_path is None:
        return
    if not name or (storage.local_path / name).is_dir():
        raise StorageError(f"cannot write {url}: it is a folder; name a file")
    absent = storage.absent_folders()
    with storage.errors("write", name):
        make_folder(storage.local_path)
        with TemporaryFile(dir=storage.local_path):
            pass
    storage.remove_folders(absent)


def _place(url: str) -> tuple[Storage, str]:
    folder, separator, name = url.rpartition("/")
    return Storage(folder or (separator or ".")), name


def encode_metrics(metrics: Mapping[str, Any]) -> bytes:
    """The metrics file: JSON, in which a number that is not finite is null."""
    return (json.dumps(_finite(metrics), indent=1) + "\n").encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value
