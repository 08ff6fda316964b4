"""Where the partition tasks of a build leave records for the tasks that assemble shards: one Arrow IPC file a part.

A folder of this machine, or of any store that all workers reach. A file appears under its name when it is whole, so a
task may run twice, at the same time too; a note beside it says what is in it. A build that was killed and is started
again uses what is there, if the machine has not gone down in between: local files are not synced.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..compute.keyed_random import derive_key
from ..errors import DestinationError, RingfeedError, StorageError
from ..storage.atomic_files import draft_name, draft_target, make_folder
from ..storage.lease import Holder, boot_id, process_start_ticks
from ..storage.retry import RetryPolicy
from ..storage.storage import Storage, public_url
from .leftovers import abort_uploads

__all__ = [
    "PartSpill",
    "Spill",
    "open_scratch",
    "open_spill",
    "planning_folder",
    "remove_abandoned_spill",
    "remove_spill",
    "remove_spill_on_error",
    "scratch_root",
    "side_folder",
    "spill_lease_entry",
    "spill_root",
    "spilled_files",
    "spilled_uploads",
]  # fmt: skip

_SCRATCH = "_repair"  # no folder is there of this name: it makes another key of the destination's URL
_SIDE = re.compile(r"side-([0-9a-f]{16})-(\d+)-(\d+)-[0-9a-f]+")  # a folder of a process, of a machine since its boot
_REMOVERS = 16  # requests side by side, where a store removes one file at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSpill:
    """What a partition task left behind.

    Attributes:
        buckets: the bucket that each record batch of the part's file goes to, int64 [batches].
        records: in the part.
        int_ranges: least and greatest value, as int64, of each integer feature of fixed shape.
        has_nulls: whether any value is missing, or may be, for it is read only when a record is completed.
        left_out: buckets whose records are not in the file, for their shards were finished, int64 [left out].
    """

    buckets: npt.NDArray[np.int64]
    records: int
    int_ranges: Mapping[str, tuple[int, int]]
    has_nulls: bool
    left_out: npt.NDArray[np.int64]

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
        """The file of a part, to be written from its start."""
        if self.storage.local_path is None:
            with self.storage.open_output(_file(part)) as sink:
                yield sink
            return
        target = self.storage.local_path / _file(part)
        draft = target.with_name(draft_name(target.name))
        try:
            with self.storage.errors("write", _file(part)):
                make_folder(target.parent)
                file = pa.OSFile(str(draft), "wb")
            with file, self._errors_of_writes(part):
                yield file
            with self._errors_of_removal(part):
                os.replace(draft, target)
        except BaseException:
            with suppress(OSError):  # what made the write fail is what to tell
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
        """Note that the file of a part is whole."""
        self.storage.write(f"{part:06d}.json", result.encode(), durable=False)

    def finished(self, wanted: npt.NDArray[np.bool_]) -> dict[int, PartSpill]:
        """The parts whose files are there and hold all that is wanted of them. The notes of others are removed.

        Args:
            wanted: whether the records of each bucket are, bool [buckets].
        """
        names = set(self.storage.list())
        parts = {}
        for note in sorted(name for name in names if name.endswith(".json")):
            number, part = int(note.removesuffix(".json")), PartSpill.decode(self.storage.read(note))
            if _file(number) in names and not wanted[part.left_out].any():
                parts[number] = part
            else:
                self.storage.remove(note)  # of a file that is gone, or is to be written anew
        return parts

    @contextmanager
    def open(self, part: int) -> Iterator[pa.RecordBatchFileReader]:
        """The record batches of a part; mapped where they are local.

        Raises:
            StorageError: it is gone, among others.
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
    """What a mark at the destination says of the folder to spill to, for whoever cleans up; no password is told."""
    return {} if url is None or public_url(url) != url else {"spill": Storage(url).locate()}


def spill_root(url: str | None, destination: str) -> Storage:
    """The folder that holds the spill of all plans for a destination.

    Args:
        url: of the folder to spill to; None is this machine's folder for temporary files.
        destination: of the dataset.

    Raises:
        DestinationError: another user has a folder of this name there.
    """
    key = f"{derive_key(Storage(destination).locate()):016x}"
    if url is not None:
        return Storage(url).folder(f"ringfeed-spill-{key}")
    folder = Path(tempfile.gettempdir()) / f"ringfeed-spill-{os.getuid()}-{key}"
    if folder.exists() and folder.stat().st_uid != os.getuid():
        raise DestinationError(f"{folder} is another user's; choose a folder to spill to with --spill")
    return Storage(str(folder))


def scratch_root(url: str | None, destination: Storage) -> Storage:
    """The folder that holds what a repair of a dataset makes from its source; no build spills there.

    It is for the one that holds the lease of the dataset; see `planning_folder` for the others.
    """
    return spill_root(url, destination.locate(_SCRATCH))


def planning_folder(url: str | None, destination: Storage) -> AbstractContextManager[Storage]:
    """A folder until the body ends, for what a repair makes to plan with: of its own, for it holds no lease yet."""
    return side_folder(spill_root(url, destination.locate()))


def open_spill(root: Storage, plan: str, scratch: Storage | None = None) -> Spill:
    """The spill folder of one plan, made anew unless a build of the same plan left it since this machine started.

    Args:
        root: of all plans for a destination.
        plan: what tells it from others.
        scratch: a folder of `open_scratch` that stays.
    """
    name = f"{plan}-{derive_key(boot_id() if root.local_path else ''):016x}"
    _make(root)
    kept = tuple(f"{folder}/" for folder in (name, "" if scratch is None else scratch.url.rpartition("/")[2]))
    for path in spilled_files(root):
        if not path.startswith(kept) or draft_target(path):
            root.remove(path)
    return Spill(root.folder(name))


def open_scratch(root: Storage) -> Storage:
    """A new folder beside the spill, for what a plan is made of."""
    _make(root)
    return root.folder(f"scratch-{secrets.token_hex(8)}")


@contextmanager
def side_folder(root: Storage) -> Iterator[Storage]:
    """A folder beside the spill for a process that holds no lease; others on its machine let it be while it lives.

    It is gone when the body ends, and the root too if it was made for it.
    """
    absent = root.absent_folders()
    _make(root)
    process = f"{_machine()}-{os.getpid()}-{process_start_ticks(os.getpid())}"
    folder = root.folder(f"side-{process}-{secrets.token_hex(4)}")
    try:
        yield folder
    except BaseException as error:
        remove_spill_on_error(error, folder, absent)
        raise
    with suppress(RingfeedError):  # what is next to be written there says that the store is gone
        remove_spill(folder, absent)


def spilled_files(root: Storage) -> list[str]:
    """What lies in a folder of `spill_root`, but for side folders in use."""
    return [path for path in root.list() if _is_removable(path)]


def spilled_uploads(root: Storage) -> list[str]:
    """The URLs of what was begun to be uploaded there."""
    return abort_uploads(root, _is_removable, dry_run=True)


def _is_removable(path: str) -> bool:
    return not _is_in_use(path.partition("/")[0])


def _is_in_use(name: str) -> bool:
    found = _SIDE.fullmatch(name)
    return found is not None and found[1] == _machine() and found[3] == process_start_ticks(int(found[2]))


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _machine() -> str:
    return f"{derive_key(boot_id()):016x}"


def _make(root: Storage) -> None:
    if root.local_path is not None:
        with root.errors("write", ""):
            make_folder(root.local_path, mode=0o700)


def remove_spill(root: Storage, absent: Sequence[str] = ()) -> None:
    """Remove all that builds spilled for a destination; side folders in use stay.

    Args:
        root: of the spill.
        absent: folders that were not there before, see `Storage.absent_folders`; they go, too, where they are empty.
    """
    if root.local_path is not None:
        folders = {folder: _is_in_use(folder.name) for folder in _listed(root.local_path)}
        for folder in [f for f, used in folders.items() if not used] if any(folders.values()) else [root.local_path]:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        with ThreadPoolExecutor(_REMOVERS) as pool:
            list(pool.map(root.remove, spilled_files(root)))
        abort_uploads(root, _is_removable)
        root.prune("")
    if absent:
        root.remove_folders(absent)


def remove_spill_on_error(error: BaseException, root: Storage, absent: Sequence[str] = ()) -> None:
    """`remove_spill` as far as it can be done where an error has ended the work, for that is what to tell.

    A store may be away, which was waited for already, and an interrupted program is to end: it gets one attempt.
    """
    if isinstance(error, StorageError) or not isinstance(error, Exception):
        root = replace(root, retries=RetryPolicy(attempts=1))
    with suppress(RingfeedError):
        remove_spill(root, absent)


def remove_abandoned_spill(holder: Holder | None, destination: str, root: Storage) -> None:
    """Remove what a build or an append spilled that ended early, if it is gone on with elsewhere.

    Args:
        holder: of the destination, at that time; None if there was none.
        destination: of the dataset.
        root: where it is gone on with.
    """
    if holder is None or holder.task not in ("build", "append"):
        return
    url = holder.about.get("spill")
    if url is not None or holder.is_local:  # else it lies in another machine's folder for temporary files
        with suppress(RingfeedError):  # of a store that is away: it is in nobody's way
            other = spill_root(url, destination)
            if other.locate() != root.locate():
                remove_spill(other)
