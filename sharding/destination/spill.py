"""Spill files: one Arrow IPC file per partition task, whose records the assembling tasks turn into shards.

The spill folder is on this machine, or on any store that all workers reach. A file gets its name once it is whole, so
tasks may run twice, even at the same time; a note beside it describes its contents. A resumed build uses the files of
the killed one unless the machine has restarted since: local files are not synced.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from ringfeed.sharding.compute.arrays import Bools, Int64
from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import RingfeedError, StorageError
from ringfeed.sharding.storage.atomic_files import draft_name, draft_target
from ringfeed.sharding.storage.lease import Holder, boot_id
from ringfeed.sharding.storage.private_folders import check_private, make_private_folder
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.temporary_folder import is_of_living, name_of_process
from ringfeed.sharding.url_secrets import public_url

from .leftovers import abort_uploads, remove_empty_folders, remove_files

_REMEDY = "choose a spill folder that only you can write to with --spill"
_SCRATCH = "_repair"  # appended to the destination's URL for another key; there is no such folder
_SIDE = "side"  # folders of processes without a lease; see `name_of_process`


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpill:
    """The result of a partition task."""

    buckets: Int64  # bucket of each record batch in the part's file, int64 [batches]
    records: int  # number of records in the part
    int_ranges: Mapping[str, tuple[int, int]]  # least and greatest value, int64, of each integer feature of fixed shape
    has_nulls: bool  # whether a value is missing, or may be among those that are read later
    left_out: Int64  # buckets that the file omits because their shards are finished, int64 [left out]

    def encode(self) -> bytes:
        """The bytes of the note."""
        value = {"records": self.records, "int_ranges": self.int_ranges, "has_nulls": self.has_nulls}
        return json.dumps(value | {"buckets": self.buckets.tolist(), "left_out": self.left_out.tolist()}).encode()

    @classmethod
    def decode(cls, data: bytes) -> PartSpill:
        """The inverse of `encode`."""
        value: dict[str, Any] = json.loads(data)
        ranges = {name: (low, high) for name, (low, high) in value["int_ranges"].items()}
        buckets, left_out = (np.array(value[name], np.int64) for name in ("buckets", "left_out"))
        return cls(
            buckets=buckets,
            records=value["records"],
            int_ranges=ranges,
            has_nulls=value["has_nulls"],
            left_out=left_out,
        )


@dataclass(frozen=True, slots=True)
class Spill:
    """The spill folder of one plan."""

    storage: Storage

    @contextmanager
    def create(self, part: int) -> Iterator[IO[bytes]]:
        """Open the file of a part for writing."""
        if self.storage.local_path is None:
            with self.storage.open_output(_file(part)) as sink:
                yield sink
            return
        target = self.storage.local_path / _file(part)
        draft = target.with_name(draft_name(target.name))
        try:
            with self.storage.errors("write", _file(part)), self._errors_of_removal(part):
                target.parent.mkdir(mode=0o700, exist_ok=True)
                file = pa.OSFile(str(draft), "wb")
            with file, self._errors_of_writes(part):
                yield file
            with self._errors_of_removal(part):
                os.replace(draft, target)
        except BaseException:
            with suppress(OSError):  # the original error matters
                draft.unlink()
            raise

    @contextmanager
    def _errors_of_writes(self, part: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, RingfeedError):
                raise
            with self.storage.errors("write", _file(part)):
                raise

    def finish(self, part: int, result: PartSpill) -> None:
        """Write the note that the file of a part is whole."""
        self.storage.write(f"{part:06d}.json", result.encode(), durable=False)

    def finished(self, wanted: Bools) -> dict[int, PartSpill]:
        """Return the parts whose files hold all wanted records, and remove the notes of the others."""
        names = set(self.storage.list())
        parts = {}
        for note in sorted(name for name in names if name.endswith(".json")):
            number, part = int(note.removesuffix(".json")), PartSpill.decode(self.storage.read(note))
            if _file(number) in names and not wanted[part.left_out].any():
                parts[number] = part
            else:
                self.storage.remove(note)  # its file is gone or incomplete, and is written again
        return parts

    @contextmanager
    def open(self, part: int) -> Iterator[pa.RecordBatchFileReader]:
        """Open the record batches of a part, memory-mapped where they are local.

        Raises:
            StorageError: the file was removed, or cannot be read.
        """
        with ExitStack() as stack:
            with self._errors_of_removal(part):
                if self.storage.local_path is not None:
                    with self.storage.errors("read", _file(part)):
                        file = stack.enter_context(pa.memory_map(str(self.storage.local_path / _file(part))))
                else:
                    file = stack.enter_context(self.storage.open_input(_file(part)))
            yield pa.ipc.open_file(file)

    @contextmanager
    def _errors_of_removal(self, part: int) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            where = self.storage.locate(_file(part))
            raise StorageError(f"{where} was removed while it was needed; leave the folder alone") from error


def _file(part: int) -> str:
    return f"{part:06d}.arrow"


def spill_lease_entry(url: str | None) -> dict[str, str]:
    """The entry of a lease file that leads `clean` to the spill folder; none if its URL holds secrets."""
    return {} if url is None or public_url(url) != url else {"spill": Storage(url).address()}


def spill_root(url: str | None, destination: str) -> Storage:
    """Return the folder of all spill files for a destination.

    Args:
        url: spill folder chosen by the user; None for this machine's folder for temporary files.

    Raises:
        DestinationError: the folder is a link, belongs to another user, or is open to others.
    """
    key = f"{derive_key(Storage(destination).address()):016x}"
    if url is not None:
        root = Storage(url).folder(f"ringfeed-spill-{key}")
    else:
        root = Storage(f"{tempfile.gettempdir()}/ringfeed-spill-{os.getuid()}-{key}")
    _check(root)
    return root


def scratch_root(url: str | None, destination: Storage) -> Storage:
    """Return the folder for the shards that a repair rebuilds from the source; no build spills there.

    It is for the holder of the dataset's lease; `planning_folder` is for other processes.
    """
    return spill_root(url, destination.address(_SCRATCH))


def planning_folder(url: str | None, destination: Storage) -> AbstractContextManager[Storage]:
    """A temporary folder of its own for a repair that is planned, and holds no lease yet."""
    return side_folder(spill_root(url, destination.address()))


def open_spill(root: Storage, plan: str, scratch: Storage | None = None) -> Spill:
    """Open the spill folder of a plan; files of the same plan stay if this machine has not restarted since.

    Args:
        scratch: folder from `open_scratch` to keep.
    """
    name = f"{plan}-{derive_key(boot_id() if root.local_path else ''):016x}"
    make_spill_folder(root)
    kept = tuple(f"{folder}/" for folder in (name, "" if scratch is None else scratch.url.rpartition("/")[2]))
    for path in spilled_files(root):
        if not path.startswith(kept) or draft_target(path):
            root.remove(path)
    return Spill(root.folder(name))


def open_scratch(root: Storage) -> Storage:
    """Open a new folder beside the spill files, for planning."""
    scratch = root.folder(f"scratch-{secrets.token_hex(8)}")
    make_spill_folder(scratch)
    return scratch


@contextmanager
def side_folder(root: Storage) -> Iterator[Storage]:
    """Yield a folder for a process without a lease, which others on its machine leave alone while it lives.

    It is removed after the body, and so is a root that was created for it. Side folders that killed processes of this
    machine left are removed first, and their root after the body.
    """
    absent = root.absent_folders()
    make_spill_folder(root)
    if dead := _remove_dead_side_folders(root):
        absent = absent or dead
    folder = root.folder(name_of_process(_SIDE))
    make_spill_folder(folder)
    try:
        yield folder
    except BaseException as error:
        remove_spill_on_error(error, folder, absent)
        raise
    with suppress(RingfeedError):  # if the store is gone, the next write says so
        remove_spill(folder, absent)


def _remove_dead_side_folders(root: Storage) -> tuple[str, ...]:
    """Remove them, and return the path of the root if there were any."""

    def is_dead(path: str) -> bool:
        return is_of_living(path.partition("/")[0], _SIDE) is False

    files, folders = list(filter(is_dead, root.list())), list(filter(is_dead, root.folders()))
    remove_files(root, files)
    abort_uploads(root, is_dead)
    remove_empty_folders(root, folders)
    return (root.filesystem()[1],) if folders else ()


def spilled_files(root: Storage) -> list[str]:
    """The files below a folder of `spill_root`, without side folders in use."""
    return [path for path in root.list() if _is_removable(path)]


def spilled_uploads(root: Storage) -> list[str]:
    """The URLs of unfinished uploads there."""
    return abort_uploads(root, _is_removable, dry_run=True)


def _is_removable(path: str) -> bool:
    return not is_of_living(path.partition("/")[0], _SIDE)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def make_spill_folder(root: Storage) -> None:
    """Create a folder of spill files on this machine, for this user alone."""
    if root.local_path is not None:
        with root.errors("write", ""):
            make_private_folder(root.local_path, _REMEDY)


def _check(root: Storage) -> None:
    if root.local_path is not None:
        check_private(root.local_path, _REMEDY)


def remove_spill(root: Storage, absent: Sequence[str] = ()) -> None:
    """Remove the spill files of all builds for a destination; side folders in use stay.

    Args:
        absent: folders that did not exist before the build (`Storage.absent_folders`); removed if they are empty.
    """
    _check(root)
    if root.local_path is not None:
        folders = {folder: is_of_living(folder.name, _SIDE) for folder in _listed(root.local_path)}
        for folder in [f for f, used in folders.items() if not used] if any(folders.values()) else [root.local_path]:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        remove_files(root, spilled_files(root))
        abort_uploads(root, _is_removable)
        root.prune("")
    if absent:
        root.remove_folders(absent)


def remove_spill_on_error(error: BaseException, root: Storage, absent: Sequence[str] = ()) -> None:
    """`remove_spill` after an error, whose report matters more than a failure to remove.

    After an error of the store or an interrupt each removal is tried once, so that the program ends soon.
    """
    if isinstance(error, StorageError) or not isinstance(error, Exception):
        root = replace(root, retries=RetryPolicy(attempts=1))
    with suppress(RingfeedError):
        remove_spill(root, absent)


def remove_abandoned_spill(holder: Holder | None, destination: str, root: Storage) -> None:
    """Remove the spill files of an unfinished build or append that is resumed with another spill folder."""
    if holder is None or holder.task not in ("build", "append"):
        return
    url = holder.about.get("spill")
    if url is not None or holder.is_local:  # else it lies in another machine's folder for temporary files
        with suppress(RingfeedError):  # the store is away, and the files are in nobody's way
            other = spill_root(url, destination)
            if other.address() != root.address():
                remove_spill(other)
