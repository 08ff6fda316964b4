"""The folder a dataset is built in: refused if anything lies there, cleared if the build fails, committed last."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from posixpath import normpath

from .dataset import open_dataset
from .errors import DestinationError, RingfeedError
from .manifest import MANIFEST_NAME, SHARDS_NAME, Manifest
from .storage import Storage

__all__ = ["BUILDING_NAME", "Draft", "check_apart", "draft_dataset"]

BUILDING_NAME = "_building.json"  # its presence, with no manifest, marks what a killed build left
_STAGING = "_replacing"
_OURS = re.compile(
    r"(.*-\d{5,}-of-\d{5,}\.(tfrecord|parquet|index\.arrow|idx)|dataset_info\.json|features\.json|"
    rf"{SHARDS_NAME}|{BUILDING_NAME}|\..*\.part)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A dataset that is being built.

    Attributes:
        destination: where it will be.
        storage: where its shards are written: the same, or a folder within if another dataset is to be replaced.
    """

    destination: Storage
    storage: Storage

    def commit(self, manifest: Manifest, shards: bytes) -> None:
        """Make a dataset of it, at once: nothing before the last write opens as one.

        A dataset that is replaced is removed first; between that and the last write none is there.
        """
        self.storage.write(SHARDS_NAME, shards)
        if self.storage != self.destination:
            self._replace()
        elif self.destination.exists(MANIFEST_NAME):
            raise DestinationError(f"{self.destination.locate()} was filled by another build in the meantime")
        self.destination.sync()
        self.destination.write(MANIFEST_NAME, manifest.encode())
        self.destination.sync()

    def _replace(self) -> None:
        try:
            dataset = open_dataset(self.destination)
            old = [path for shard in dataset.shards for path in (shard.path, shard.index_path)]
            old += dataset.manifest.files
        except RingfeedError:
            old = []  # it was damaged: that may be why it is being replaced
        self.destination.write(BUILDING_NAME, b"{}")
        self.destination.remove(MANIFEST_NAME)
        for path in (*old, SHARDS_NAME):
            self.destination.remove(path)
        for name in self.storage.list():
            if name != BUILDING_NAME:
                self.destination.move(f"{_STAGING}/{name}", name)


@contextmanager
def draft_dataset(destination: Storage, *, overwrite: bool, about: dict[str, str]) -> Iterator[Draft]:
    """A place to build a dataset in. If the body fails, nothing of it is left.

    Args:
        destination: where the dataset is to be.
        overwrite: replace one that is there. It stays as it was if the body fails before `Draft.commit`.
        about: kept in the folder while it is being built, for whoever finds it.

    Raises:
        DestinationError: something is in the way.
        StorageError: the store refuses.
    """
    replacing = _check(destination, overwrite)
    storage = Storage(destination.locate(_STAGING), destination.options) if replacing else destination
    absent = storage.absent_folders()
    draft = Draft(destination=destination, storage=storage)
    try:
        for name in storage.list():  # what a killed build left
            storage.remove(name)
        storage.write(BUILDING_NAME, json.dumps(about).encode())
        yield draft
    except BaseException:
        with suppress(RingfeedError):  # the store is gone; the error that brought us here says so
            _discard(draft)
            storage.remove_folders(absent)
        raise
    with suppress(RingfeedError):  # it is committed: a mark left behind does no harm, an error would mislead
        storage.remove(BUILDING_NAME)
        destination.remove(BUILDING_NAME)
        if storage != destination:
            storage.remove_folders(absent[:1])


def _discard(draft: Draft) -> None:
    """Remove what was written; the manifest first, in case it was the last write that failed after all."""
    for storage in (draft.storage, draft.destination):
        if storage == draft.destination and draft.storage != draft.destination:
            names = storage.list()
            if BUILDING_NAME not in names:
                return  # the dataset that was to be replaced is still there, whole
        storage.remove(MANIFEST_NAME)
        for name in storage.list():
            if _OURS.fullmatch(name.rpartition("/")[2]):
                storage.remove(name)


def _check(destination: Storage, overwrite: bool) -> bool:
    """Whether there is a dataset to replace.

    Raises:
        DestinationError: says what is in the way.
    """
    if destination.local_path is not None and destination.local_path.is_file():
        raise DestinationError(f"the destination {destination.locate()} is a file; name a folder")
    destination.check_writable()
    files = destination.list()
    if MANIFEST_NAME in files:
        if not overwrite:
            raise DestinationError(
                f"{destination.locate()} already holds a dataset; choose another folder, or replace it with --overwrite"
            )
        return True
    foreign = next((name for name in files if not _OURS.fullmatch(name.rpartition("/")[2])), None)
    if foreign or (files and BUILDING_NAME not in files):
        raise DestinationError(
            f"{destination.locate()} is not empty and holds no dataset (there is {foreign or files[0]!r}); "
            "choose an empty folder"
        )
    return False


def check_apart(source: str, destination: str) -> None:
    """Refuse a destination that is its own source, lies in it, or holds it.

    Raises:
        DestinationError: says which.
    """
    folder = source
    while any(letter in folder for letter in "*?["):  # of a glob, the part that is no pattern
        folder = folder.rpartition("/")[0]
    a, b = (normpath(Storage(url).locate()) for url in (folder, destination))
    if a == b and folder == source:
        raise DestinationError(f"the destination {destination} is the source itself; choose another folder")
    if folder == source and b.startswith(a + "/"):
        raise DestinationError(f"the destination {destination} lies inside the source {source}; choose another folder")
    if a == b or a.startswith(b + "/"):
        raise DestinationError(f"the source {source} lies inside the destination {destination}; choose another folder")
