"""The folder a dataset is built in: held by one builder, gone on with or cleared, committed last and at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from posixpath import normpath

from .dataset import Dataset, open_dataset
from .errors import CorruptionError, DatasetError, DestinationError, RingfeedError
from .interop.tfds import TFDS_NAMES
from .journal import JOURNAL_FOLDER, ShardResult, read_journal
from .lease import LEASE_NAME, Lease, hold, is_held, read_holder
from .manifest import MANIFEST_NAME, SHARDS_NAME, Manifest
from .recovery import TABLE_NAMES, identify
from .spill import remove_spill, scratch_root, spill_root
from .storage import Storage
from .tolerance import REJECTED_NAME

__all__ = ["Draft", "check_apart", "clean", "draft_dataset"]

_STAGING = "_replacing"
_OURS = re.compile(
    r"(.*/)?(.*-\d{5,}-of-\d{5,}(\.salvaged(-\d+)?)?\.(tfrecord|parquet|index\.arrow|idx)"
    r"|shards(\.salvaged(-\d+)?)?\.parquet|\..*\.part)"
    rf"|{'|'.join(map(re.escape, (*TFDS_NAMES, REJECTED_NAME, LEASE_NAME)))}"
    rf"|_building\.takeover-.*\.json|{JOURNAL_FOLDER}/.*\.json|{_STAGING}/.*"
)
_REMOVERS = 16


class Draft:
    """A dataset that is being built.

    Attributes:
        destination: where it will be.
        storage: where its shards are written: the same, or a folder within if another dataset is to be replaced.
        lease: held on the destination.
        finished: shards that an earlier build or this one has written.
        total: shards in all; 0 until that is known.
    """

    def __init__(self, destination: Storage, storage: Storage, lease: Lease) -> None:
        self.destination = destination
        self.storage = storage
        self.lease = lease
        self.finished = 0
        self.total = 0
        self._committing = False

    @property
    def how_to_resume(self) -> str:
        """What to tell who is left with unfinished work."""
        return (
            f"{self.finished:,} of {self.total:,} shards are finished: start the same command again to go on with the "
            f"rest, or remove them with: shard-dataset clean {self.destination.locate()}"
        )

    @staticmethod
    def may_resume(error: BaseException) -> bool:
        """Whether the same build, started again, may succeed with no change to its source or options."""
        if isinstance(error, RingfeedError):
            return error.may_pass
        return isinstance(error, (KeyboardInterrupt, SystemExit, OSError))

    def committed(self, fingerprint: str) -> Manifest | None:
        """The dataset, if a build of the same plan was killed between its commit and its end.

        Raises:
            DestinationError: another dataset is there, and is not to be replaced.
        """
        replacing, previous = self.storage != self.destination, self.lease.previous
        if (replacing and previous is None) or not self.destination.exists(MANIFEST_NAME):
            return None
        manifest = open_dataset(self.destination).manifest
        if previous is not None and previous.task == "build" and manifest.plan == fingerprint:
            return manifest
        if not replacing:  # it may have come after the folder was looked at, and before it was held
            raise DestinationError(_taken(self.destination))
        return None

    def resume(self, fingerprint: str) -> dict[int, ShardResult]:
        """What an earlier build of the same plan finished; all else that it left is removed.

        Args:
            fingerprint: of the plan.

        Returns:
            Results by the number of the shard.
        """
        self.lease.tell_plan(fingerprint)
        sizes = self.storage.sizes()
        finished = read_journal(self.storage, fingerprint, sizes)
        keep = {LEASE_NAME, *(name for name in sizes if name.startswith(f"{JOURNAL_FOLDER}/{fingerprint}/"))}
        for result in finished.values():
            keep |= result.all_files.keys()
        _remove(self.storage, sizes.keys() - keep)
        self.finished = len(finished)
        return finished

    def commit(self, manifest: Manifest, shards: bytes) -> None:
        """Make a dataset of it, at once: nothing before the last write opens as one.

        A dataset that is replaced is removed first; between that and the last write none is there.

        Raises:
            DestinationError: another build was faster.
        """
        self.storage.write(SHARDS_NAME, shards)
        self.lease.check()
        if self.storage != self.destination:
            self._replace()
        self.destination.sync()
        try:
            self._committing = True
            self.destination.create(MANIFEST_NAME, manifest.encode())
        except FileExistsError as error:
            self._committing = False
            where = self.destination.locate()
            raise DestinationError(f"{where} was filled by another build in the meantime") from error
        self.destination.sync()

    def _replace(self) -> None:
        try:
            old = _files_of(open_dataset(self.destination))
        except RingfeedError:
            old = []  # it was damaged: that may be why it is being replaced
        self.destination.remove(MANIFEST_NAME)
        _remove(self.destination, old)
        for name in self.storage.list():
            if not name.startswith(JOURNAL_FOLDER):
                self.destination.move(f"{_STAGING}/{name}", name)

    def tidy(self) -> None:
        """Remove what only the build needed."""
        _remove(self.storage, [name for name in self.storage.list() if name.startswith(f"{JOURNAL_FOLDER}/")])
        _remove_empty(self.storage, [JOURNAL_FOLDER])
        if self.storage != self.destination:
            _remove(self.storage, self.storage.list())
            _remove_empty(self.destination, [_STAGING])

    def discard(self) -> None:
        """Remove what was written; a dataset that was to be replaced stays, if it is still whole."""
        self.lease.check()
        if self._committing:
            self.destination.remove(MANIFEST_NAME)  # its write failed, but it may have been done all the same
        names = self.destination.list()
        if MANIFEST_NAME in names:
            names = [name for name in names if name.startswith(f"{_STAGING}/")]
        _remove(self.destination, [name for name in names if _OURS.fullmatch(name) and name != LEASE_NAME])
        _remove_empty(self.destination, [JOURNAL_FOLDER, _STAGING])


@contextmanager
def draft_dataset(destination: Storage, *, overwrite: bool, about: Mapping[str, str]) -> Iterator[Draft]:
    """A place to build a dataset in.

    If the body fails for a reason that may pass (an interrupt, a store that refuses), finished shards are kept, for
    the same build to go on with; if it fails for another, or none is finished, nothing of it is left.

    Args:
        destination: where the dataset is to be.
        overwrite: replace one that is there. It stays as it was if the body fails before `Draft.commit`.
        about: kept in the folder while it is being built, for whoever finds it.

    Raises:
        DestinationError: something is in the way, or another build is at work there.
        StorageError: the store refuses.
    """
    replacing = _check(destination, overwrite)
    absent = destination.absent_folders()
    storage = Storage(destination.locate(_STAGING), destination.options) if replacing else destination
    with hold(destination, about) as lease:
        draft = Draft(destination, storage, lease)
        try:
            yield draft
            with suppress(RingfeedError):  # it is committed: what is left behind does no harm, an error would mislead
                draft.tidy()
        except BaseException as error:
            keep = draft.finished > 0 and draft.may_resume(error)
            with suppress(RingfeedError):  # the store is gone; the error that brought us here says so
                if not keep:
                    draft.discard()
                lease.release(keep=keep)
                destination.remove_folders(absent)
            raise
        lease.release(keep=False)


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
        if not overwrite and LEASE_NAME not in files:
            raise DestinationError(_taken(destination))
        return overwrite
    _check_no_damaged(destination, files)
    foreign = next((name for name in files if not _OURS.fullmatch(name)), None)
    if foreign or (files and LEASE_NAME not in files):
        raise DestinationError(
            f"{destination.locate()} is not empty and holds no dataset (there is {foreign or files[0]!r}); "
            "choose an empty folder"
        )
    return False


def _check_no_damaged(destination: Storage, files: Sequence[str]) -> None:
    """Refuse a folder without `dataset.json` that holds a dataset all the same: it can be made again from the table.

    Raises:
        DestinationError: it does.
    """
    if MANIFEST_NAME in files or not any(map(TABLE_NAMES.fullmatch, files)):
        return
    with suppress(DatasetError, CorruptionError):
        identify(destination, 1)
        where = destination.locate()
        raise DestinationError(
            f"{where} holds a dataset whose {MANIFEST_NAME} is missing; repair it first: shard-dataset repair {where}"
        )


def _taken(destination: Storage) -> str:
    return f"{destination.locate()} already holds a dataset; choose another folder, or replace it with --overwrite"


def clean(destination: Storage, *, spill: str | None = None, dry_run: bool = False) -> list[str]:
    """Remove what killed builds left at a destination, and spilled for it: all of ours that is no part of a dataset.

    Args:
        destination: with a dataset, or without.
        spill: where they were told to spill to.
        dry_run: only say what would be removed.

    Returns:
        The URLs.

    Raises:
        DestinationError: a build or a repair is at work there, or the dataset there has lost its `dataset.json`.
        CorruptionError: the dataset there is damaged; what belongs to it is not known.
    """
    files = destination.list()
    holder = read_holder(destination)
    if holder is not None and is_held(destination, holder):
        raise DestinationError(f"a {holder.task} is writing to {destination.locate()}; wait for it, or stop it first")
    _check_no_damaged(destination, files)
    known: set[str] = set()
    if MANIFEST_NAME in files:
        known = set(_files_of(open_dataset(destination)))
    debris = [name for name in files if _OURS.fullmatch(name) and name not in known] if _was_built_in(files) else []
    if not dry_run:
        _remove(destination, debris)
        _remove_empty(destination, [JOURNAL_FOLDER, _STAGING, *([] if set(files) - set(debris) else [""])])
    spilled = []
    for root in (spill_root(spill, destination.locate()), scratch_root(spill, destination)):
        spilled += [root.locate(name) for name in root.list()]
        if not dry_run:
            remove_spill(root)
    return [destination.locate(name) for name in debris] + spilled


def _files_of(dataset: Dataset) -> list[str]:
    """All but `dataset.json`."""
    shards = (path for shard in dataset.shards for path in (shard.path, shard.index_path))
    return [dataset.manifest.shards_path, *shards, *dataset.manifest.files]


def _was_built_in(files: Iterable[str]) -> bool:
    """Whether a build left its mark: else files with names like ours are another program's."""
    marks = (LEASE_NAME, f"{JOURNAL_FOLDER}/", f"{_STAGING}/", "_building.takeover-")
    return any(name.startswith(marks) for name in files)


def _remove(storage: Storage, names: Iterable[str]) -> None:
    if storage.local_path is not None:  # nothing to wait for, side by side
        for name in names:
            storage.remove(name)
        return
    with ThreadPoolExecutor(_REMOVERS) as pool:
        list(pool.map(storage.remove, names))


def _remove_empty(storage: Storage, folders: Iterable[str]) -> None:
    """Remove folders that hold no file, as far as the store has folders."""
    with suppress(RingfeedError):
        for folder in folders:
            storage.prune(folder)


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
