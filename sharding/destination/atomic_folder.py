"""A folder of files that appears as a whole: written elsewhere, then renamed where the store can rename folders.

A lease (`storage/lease.py`) admits one writer at a time. What a killed process leaves is removed by the next one, or by
`clean`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ringfeed.sharding.errors import DestinationError, RingfeedError
from ringfeed.sharding.storage.lease import (
    LEASE_NAME,
    Holder,
    check_not_held,
    hold_lease,
    is_lease_draft,
    is_lease_file,
    read_holder,
)
from ringfeed.sharding.storage.private_folders import check_private, make_private_folder
from ringfeed.sharding.storage.storage import Storage

from .leftovers import abort_uploads, remove_empty_folders, remove_files
from .provenance import Provenance

_ABOUT = {"task": "export"}
_REMEDY = "export to a folder whose parent only you can write to"
_FILES = "files"  # the folder that is renamed, in the one beside the target
_WRITTEN = re.compile(  # by `shard-dataset export`, and `ringfeed export`, whose files those of a SavedModel are
    r"[^/]+-\d{5,}-of-\d{5,}\.(tar|parquet)|README\.md"
    r"|(saved_model|fingerprint|keras_metadata)\.pb|(variables|assets|assets\.extra)/.*"
)


@contextmanager
def open_atomic_folder(target: Storage, provenance: Provenance | None = None) -> Iterator[Storage | None]:
    """Yield a place to write a folder's files in; if the body fails, nothing of them remains.

    On local disks and HDFS the folder is renamed after the body. Object stores cannot rename folders: there the files
    are written in place, beside the lease file, which is removed last. A killed process leaves a hidden folder beside
    the target, or the lease file and what lies beside it.

    Args:
        target: folder that is missing or empty, or was made from the same.
        provenance: what the files are made from. If the folder was made from the same, it stays as it is, and None is
            yielded: there is nothing to write.

    Raises:
        DestinationError: something is in the way, or another process writes there.
    """
    target.check_writable()
    target = _resolved(target)
    _check_no_mount(target)
    room = _room(target)
    _check_free(target, read_holder(target), provenance)
    absent = room.absent_folders() or (() if room == target else (room.filesystem()[1],))
    if room.local_path is not None:
        with room.errors("write", ""):
            make_private_folder(room.local_path, _REMEDY)
    try:
        with hold_lease(room, _ABOUT) as lease:
            try:
                # again: it may have been filled before the lease was taken
                is_made = _check_free(target, lease.previous, provenance)
                remove_files(room, [] if is_made and room == target else _left_in(room))
                abort_uploads(room, _is_written)
                if is_made:
                    yield None
                    return
                storage = room if room == target else room.folder(_FILES)
                try:
                    yield storage
                    lease.check()
                    if storage != room:
                        _rename(storage, target)
                except BaseException:
                    with suppress(RingfeedError):  # the store is gone, as the original error says
                        lease.check()
                        remove_files(room, _left_in(room))
                    raise
            finally:
                lease.release(keep=False)
                remove_empty_folders(room, [_FILES])
    finally:
        with suppress(RingfeedError):
            room.remove_folders(absent)


def remove_killed_export(target: Storage, *, dry_run: bool = False) -> list[str]:
    """Remove what killed exports to a folder left.

    Returns:
        The URLs of the removed files and uploads.

    Raises:
        DestinationError: another process writes there.
    """
    target = _resolved(target)
    room = _room(target)
    if room.local_path is not None:
        check_private(room.local_path, _REMEDY)
    holder = read_holder(room)
    if room == target and not _is_export(holder):
        return []
    left = [name for name in room.list() if is_lease_file(name) or is_lease_draft(name)] + _left_in(room)
    if dry_run:
        check_not_held(room, holder)
    uploads = abort_uploads(room, _is_written, dry_run=True) if left else []
    if left and not dry_run:
        with hold_lease(room, _ABOUT) as lease:
            if room != target or _is_export(lease.previous):  # else the export has finished meanwhile
                remove_files(room, [name for name in left if name != LEASE_NAME])
                abort_uploads(room, _is_written)
            if refused := lease.release(keep=False):
                raise refused
    if room != target and not dry_run:
        remove_empty_folders(room, [""])
    return [room.locate(name) for name in left] + uploads


def _resolved(target: Storage) -> Storage:
    """Resolve a link: a rename can replace an empty folder, but not a link to one."""
    path = target.local_path
    return target if path is None or not path.is_dir() else replace(target, url=os.path.realpath(path))


def _check_no_mount(target: Storage) -> None:
    if target.local_path is not None and os.path.ismount(target.local_path):
        raise DestinationError(
            f"a disk is mounted at {target.locate()}, which a rename cannot replace; choose a folder within it"
        )


def _room(target: Storage) -> Storage:
    """The folder of the lease and the unfinished files: beside the target, or the target itself in an object store."""
    if target.is_object_store:
        return target
    parent, _, name = target.address().rpartition("/")
    return replace(target, url=f"{parent}/.{name}.exporting")


def _left_in(room: Storage) -> list[str]:
    in_place = room.is_object_store
    return [name for name in room.list() if (_is_written(name) if in_place else name.startswith(f"{_FILES}/"))]


def _is_written(name: str) -> bool:
    return _WRITTEN.fullmatch(name) is not None


def _check_free(target: Storage, holder: Holder | None, provenance: Provenance | None) -> bool:
    """Whether a folder was made from the same; refuse it if it holds anything but what a killed export left."""
    if provenance is not None and provenance.made(target):
        return True
    killed = _is_export(holder)
    others = [name for name in target.list() if not (killed and _is_written(name))]
    if provenance is not None and provenance.record in others:
        raise DestinationError(
            f"{target.locate()} is not empty: it holds an export already, but not this one of this model or dataset; "
            "remove it, or choose another folder"
        )
    if foreign := next((name for name in others if not (target.is_object_store and is_lease_file(name))), None):
        raise DestinationError(f"{target.locate()} is not empty (there is {foreign!r}); choose an empty folder")
    return False


def _is_export(holder: Holder | None) -> bool:
    return holder is not None and holder.task == _ABOUT["task"]


def _rename(draft: Storage, target: Storage) -> None:
    draft.sync()
    if target.list():
        raise DestinationError(f"{target.locate()} was filled by another process in the meantime")
    with target.errors("write", ""):
        if target.local_path is not None and draft.local_path is not None:
            os.rename(draft.local_path, target.local_path)  # replaces an empty folder only
        else:
            fs, path = target.filesystem()
            if fs.exists(path):
                fs.rmdir(path)
            fs.mv(draft.filesystem()[1], path)
    replace(target, url=target.address().rpartition("/")[0] or "/").sync()
