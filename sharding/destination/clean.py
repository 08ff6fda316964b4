"""Removes what killed builds, appends, repairs and exports left, and nothing that belongs to a dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.file_names import OWN_FOLDER, TABLE_NAMES, generation_of, is_later_file
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.own_folder import listed_names
from ringfeed.sharding.errors import StorageError
from ringfeed.sharding.storage.fenced_storage import fence_storage
from ringfeed.sharding.storage.lease import (
    LEASE_NAME,
    TAKEOVER_PREFIX,
    Holder,
    check_not_held,
    hold_lease,
    is_lease_draft,
    read_holder,
)
from ringfeed.sharding.storage.storage import Storage, StorageLike, as_storage
from ringfeed.sharding.storage.urls import validate_url

from .atomic_folder import remove_killed_export
from .dataset_draft import check_undamaged
from .journal import JOURNAL_FOLDER
from .leftovers import (
    STAGING,
    abort_uploads,
    check_no_links,
    dataset_files,
    is_build_file,
    parent_folders,
    remove_empty_folders,
    remove_files,
)
from .spill import remove_spill, scratch_root, spill_lease_entry, spill_root, spilled_files, spilled_uploads


def clean(destination: StorageLike, *, spill: str | os.PathLike[str] | None = None, dry_run: bool = False) -> list[str]:
    """Remove what killed builds and exports left at a destination, and their spill files; datasets stay whole.

    A folder without files that is left then goes, too.

    Args:
        destination: folder with or without a dataset.
        spill: their spill folder; None for the one that the last lease file names.
        dry_run: remove nothing.

    Returns:
        The URLs of the removed files and uploads.

    Raises:
        DestinationError: another process writes there, or the dataset there has lost its `dataset.json`.
        CorruptionError: the dataset there is damaged, so that its files cannot be told from leftovers.

    >>> clean("flights")
    []
    """
    destination, spill = as_storage(destination), None if spill is None else validate_url(spill, "spill")
    check_no_links(destination)
    exported = remove_killed_export(destination, dry_run=dry_run)
    holder = read_holder(destination)
    if spill is None and holder is not None:
        spill = holder.about.get("spill")
    roots = (spill_root(spill, destination.address()), scratch_root(spill, destination))
    if dry_run:
        check_not_held(destination, read_holder(destination))
    files = destination.list()
    debris, _ = _debris(destination, files)
    if not dry_run and not files:  # a clean may have been killed after it gave its lease up
        remove_empty_folders(destination, [""])
    if dry_run or not (debris or _spilled(roots, dry_run=True)):
        spilled = _spilled(roots, dry_run=True)
        uploads = abort_uploads(destination, dry_run=True) if _was_built_in(files) else []
        return _named(exported, destination, debris, uploads + spilled)
    with _held(destination, {**spill_lease_entry(spill), **_after(holder)}) as (marked, own):
        files = destination.list()  # again: leftovers may have become part of a dataset
        names = [name for name in files if marked or name != LEASE_NAME]
        debris, begun = _debris(destination, names)
        uploads = abort_uploads(own) if _was_built_in(names) else []
        spilled = _spilled(roots, dry_run=False)  # before the lease file, which names the spill folder
        remove_files(own, [name for name in debris if name != LEASE_NAME])
    folders = [JOURNAL_FOLDER, STAGING, OWN_FOLDER, *parent_folders(debris), *begun]
    remove_empty_folders(destination, [*folders, *([] if set(files) - {*debris, LEASE_NAME} else [""])])
    return _named(exported, destination, debris, uploads + spilled)


def _named(exported: Iterable[str], destination: Storage, debris: Iterable[str], others: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*exported, *map(destination.locate, debris), *others]))  # without duplicates


def _spilled(roots: Iterable[Storage], *, dry_run: bool) -> list[str]:
    """Remove spill files and uploads, and return their URLs."""
    spilled = []
    for root in roots:
        spilled += [root.locate(name) for name in spilled_files(root)] + spilled_uploads(root)
        if not dry_run:
            remove_spill(root)
    return spilled


def _after(holder: Holder | None) -> dict[str, str]:
    """The task that a clean removes the leftovers of, for its lease file: those of a build are no damaged dataset."""
    return {} if holder is None else {"after": holder.unfinished_task}


@contextmanager
def _held(destination: Storage, about: Mapping[str, str]) -> Iterator[tuple[bool, Storage]]:
    """Hold the lease for the body; yield whether there was a lease file before, and a storage fenced by the lease.

    On a full disk the lease file cannot be written, but then nobody else can start to write either.

    Raises:
        DestinationError: another process writes there.
        StorageError: the lease file cannot be removed.
    """
    with ExitStack() as stack:
        try:
            lease = stack.enter_context(hold_lease(destination, {"task": "clean", **about}))
        except StorageError:
            check_not_held(destination, read_holder(destination))
            yield True, destination
            destination.remove(LEASE_NAME)
            return
        try:
            yield lease.previous is not None, fence_storage(destination, lease)
        except BaseException:
            lease.release(keep=False)
            raise
        if refused := lease.release(keep=False):
            raise refused


def _debris(destination: Storage, files: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files that builds left and no dataset uses, and the folder of the next append, which may be empty."""
    check_undamaged(destination, files)
    known: set[str] = set()
    manifest = None
    if listed_names(files):
        dataset = open_dataset(destination)
        known, manifest = set(dataset_files(dataset)), dataset.manifest
    debris = [name for name in files if is_build_file(name) and name not in known] if _was_built_in(files) else []
    begun = "" if manifest is None else manifest.names.folder(len(manifest.all_generations))
    return debris + sorted(set(_of_other_generations(manifest, files)) - set(debris)), [begun] if begun else []


def _of_other_generations(manifest: Manifest | None, files: Iterable[str]) -> Iterator[str]:
    """Files of an unfinished append, and old tables, which only readers that opened them before an append need."""
    last = len(manifest.all_generations) - 1 if manifest is not None else 0
    for name in files:
        if manifest is None or not is_later_file(name) or not is_build_file(name):
            continue
        generation = generation_of(name)
        if generation > last or (generation < last and TABLE_NAMES.fullmatch(name)):
            yield name


def _was_built_in(files: Iterable[str]) -> bool:
    """Whether a build or an append worked here; otherwise files with such names are another program's."""
    marks = (LEASE_NAME, f"{JOURNAL_FOLDER}/", f"{STAGING}/", TAKEOVER_PREFIX)
    return any(name.startswith(marks) or is_lease_draft(name) for name in files)
