"""A folder of files that appears at once: written elsewhere and renamed, where the store can rename a folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from .errors import DestinationError, RingfeedError
from .storage import Storage

__all__ = ["appearing_folder"]

_MARK = "_exporting.json"  # in an object store: what lies beside it is not complete


@contextmanager
def appearing_folder(target: Storage, names: Collection[str]) -> Iterator[Storage]:
    """A place to write the files of a folder in. If the body fails, nothing of it is left.

    On local disks and HDFS the folder is renamed when the body has ended. An object store has no folders to rename:
    there the files are written in place, beside a mark that is removed last. A process that is killed leaves a hidden
    folder beside the target, or the mark and what lies beside it, which the next one replaces.

    Args:
        target: the folder; there is none yet, or it is empty.
        names: of the files that the body writes.

    Raises:
        DestinationError: something is in the way.
        StorageError: the store refuses.
    """
    if target.local_path is not None and target.local_path.is_file():
        raise DestinationError(f"the destination {target.locate()} is a file; name a folder")
    target.check_writable()
    found = target.list()
    left_over = {*names, _MARK} if _MARK in found else set()  # by an export that was killed
    if foreign := next((name for name in found if name not in left_over), None):
        raise DestinationError(f"{target.locate()} is not empty (there is {foreign!r}); choose an empty folder")
    parent, _, name = target.locate().rpartition("/")
    in_place = target.is_object_store
    storage = target if in_place else Storage(f"{parent}/.{name}.{secrets.token_hex(4)}.part", target.options)
    absent = storage.absent_folders()
    try:
        if in_place:
            storage.write(_MARK, b"{}")
        yield storage
        if in_place:
            storage.remove(_MARK)
        else:
            _rename(storage, target)
    except BaseException:
        with suppress(RingfeedError):  # the store is gone; the error that brought us here says so
            for written in (*names, _MARK) if in_place else storage.list():
                storage.remove(written)
            storage.remove_folders(absent)
        raise


def _rename(draft: Storage, target: Storage) -> None:
    draft.sync()
    if target.list():
        raise DestinationError(f"{target.locate()} was filled by another in the meantime")
    with target.errors("write", ""):
        if target.local_path is not None and draft.local_path is not None:
            os.rename(draft.local_path, target.local_path)  # takes the place of an empty folder, of no other
        else:
            fs, path = target.filesystem()
            if fs.exists(path):
                fs.rmdir(path)
            fs.mv(draft.filesystem()[1], path)
    Storage(target.locate().rpartition("/")[0] or "/", target.options).sync()
