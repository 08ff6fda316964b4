"""The folder a dataset is built in: held by one builder, gone on with or cleared, committed last and at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from posixpath import normpath
from typing import Literal

from ..dataset.dataset import Dataset, open_dataset
from ..dataset.file_names import GENERATION_FILES, TABLE_NAMES, folder_of, table_name
from ..dataset.manifest import MANIFEST_NAME, Manifest
from ..dataset.recovery import recover_dataset
from ..dataset.tfds_files import tfds_paths
from ..errors import CorruptionError, DatasetError, DestinationError, RingfeedError, StorageError
from ..messages import counted, some_of
from ..storage.fenced_storage import fence_storage
from ..storage.lease import LEASE_NAME, Lease, hold_lease, is_lease_draft
from ..storage.retry import RetryPolicy
from ..storage.storage import Storage
from .journal import JOURNAL_FOLDER, ShardResult, count_recorded, read_journal
from .leftovers import (
    STAGING,
    abort_uploads,
    dataset_files,
    is_build_draft,
    is_build_file,
    parent_folders,
    remove_empty_folders,
    remove_files,
)

__all__ = ["DatasetDraft", "Purpose", "check_disjoint", "check_spill_outside", "check_undamaged", "draft_dataset"]

Purpose = Literal["new", "replace", "append"]


class DatasetDraft:
    """A dataset, or a generation of one, that is being built.

    Attributes:
        destination: where it will be.
        storage: where its shards are written: the same, or a folder within if another dataset is to be replaced.
        lease: held on the destination.
        base: the dataset that is appended to, as it was when the lease was taken; None in a build.
        finished: shards that an earlier build or this one has written.
        total: shards in all; 0 until that is known.
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
        self._own = fence_storage(storage, lease)  # both, for what changes them
        self._there = fence_storage(destination, lease)

    @property
    def resume_hint(self) -> str:
        """What to tell who is left with unfinished work."""
        done = ("shard", "is/are")
        finished = some_of(self.finished, self.total, *done) if self.total else counted(self.finished, *done)
        return (
            f"{finished} finished: start the same command again to go on "
            f"with the rest, or remove them with: shard-dataset clean {self.destination.locate()}"
        )

    @staticmethod
    def may_resume(error: BaseException) -> bool:
        """Whether the same build, started again, may succeed with no change to its source or options."""
        if isinstance(error, RingfeedError):
            return error.may_pass
        return isinstance(error, (KeyboardInterrupt, SystemExit, OSError))

    def keeps_work(self, error: BaseException) -> bool:
        """Whether there is finished work, of this build or of one before it, to be gone on with after an error."""
        if self._begun:
            return self.finished > 0 and self.may_resume(error)
        return self.lease.previous is not None and (self.base is not None or self._holds_work())

    def _holds_work(self) -> bool:
        """Whether builds before this one left finished shards, and no dataset; so too if the store does not tell."""
        try:
            names = self.storage.list()
        except RingfeedError:
            return True
        return MANIFEST_NAME not in names and any(name.startswith(f"{JOURNAL_FOLDER}/") for name in names)

    def find_committed(self, fingerprint: str) -> Manifest | None:
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
        """What an earlier build of the same plan finished.

        Args:
            fingerprint: of the plan.

        Returns:
            Results by the number of the shard.
        """
        self._fingerprint = fingerprint
        finished = read_journal(self.storage, fingerprint, self.storage.sizes())
        self.finished = len(finished)
        return finished

    def begin(self, finished: Mapping[int, ShardResult]) -> None:
        """Remove all that earlier builds left, but for what `resume` has found; now nothing but writing can fail."""
        self.lease.record_plan(self._fingerprint)
        self._begun = True
        names = self.storage.list()
        keep = {LEASE_NAME, *(name for name in names if name.startswith(f"{JOURNAL_FOLDER}/{self._fingerprint}/"))}
        for result in finished.values():
            keep |= result.all_files.keys()
        self._remove_own(set(names) - keep)

    @contextmanager
    def checking_lease(self) -> Iterator[None]:
        """Of what fails for the destination is gone, or another has it and has removed what was spilled, say so.

        Raises:
            DestinationError: it is, or it was taken over.
        """
        try:
            yield
        except StorageError:
            with suppress(StorageError):  # the store is away, as the error says
                self.lease.check_once()
            raise

    def recount(self) -> None:
        """Count the shards again that are finished: tasks may have noted some while an error was on its way.

        Of a build that has not begun to write, those of the one before it, unless that is known to be another.
        """
        plan = self._fingerprint
        if not self._begun:
            before = "" if self.lease.previous is None else self.lease.previous.plan
            plan = before if plan in ("", before) and self._holds_work() else ""
        if plan:
            with suppress(RingfeedError):  # the store is gone, and what was reported must do
                self.finished = max(self.finished, count_recorded(self.storage, plan))

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write files that lie beside the shards."""
        self._own.write_all(files)

    def commit(self, manifest: Manifest, shards: bytes) -> None:
        """Make a dataset of it, at once: nothing before the last write opens as one.

        A dataset that is replaced is removed first; between that and the last write none is there. One that is
        appended to is there all the time: a reader sees it as it was, or as it is to be.

        Raises:
            DestinationError: another build was faster.
        """
        self.lease.check()  # before the table, too: that of who took over may be there
        self._own.write(manifest.shards_path, shards)
        self.lease.check()
        if self.base is not None:
            self._take_in(self.base, manifest)
            return
        if self.storage != self.destination:
            self._replace()
        self.destination.sync()
        try:
            self._committing = True
            self._there.create(MANIFEST_NAME, manifest.encode())
        except FileExistsError as error:
            self._committing = False
            where = self.destination.locate()
            raise DestinationError(f"{where} was filled by another build in the meantime") from error
        self.destination.sync()

    def _take_in(self, base: Dataset, manifest: Manifest) -> None:
        """Put a manifest in the place of that of the dataset which is appended to."""
        self.destination.folder(folder_of(self._generation)).sync()
        self.destination.sync()
        once = replace(self.destination, retries=RetryPolicy(attempts=1))

        def attempt() -> None:
            self.lease.check()
            there = self._manifest_there()
            if there not in (base.manifest, manifest):  # the new one, where a reply was lost
                where = self.destination.locate()
                raise DestinationError(f"{where} was changed by another program in the meantime; append again")
            self._committing = True
            once.write(MANIFEST_NAME, manifest.encode())

        self.destination.run("write", MANIFEST_NAME, attempt)
        self.destination.sync()

    def _manifest_there(self) -> Manifest:
        return Manifest.decode(self.destination.read(MANIFEST_NAME), self.destination.locate(MANIFEST_NAME))

    @property
    def _generation(self) -> int:
        return 0 if self.base is None else len(self.base.manifest.all_generations)

    def _remove_own(self, names: Iterable[str]) -> None:
        """Remove those of the files that this build may have written, or one before it that did not end."""
        own = list(names)
        if self.base is not None:
            table = table_name(self._generation)
            begins = (folder_of(self._generation), f"{JOURNAL_FOLDER}/", ".")
            own = [name for name in own if is_build_file(name) and (name == table or name.startswith(begins))]
            remove_files(self._own, [name for name in own if name == table])  # before the shards that it tells of
        remove_files(self._own, own)

    def _replace(self) -> None:
        self.lease.check()
        names = self.destination.list()
        old = [n for n in names if GENERATION_FILES.fullmatch(n) and is_build_file(n)]
        old += [name for name in names if name.startswith(f"{JOURNAL_FOLDER}/")]  # of an append that did not end
        with suppress(RingfeedError):  # it was damaged: that may be why it is being replaced
            old = [*{*old, *dataset_files(open_dataset(self.destination))}]
        self._there.remove(MANIFEST_NAME)
        remove_files(self._there, old)
        remove_empty_folders(self._there, [JOURNAL_FOLDER, *parent_folders(old)])
        for name in self.storage.list():
            if not name.startswith(JOURNAL_FOLDER) and not is_build_draft(name):
                self._there.move(f"{STAGING}/{name}", name)

    def tidy(self) -> None:
        """Remove what only the build needed, and what an append has made untrue."""
        debris: tuple[str, ...] = (f"{JOURNAL_FOLDER}/",)
        if self.base is not None:
            remove_files(self._there, self._untrue(self.base.manifest))
        else:  # it may have gone on with one that was killed over its renames or later, and that replaced or did not
            debris += (f"{STAGING}/",)
        names = self.destination.list()
        remove_files(self._there, [name for name in names if name.startswith(debris) or is_build_draft(name)])
        remove_empty_folders(self._there, [JOURNAL_FOLDER, STAGING])
        abort_uploads(self._there)

    def _untrue(self, base: Manifest) -> Iterator[str]:
        """The files that told other programs of the dataset as it was before the append."""
        now = self._manifest_there()
        old = tfds_paths(now) if now == base else base.files  # the same: one that was killed had committed it
        yield from (name for name in old if name not in now.files)

    def discard(self) -> None:
        """Remove what was written; a dataset that was to be replaced stays, if it is still whole."""
        self.lease.check()
        abort_uploads(self._there)
        names = self.destination.list()
        if self.base is not None:
            if self._committing and self._manifest_there() != self.base.manifest:
                return  # its write failed, but was done all the same
            if self._begun:  # else what lies there is of another append, which may be gone on with
                self._remove_own(names)
            remove_empty_folders(self._there, [JOURNAL_FOLDER, folder_of(self._generation)])
            return
        if self._committing:
            self._there.remove(MANIFEST_NAME)  # its write failed, but it may have been done all the same
            names = [name for name in names if name != MANIFEST_NAME]
        if MANIFEST_NAME in names:
            names = [name for name in names if name.startswith(f"{STAGING}/")]
        remove_files(self._there, [name for name in names if is_build_file(name) and name != LEASE_NAME])
        remove_empty_folders(self._there, [JOURNAL_FOLDER, STAGING])


@contextmanager
def draft_dataset(destination: Storage, purpose: Purpose, about: Mapping[str, str]) -> Iterator[DatasetDraft]:
    """A place to build a dataset in, or a generation of one.

    If the body fails for a reason that may pass (an interrupt, a store that refuses), finished shards are kept, for
    the same build to go on with; if it fails for another, or none is finished, nothing of it is left.

    Args:
        destination: where the dataset is to be.
        purpose: ``replace`` one that is there, or ``append`` to it. It stays as it was if the body fails before
            `DatasetDraft.commit`.
        about: kept in the folder while it is being built, for whoever finds it.

    Raises:
        DestinationError: something is in the way, or another build is at work there.
        DatasetError: there is no dataset to append to.
        StorageError: the store refuses.
    """
    replacing = _check(destination, purpose)
    absent = destination.absent_folders()
    storage = destination.folder(STAGING) if replacing else destination
    with hold_lease(destination, about) as lease:
        draft = DatasetDraft(destination, storage, lease)
        try:
            if purpose == "append":
                draft.base = open_dataset(destination)
            yield draft
            with suppress(RingfeedError):  # it is committed: what is left behind does no harm, an error would mislead
                draft.tidy()
        except BaseException as error:
            keep = draft.keeps_work(error)
            with suppress(RingfeedError):  # the store is gone; the error that brought us here says so
                if not keep:
                    draft.discard()
                lease.release(keep=keep)
                destination.remove_folders(absent)
            raise
        lease.release(keep=False)


def _check(destination: Storage, purpose: Purpose) -> bool:
    """Whether there is a dataset to replace.

    Raises:
        DestinationError: says what is in the way.
        DatasetError: there is no dataset to append to.
    """
    if purpose == "append":
        open_dataset(destination)
        destination.check_writable()
        return False
    destination.check_writable()
    files = [name for name in destination.list() if not is_lease_draft(name)]
    if MANIFEST_NAME in files:
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
    """Refuse a folder without `dataset.json` that holds a dataset all the same: it can be made again from the table.

    Raises:
        DestinationError: it does.
    """
    if MANIFEST_NAME in files or not any(map(TABLE_NAMES.fullmatch, files)):
        return
    with suppress(DatasetError, CorruptionError):
        recover_dataset(destination, 1)
        where = destination.locate()
        raise DestinationError(
            f"{where} holds a dataset whose {MANIFEST_NAME} is missing; repair it first: shard-dataset repair {where}"
        )


def _taken(destination: Storage) -> str:
    return (
        f"{destination.locate()} already holds a dataset; choose another folder, replace it with --overwrite, or add "
        "to it with: shard-dataset append"
    )


def check_disjoint(source: str, destination: str) -> None:
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


def check_spill_outside(spill: str | None, destination: str) -> None:
    """Refuse to spill into the destination: a build removes all that is no shard of its own before it writes there.

    Raises:
        DestinationError: it would.
    """
    if spill is None:
        return
    folder, root = (normpath(Storage(url).locate()) for url in (spill, destination))
    if folder == root or folder.startswith(root + "/"):
        raise DestinationError(f"--spill {spill} lies inside the destination {destination}; choose another folder")
