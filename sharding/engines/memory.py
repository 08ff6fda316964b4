"""Divides the memory of a build among its tasks: how many run in parallel, and how much each may hold.

Pure arithmetic on estimates. The memory of a task does not depend on the size of the dataset: it holds blocks, batches
of the source, and the records of one bucket, which has at least one shard.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.errors import ConfigError

BLOCK_BYTES = 32 << 20  # read, encoded and written at a time
_BLOCK_COPIES = 6  # of a block, at worst: drafts, records, messages, frames, compressed and sent data
_PROCESS_BYTES = 110 << 20  # of a process with Arrow and its allocator's reserve; 75 to 95 MiB before any data
_BATCH_COPIES = 8  # of a source's batch: decoded, conformed, tagged, sorted, and the next one
_RUN_COPIES = 3  # of the records that a partition task collects before it writes: batches, joined, sorted
_RUN_BYTES = 128 << 20  # larger runs do not make writes faster
_LEAST_RUN_BYTES = 4 << 20
_BUCKET_BYTES = 128 << 20  # of small shards that are assembled together
# For each class: its value and counts as Python objects, in arrays, and in the text of `dataset.json`. For a million
# classes the command held 225 to 325 MB besides its counts, and a worker about 60 (int64 and 12 letters, 2026-11-21).
_CLASS_BYTES = 260
_LABEL_COPIES = 5  # of the bytes of a class's value
_ENTRY_BYTES = 17  # per class of a part: its number, twice while sorting, and its number of records
_CLASS_TASK_BYTES = 32  # per class, for the counts of a shard
_CLASS_SPLIT_BYTES = 20  # per class and split: its number of records, and their start
_CLASS_PART_BYTES = 60  # per class of the part that a task reads, for a hash table
TASKS_PER_WORKER = 4  # pending per worker: enough to keep each busy


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBytes:
    """Estimated mean size of a record."""

    stored: float  # bytes on storage
    draft: float  # bytes in memory while it is spilled and assembled, without the columns that are read last
    whole: float  # bytes in memory when it is complete

    @property
    def in_bucket(self) -> float:
        """Bytes in memory in a bucket: mapped from the spill file, copied, and its place, row and index entry."""
        return 2 * (self.draft + 12) + 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBytes:
    """Estimated memory for the classes of the label, which is small unless there are very many."""

    command: int  # bytes that the command holds as long as it runs
    task: int  # bytes that each task holds

    @classmethod
    def of(cls, *, classes: int, label_bytes: float, splits: int, entries: int, in_part: int) -> ClassBytes:
        """Estimate the bytes from the number of classes.

        Args:
            label_bytes: mean bytes of a class's value.
            entries: sum of the classes of each part.
            in_part: most classes in any part.
        """
        return cls(
            command=int(classes * (_CLASS_BYTES + _LABEL_COPIES * label_bytes) + entries * _ENTRY_BYTES),
            task=int(classes * (_CLASS_TASK_BYTES + splits * _CLASS_SPLIT_BYTES) + in_part * _CLASS_PART_BYTES),
        )


NO_CLASSES = ClassBytes(command=0, task=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """The memory budget of a build's processes."""

    budget: int  # bytes for all processes together
    workers: int  # number of processes; a single one is the command itself, with two tasks at a time
    per_task: bool = False  # whether the budget is for each task of a cluster
    classes: ClassBytes = NO_CLASSES  # memory for the classes of the label

    @property
    def max_pending(self) -> int:
        """How many tasks to submit ahead of their results, where memory sets no limit."""
        return TASKS_PER_WORKER * self.workers

    @property
    def _processes_bytes(self) -> int:
        command = 0 if self.per_task else self.classes.command
        return command + _PROCESS_BYTES * (1 if self.workers == 1 else self.workers + 1)

    @property
    def _task_bytes(self) -> float:
        """Bytes for the data of one task, with as many as can running."""
        tasks = 1 if self.per_task else max(self.workers, 2)
        return max(0, (self.budget - self._processes_bytes) / tasks - self.classes.task)

    @property
    def run_bytes(self) -> int:
        """Bytes that a partition task may collect before it writes."""
        fitting = int((self._task_bytes - _BATCH_COPIES * BATCH_BYTES) / _RUN_COPIES)
        return max(_LEAST_RUN_BYTES, min(_RUN_BYTES, fitting))

    def bucket_records(self, record: RecordBytes, block_rows: int) -> int:
        """Target number of records in the shards that are assembled together; a single shard may exceed it."""
        most = _BUCKET_BYTES / max(record.draft, record.stored, 1)
        return int(max(1, min(most, (self._task_bytes - _block_need(record, block_rows)) / record.in_bucket)))

    def partition_tasks(self) -> int:
        """How many partition tasks to submit ahead of their results; a ConfigError if not even one fits the budget."""
        need = _BATCH_COPIES * BATCH_BYTES + _RUN_COPIES * self.run_bytes
        return self._tasks(need, "reading the source")

    def assemble_tasks(self, record: RecordBytes, bucket_records: int, block_rows: int) -> int:
        """How many assembling tasks to submit ahead of their results.

        Args:
            bucket_records: most records that are assembled together.
            block_rows: records that are completed, encoded and written at a time.

        Raises:
            ConfigError: not even one fits into the budget.
        """
        block = _block_need(record, min(block_rows, bucket_records))
        need = bucket_records * record.in_bucket + block
        return self._tasks(need, "assembling a shard", "smaller shards")

    def check_record(self, record_bytes: int, what: str) -> None:
        """Refuse a record that does not fit into the budget (a ConfigError)."""
        record = RecordBytes(stored=record_bytes, draft=record_bytes, whole=record_bytes)
        self._tasks(record.in_bucket + _block_need(record, 1), what)

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
