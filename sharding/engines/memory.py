"""How the memory that a build may take is shared out: how many tasks run side by side, and how much each may hold.

Pure arithmetic on estimates. What a task holds does not depend on how much data there is: blocks, batches of the
source, and the records of one bucket, which is one shard at least.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..compute.batches import BATCH_BYTES
from ..errors import ConfigError

__all__ = ["BLOCK_BYTES", "NO_CLASSES", "TASKS_PER_WORKER", "ClassBytes", "MemoryShare", "RecordBytes"]

BLOCK_BYTES = 32 << 20  # read, encoded and written at a time
_BLOCK_COPIES = 6  # of a block, at the worst: drafts, records, messages, frames, what is compressed, what is sent
_PROCESS_BYTES = 110 << 20  # of one that has loaded Arrow, with what its allocator keeps; 75 to 95 MiB before any data
_BATCH_COPIES = 8  # of a batch of a source: as it is decoded, conformed, tagged and put in order; and the next, read
_RUN_COPIES = 3  # of what a partition task gathers before it writes: batches, joined, in order
_RUN_BYTES = 128 << 20  # more in a run makes no write larger than it need be
_LEAST_RUN_BYTES = 4 << 20
_BUCKET_BYTES = 128 << 20  # of shards assembled together, if they are small
# For each class: its value and counts as Python's numbers, in arrays, and in the text of `dataset.json`. Of a million
# classes the command held 225 to 325 MB beside its counts, and a worker some 60 (int64 and 12 letters, 2026-11-21).
_CLASS_BYTES = 260
_LABEL_COPIES = 5  # of the bytes of a class' value
_ENTRY_BYTES = 17  # of a class in a part: its number and how many records it has; the number twice as they are sorted
_CLASS_TASK_BYTES = 32  # of each class, as a shard's records are counted
_CLASS_SPLIT_BYTES = 20  # of each class and split: how many records it has, and where they begin
_CLASS_PART_BYTES = 60  # of each class in the part that a task reads; they are looked up by hash
TASKS_PER_WORKER = 4  # tasks submitted and not ended, per worker: enough to keep each busy


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBytes:
    """Estimated mean size of a record.

    Attributes:
        stored: on storage, as it will be written.
        draft: in memory, as it is spilled and gathered: without what is read only when it is completed.
        whole: in memory, complete.
    """

    stored: float
    draft: float
    whole: float

    @property
    def gathered(self) -> float:
        """In memory, in a bucket: mapped from the spill, copied, and its place, row and entry in the index."""
        return 2 * (self.draft + 12) + 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBytes:
    """What is held of the classes, which is little unless there are very many.

    Attributes:
        command: by the command, as long as it runs.
        task: by each task.
    """

    command: int
    task: int

    @classmethod
    def of(cls, *, classes: int, label_bytes: float, splits: int, entries: int, in_part: int) -> ClassBytes:
        """Reckoned from how many there are.

        Args:
            classes: of the dataset.
            label_bytes: of the value of one, on average.
            splits: of the dataset.
            entries: classes of a part, over all parts.
            in_part: the most classes that a part has.
        """
        return cls(
            command=int(classes * (_CLASS_BYTES + _LABEL_COPIES * label_bytes) + entries * _ENTRY_BYTES),
            task=int(classes * (_CLASS_TASK_BYTES + splits * _CLASS_SPLIT_BYTES) + in_part * _CLASS_PART_BYTES),
        )


NO_CLASSES = ClassBytes(command=0, task=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """What the processes of a build may hold together.

    Attributes:
        budget: in bytes.
        workers: processes; one works in the command's own, on two tasks at a time.
        per_task: it is meant for each task of a cluster.
        classes: what is held of them.
    """

    budget: int
    workers: int
    per_task: bool = False
    classes: ClassBytes = NO_CLASSES

    @property
    def max_pending(self) -> int:
        """Tasks to have submitted and not ended, where memory sets no limit."""
        return TASKS_PER_WORKER * self.workers

    @property
    def _processes_bytes(self) -> int:
        command = 0 if self.per_task else self.classes.command
        return command + _PROCESS_BYTES * (1 if self.workers == 1 else self.workers + 1)

    @property
    def _each(self) -> float:
        """For the data of one task, if as many run as can."""
        tasks = 1 if self.per_task else max(self.workers, 2)
        return max(0, (self.budget - self._processes_bytes) / tasks - self.classes.task)

    @property
    def run_bytes(self) -> int:
        """What a partition task may gather before it writes."""
        fitting = int((self._each - _BATCH_COPIES * BATCH_BYTES) / _RUN_COPIES)
        return max(_LEAST_RUN_BYTES, min(_RUN_BYTES, fitting))

    def bucket_records(self, record: RecordBytes, block_rows: int) -> int:
        """How many records the shards that are assembled together should have, if one shard does not have more."""
        most = _BUCKET_BYTES / max(record.draft, record.stored, 1)
        return int(max(1, min(most, (self._each - _block_need(record, block_rows)) / record.gathered)))

    def partition_tasks(self) -> int:
        """How many tasks that partition to have submitted at a time.

        Raises:
            ConfigError: not even one fits.
        """
        need = _BATCH_COPIES * BATCH_BYTES + _RUN_COPIES * self.run_bytes
        return self._tasks(need, "reading the source")

    def assemble_tasks(self, record: RecordBytes, bucket_records: int, block_rows: int) -> int:
        """How many tasks that assemble to have submitted at a time.

        Args:
            record: its size.
            bucket_records: the most that are assembled together.
            block_rows: of which so many are completed, encoded and written at a time.

        Raises:
            ConfigError: not even one fits.
        """
        block = _block_need(record, min(block_rows, bucket_records))
        need = bucket_records * record.gathered + block
        return self._tasks(need, "assembling a shard", "smaller shards")

    def _tasks(self, data: float, what: str, *remedies: str) -> int:
        need = data + self.classes.task
        fitting = int((self.budget - self._processes_bytes) / need)
        if fitting < 1:
            needed = (self._processes_bytes + need) / (1 << 20)
            with_workers = "" if self.per_task else f" with {self.workers} worker{'s' * (self.workers > 1)}"
            each = " each task of a cluster" * self.per_task
            ask = " or ".join([*remedies, *([] if self.per_task else ["fewer --workers"])])
            of_classes = (self.classes.task + (0 if self.per_task else self.classes.command)) / (1 << 20)
            if of_classes > needed / 4:
                with_workers += f", {of_classes:,.0f} MiB of it for the classes of the label"
            raise ConfigError(
                f"{what} needs about {needed:,.0f} MiB of memory{with_workers}, and --memory allows{each} "
                f"{self.budget >> 20:,} MiB; allow more{f', or ask for {ask}' if ask else ''}"
            )
        return fitting if fitting < max(self.workers, 2) else self.max_pending


def _block_need(record: RecordBytes, block_rows: int) -> float:
    return _BLOCK_COPIES * block_rows * max(record.stored, record.whole)
