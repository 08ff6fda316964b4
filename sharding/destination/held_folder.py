"""A folder that one process at a time writes files of a kind to, each whole as it appears: checkpoints, predictions.

`atomic_folder` holds one whose files appear together; `dataset_draft` one that a dataset is built in.

Tested in tests/training/checkpoint/test_store.py and tests/training/serving/test_predict.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from ringfeed.sharding.errors import DestinationError, RingfeedError
from ringfeed.sharding.storage.fenced_storage import FencedStorage, fence_storage
from ringfeed.sharding.storage.lease import check_not_held, hold_lease, read_holder
from ringfeed.sharding.storage.storage import Storage


@contextmanager
def hold_folder(
    folder: Storage, about: Mapping[str, str], lease: str, remedy: str, silent_token: str = ""
) -> Iterator[FencedStorage]:
    """Yield a folder that no other process holds in the body; remove it afterwards if it is new and empty.

    A process that a lease elsewhere has replaced, because it stood still, can no longer change a file.

    Args:
        about: description for the lease file, with the ``task``.
        remedy: what to do if another process holds the folder, other than to wait for it.
        silent_token: as of `hold_lease`.

    Raises:
        DestinationError: another process holds the folder, or there is a file in its place.
    """
    folder.check_writable()
    folder.remove(f"{lease}.trial")  # a store that refuses this would keep the lease file, too
    absent = folder.absent_folders()
    with ExitStack() as stack:
        with _naming(remedy):
            acquired = stack.enter_context(hold_lease(folder, about, lease, silent_token))
        try:
            yield fence_storage(folder, acquired)
        finally:
            acquired.release(keep=False)
            with suppress(RingfeedError):  # the error of the body matters
                folder.remove_folders(absent)


def check_folder_free(folder: Storage, lease: str, remedy: str) -> None:
    """Refuse a folder that a process of this machine holds (a DestinationError), without waiting for a heartbeat."""
    holder = read_holder(folder, lease)
    if holder is not None and holder.is_local:
        with _naming(remedy):
            check_not_held(folder, holder, lease)


@contextmanager
def _naming(remedy: str) -> Iterator[None]:
    try:
        yield
    except DestinationError as error:
        raise DestinationError(f"{error}, or {remedy}") from error
