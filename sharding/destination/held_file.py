"""A file that is written whole, and the drafts and uploads of it that killed processes have left.

On a local disk a draft is locked while it is written. A store has no locks: there a lease beside the file tells that
its drafts are in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.storage.storage import Storage

from .held_folder import hold_folder
from .leftovers import remove_empty_folders, remove_files

_LEASE = "_writing.json"


def write_held_file(storage: Storage, name: str, data: bytes) -> None:
    """Write a file, in place of an existing one, and remove what killed processes have left of it.

    If another process is writing the same file, both write it, and nothing is removed.
    """
    with _hold(storage, name, len(data)) as is_held:
        storage.write(name, data)
        if is_held:
            with suppress(RingfeedError):  # it is written: leftovers do no harm, and an error would mislead
                storage.remove_drafts(name)


@contextmanager
def _hold(storage: Storage, name: str, size: int) -> Iterator[bool]:
    """Yield whether no other process may be writing a file; a store that removes nothing can't tell."""
    if storage.local_path is not None or not storage.leaves_drafts(size):
        yield storage.local_path is not None
        return
    room = storage.folder(f".{name}.writing")
    with ExitStack() as stack:
        is_held = False
        with suppress(RingfeedError):  # if the store is down, the write says so
            own_folder = stack.enter_context(hold_folder(room, {"task": "write"}, _LEASE, "name another file"))
            remove_files(own_folder, [left for left in room.list() if left != _LEASE])
            is_held = True
        yield is_held
    if is_held:
        remove_empty_folders(room, [""])
