"""The folder that a dataset is built in: one writer at a time, resumed or cleared, and committed by its last write.

Tested in tests/sharding/building/test_resume.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from posixpath import normpath
from typing import Literal

from ringfeed.sharding.dataset.dataset import Dataset, open_dataset
from ringfeed.sharding.dataset.file_names import (
    ALL_NAMES,
    MANIFEST_NAME,
    NAMES,
    OWN_FOLDER,
    TABLE_NAMES,
    FileNames,
    generation_of,
    is_later_file,
    names_of,
)
from ringfeed.sharding.dataset.manifest import Manifest, file_info
from ringfeed.sharding.dataset.own_folder import holds_dataset, is_own_folder, listed_names, sync_names
from ringfeed.sharding.dataset.recovery import recover_dataset
from ringfeed.sharding.dataset.tfds_files import tfds_files, tfds_paths
from ringfeed.sharding.errors import CorruptionError, DatasetError, DestinationError, RingfeedError, StorageError
from ringfeed.sharding.messages import counted, some_of
from ringfeed.sharding.storage.atomic_files import draft_target
from ringfeed.sharding.storage.fenced_storage import fence_storage
from ringfeed.sharding.storage.lease import LEASE_NAME, Lease, hold_lease, is_lease_draft
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage

from .journal import JOURNAL_FOLDER, ShardResult, count_recorded, read_journal
from .leftovers import (
    STAGING,
    abort_uploads,
    check_no_links,
    dataset_files,
    is_build_draft,
    is_build_file,
    parent_folders,
    remove_empty_folders,
    remove_files,
)

Purpose = Literal["new", "replace", "append"]


class DatasetDraft:
    """A dataset, or a generation of one, under construction.

    Attributes:
        destination: folder of the dataset.
        storage: folder of its shards until the commit: the destination, or one within if a dataset is replaced.
        lease: lease on the destination.
        base: the dataset that is appended to, as it was when the lease was taken; None in a build.
        finished: number of shards that this build or an earlier one has written.
        total: number of shards; 0 until it is known.
    """

    def __init__(self, destination: Storage, storage: Storage, lease: Lease) -> None:
        self.destination = destination
        self.storage = storage
        self.lease = lease
        self.base: Dataset | None = None
        self.finished = 0
        self._fingerprint = ""
        self.total = 0
        self._begun = False
        self._committing = False
        self._late_companions: dict[str, bytes] = {}
        self._own = fence_storage(storage, lease)
        self._there = fence_storage(destination, lease)

    @property
    def resume_hint(self) -> str:
        """How to resume or remove the unfinished work, for error messages."""
        done = ("shard", "is/are")
        finished = some_of(self.finished, self.total, *done) if self.total else counted(self.finished, *done)
        return (
            f"{finished} finished: start the same command again to go on "
            f"with the rest, or remove them with: shard-dataset clean {self.destination.locate()}"
        )

    @staticmethod
    def may_resume(error: BaseException) -> bool:
        """Whether the same build may succeed when it is started again with the same source and options."""
        if isinstance(error, RingfeedError):
            return error.may_pass
        return isinstance(error, (KeyboardInterrupt, SystemExit, OSError))

    def keeps_work(self, error: BaseException) -> bool:
        """Whether this build or an earlier one leaves finished work to resume after an error."""
        if self._begun:
            return self.finished > 0 and self.may_resume(error)
        return self.lease.previous is not None and (self.base is not None or self._holds_work())

    def _holds_work(self) -> bool:
        """Whether earlier builds left finished shards and no dataset; assumed where the store cannot be listed."""
        try:
            names = self.storage.list()
        except RingfeedError:
            return True
        return listed_names(names) is None and any(name.startswith(f"{JOURNAL_FOLDER}/") for name in names)

    def find_committed(self, fingerprint: str) -> Manifest | None:
        """Return the manifest if a build of the same plan was killed after its commit.

        Not where a dataset is replaced: the one that is there may be of the same plan, with records appended.

        Raises:
            DestinationError: another dataset is there and must not be replaced.
        """
        if self.storage != self.destination or not holds_dataset(self.destination):
            return None
        previous, manifest = self.lease.previous, open_dataset(self.destination).manifest
        if previous is not None and previous.task == "build" and manifest.plan == fingerprint:
            return manifest
        raise DestinationError(_taken(self.destination))  # it was committed between the check and the lease

    def resume(self, fingerprint: str) -> dict[int, ShardResult]:
        """Find the shards that an earlier build of the same plan finished.

        Returns:
            Results by shard number.
        """
        self._fingerprint = fingerprint
        recorded = read_journal(self.storage, fingerprint, self.storage.sizes())
        finished = {  # not those that another version of ringfeed wrote under other names
            number: result for number, result in recorded.items() if names_of(result.info.index_path) == self.names
        }
        self.finished = len(finished)
        return finished

    def begin(self, finished: Mapping[int, ShardResult]) -> None:
        """Record the plan and remove what earlier builds left, except for the shards that `resume` found."""
        self.lease.record_plan(self._fingerprint)
        self._begun = True
        names = self.storage.list()
        keep = {LEASE_NAME, *(name for name in names if name.startswith(f"{JOURNAL_FOLDER}/{self._fingerprint}/"))}
        for result in finished.values():
            keep |= result.all_files.keys()
        self._remove_own(set(names) - keep)

    @contextmanager
    def checking_lease(self) -> Iterator[None]:
        """Blame the lost lease, where the body fails because another process took over and removed the spill files.

        Raises:
            DestinationError: the destination was removed or taken over.
        """
        try:
            yield
        except StorageError:
            with suppress(StorageError):  # the store is away, as the original error says
                self.lease.check_once()
            raise

    def recount(self) -> None:
        """Count the finished shards again: tasks may have recorded some after the error occurred.

        A build that has not begun to write counts those of the build before it, unless that had another plan.
        """
        plan = self._fingerprint
        if not self._begun:
            before = "" if self.lease.previous is None else self.lease.previous.plan
            plan = before if plan in ("", before) and self._holds_work() else ""
        if plan:
            with suppress(RingfeedError):  # the store is gone: keep the last count
                self.finished = max(self.finished, count_recorded(self.storage, plan))

    @property
    def names(self) -> FileNames:
        """The names of the dataset's files."""
        return NAMES if self.base is None else self.base.manifest.names

    def write_companions(self, files: Mapping[str, bytes]) -> None:
        """Write companion files, but those that replace ones of the dataset appended to only after the commit."""
        old = {} if self.base is None else self.base.manifest.files
        self._late_companions |= {path: data for path, data in files.items() if path in old}
        self._own.write_all({path: data for path, data in files.items() if path not in old})

    def commit(self, manifest: Manifest, shards: bytes) -> None:
        """Commit the dataset: it can be opened once the last write, of the manifest, is done.

        A replaced dataset is removed first, so that for a moment there is none. An appended dataset is always there:
        readers see it before or after the append.

        Raises:
            DestinationError: another build was faster.
        """
        self.lease.check()  # before the table, too: a process that took over may have written its own
        self._own.write(manifest.shards_path, shards)
        self.lease.check()
        if self.base is not None:
            self._replace_manifest(self.base, manifest)
            return
        if self.storage != self.destination:
            self._replace_dataset()
        sync_names(self.destination, self.names)
        try:
            self._committing = True
            self._there.create(self.names.manifest, manifest.encode())
        except FileExistsError as error:
            self._committing = False
            where = self.destination.locate()
            raise DestinationError(f"{where} was filled by another build in the meantime") from error
        sync_names(self.destination, self.names)

    def _replace_manifest(self, base: Dataset, manifest: Manifest) -> None:
        """Replace the manifest of the dataset that is appended to."""
        sync_names(self.destination, self.names, self._generation)
        once = replace(self.destination, retries=RetryPolicy(attempts=1))

        def attempt() -> None:
            self.lease.check()
            if self._current_manifest() not in (base.manifest, manifest):  # it is the new one after a lost reply
                where = self.destination.locate()
                raise DestinationError(f"{where} was changed by another program in the meantime; append again")
            self._committing = True
            once.write(self.names.manifest, manifest.encode())

        self.destination.run("write", self.names.manifest, attempt)
        sync_names(self.destination, self.names)

    def _current_manifest(self) -> Manifest:
        path = self.names.manifest
        return Manifest.decode(self.destination.read(path), self.destination.locate(path))

    @property
    def _generation(self) -> int:
        return 0 if self.base is None else len(self.base.manifest.all_generations)

    def _remove_own(self, names: Iterable[str]) -> None:
        """Remove those of the files that this build, or an unfinished one before it, may have written."""
        own = list(names)
        if self.base is not None:
            table = self.names.table(self._generation)
            own = [name for name in own if is_build_file(name) and self._is_of_append(name)]
            remove_files(self._own, [name for name in own if name == table])  # before the shards that it lists
        remove_files(self._own, own)

    def _is_of_append(self, name: str) -> bool:
        """Whether a file is one of this append, or a draft of one that was killed."""
        shared = (".", f"{OWN_FOLDER}/.", f"{JOURNAL_FOLDER}/")
        return name.startswith(shared) or generation_of(draft_target(name) or name) == self._generation

    def _replace_dataset(self) -> None:
        self.lease.check()
        names = self.destination.list()
        old = [name for name in names if is_later_file(name) and is_build_file(name)]
        old += [name for name in names if name.startswith(f"{JOURNAL_FOLDER}/")]  # of an unfinished append
        with suppress(RingfeedError):  # it may be damaged, and replaced for that reason
            old = [*{*old, *dataset_files(open_dataset(self.destination))}]
        remove_files(self._there, [names.manifest for names in ALL_NAMES])
        remove_files(self._there, old)
        remove_empty_folders(self._there, [JOURNAL_FOLDER, *parent_folders(old)])
        for name in self.storage.list():
            if not name.startswith(JOURNAL_FOLDER) and not is_build_draft(name):
                self._there.move(f"{STAGING}/{name}", name)

    def tidy(self) -> None:
        """Remove what only the build needed, and files that an append has made obsolete."""
        debris: tuple[str, ...] = (f"{JOURNAL_FOLDER}/",)
        if self.base is not None:
            self._replace_companions(self.base)
            remove_files(self._there, self._obsolete(self.base.manifest))
        else:  # the resumed build may have been killed while it moved files out of there
            debris += (f"{STAGING}/",)
        names = self.destination.list()
        remove_files(self._there, [name for name in names if name.startswith(debris) or is_build_draft(name)])
        # A replaced dataset that was appended to has a folder for each generation.
        generations = [name for name in self._there.folders() if generation_of(f"{name}/")]
        remove_empty_folders(self._there, [JOURNAL_FOLDER, STAGING, *generations])
        abort_uploads(self._there)

    def _replace_companions(self, base: Dataset) -> None:
        """Write the companion files that replace those from before the append, also after a kill that followed it."""
        if base.manifest == self._current_manifest():
            files = tfds_files(base.manifest, base.shards)
            recorded = base.manifest.files
            self._late_companions = {
                path: data for path, data in files.items() if recorded.get(path) == file_info(data)
            }
        for path in sorted(self._late_companions, reverse=True):  # the features, which older records have too, first
            self._there.write(path, self._late_companions[path])

    def _obsolete(self, base: Manifest) -> Iterator[str]:
        """Files that describe the dataset before the append to other programs."""
        now = self._current_manifest()
        old = tfds_paths(now) if now == base else base.files  # equal after a kill that followed the commit
        yield from (name for name in old if name not in now.files)

    def discard(self) -> None:
        """Remove what was written; a dataset that was to be replaced stays if it is still whole."""
        self.lease.check()
        abort_uploads(self._there)
        names = self.destination.list()
        if self.base is not None:
            if self._committing and self._current_manifest() != self.base.manifest:
                return  # its write succeeded, although it reported a failure
            if self._begun:  # else what lies there is of another append, which may be resumed
                self._remove_own(names)
            remove_empty_folders(self._there, filter(None, [JOURNAL_FOLDER, self.names.folder(self._generation)]))
            return
        if self._committing:
            self._there.remove(self.names.manifest)  # its write may have succeeded, although it reported a failure
            names = [name for name in names if name != self.names.manifest]
        if listed_names(names):
            names = [name for name in names if name.startswith(f"{STAGING}/")]
        remove_files(self._there, [name for name in names if is_build_file(name) and name != LEASE_NAME])
        remove_empty_folders(self._there, [JOURNAL_FOLDER, STAGING, OWN_FOLDER])


@contextmanager
def draft_dataset(destination: Storage, purpose: Purpose, about: Mapping[str, str]) -> Iterator[DatasetDraft]:
    """Hold a folder to build a dataset in, or a generation of one.

    If the body fails for a transient reason (an interrupt, a store that refuses), finished shards are kept, and the
    same build resumes with them. If it fails for another reason, or no shard is finished, nothing remains.

    Args:
        purpose: ``new``, ``replace`` the dataset that is there, or ``append`` to it. That dataset stays unchanged if
            the body fails before `DatasetDraft.commit`.

    Raises:
        DestinationError: something is in the way, or another build is at work there.
        DatasetError: there is no dataset to append to.
    """
    replacing = check_destination(destination, purpose)
    absent = destination.absent_folders()
    storage = destination.folder(STAGING) if replacing else destination
    with hold_lease(destination, about) as lease:
        draft = DatasetDraft(destination, storage, lease)
        try:
            if purpose == "append":
                draft.base = open_dataset(destination)
            yield draft
            with suppress(RingfeedError):  # it is committed: leftovers do no harm, and an error would mislead
                draft.tidy()
        except BaseException as error:
            keep = draft.keeps_work(error)
            with suppress(RingfeedError):  # the store is gone, as the original error says
                if not keep:
                    draft.discard()
                lease.release(keep=keep)
                destination.remove_folders(absent)
            raise
        lease.release(keep=False)


def check_destination(destination: Storage, purpose: Purpose) -> bool:
    """Check a destination, and return whether there is a dataset to replace; see `draft_dataset`.

    Raises:
        DestinationError: something is in the way.
        DatasetError: there is no dataset to append to.
    """
    check_no_links(destination)
    if is_own_folder(destination):
        raise DestinationError(
            f"{destination.locate()} is a folder for ringfeed's own files of a dataset; choose another name"
        )
    if purpose == "append":
        open_dataset(destination)
        destination.check_writable()
        return False
    destination.check_writable()
    files = [name for name in destination.list() if not is_lease_draft(name)]
    if listed_names(files):
        if purpose == "new" and LEASE_NAME not in files:
            raise DestinationError(_taken(destination))
        return purpose == "replace"
    check_undamaged(destination, files)
    foreign = next((name for name in files if not is_build_file(name)), None)
    if foreign or (files and LEASE_NAME not in files):
        raise DestinationError(
            f"{destination.locate()} is not empty and holds no dataset (there is {foreign or files[0]!r}); "
            "choose an empty folder"
        )
    return False


def check_undamaged(destination: Storage, files: Sequence[str]) -> None:
    """Refuse a dataset without its `dataset.json`, which can be rebuilt from the shard table (a DestinationError)."""
    if listed_names(files) or not any(map(TABLE_NAMES.fullmatch, files)):
        return
    with suppress(DatasetError, CorruptionError):
        recover_dataset(destination, 1)
        where = destination.locate()
        raise DestinationError(
            f"{where} holds a dataset whose {MANIFEST_NAME} is missing; repair it first: shard-dataset repair {where}"
        )


def is_whole(dataset: Dataset) -> bool:
    """Whether all files that were written for a dataset are there, with their sizes."""
    files = dict(dataset.manifest.files)
    for shard in dataset.shards:
        files |= shard.files
    sizes = dataset.storage.sizes()
    return not dataset.manifest.lost and all(sizes.get(path) == file.bytes for path, file in files.items())


def _taken(destination: Storage) -> str:
    return (
        f"{destination.locate()} already holds a dataset; choose another folder, replace it with --overwrite, or add "
        "to it with: shard-dataset append"
    )


def check_disjoint(source: str, destination: str) -> None:
    """Refuse a destination that is its own source, lies in it, or contains it (a DestinationError)."""
    folder = source
    while any(letter in folder for letter in "*?["):  # the fixed part of a glob
        folder = folder.rpartition("/")[0]
    a, b = (normpath(Storage(url).address()) for url in (folder, destination))
    if a == b and folder == source:
        raise DestinationError(f"the destination {destination} is the source itself; choose another folder")
    if folder == source and b.startswith(a + "/"):
        raise DestinationError(f"the destination {destination} lies inside the source {source}; choose another folder")
    if a == b or a.startswith(b + "/"):
        raise DestinationError(f"the source {source} lies inside the destination {destination}; choose another folder")


def check_spill_outside(spill: str | None, destination: str) -> None:
    """Refuse a spill folder in the destination, where a build removes all other files first (a DestinationError)."""
    if spill is None:
        return
    folder, root = (normpath(Storage(url).address()) for url in (spill, destination))
    if folder == root or folder.startswith(root + "/"):
        raise DestinationError(f"--spill {spill} lies inside the destination {destination}; choose another folder")
