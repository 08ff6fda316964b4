"""The division of memory: the demanded memory suffices, and too little is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.sharding.engines.memory import ClassBytes, MemoryShare, RecordBytes
from ringfeed.sharding.errors import ConfigError

MIB = 1 << 20
RECORD = RecordBytes(stored=170.0, draft=136.0, whole=136.0)


def test_with_enough_memory_workers_are_kept_busy() -> None:
    share = MemoryShare(budget=4096 * MIB, workers=4)
    assert share.partition_tasks() == share.assemble_tasks(RECORD, 200_000, 1 << 16) == share.max_pending == 16


def test_with_less_memory_fewer_tasks_run_in_parallel() -> None:
    share = MemoryShare(budget=1024 * MIB, workers=4)
    assert share.assemble_tasks(RECORD, 700_000, 1 << 16) == 1
    assert share.assemble_tasks(RECORD, 200_000, 1 << 16) == 3


def test_the_error_for_too_little_memory_says_how_much_is_needed() -> None:
    share = MemoryShare(budget=512 * MIB, workers=2)
    expected = "assembling a shard needs about .* MiB of memory with 2 workers, and --memory allows 512 MiB; allow more"
    with pytest.raises(ConfigError, match=expected):
        share.assemble_tasks(RECORD, 1_000_000, 1 << 16)
    with pytest.raises(ConfigError, match=r"reading the source needs about .* MiB of memory with 1 worker, and"):
        MemoryShare(budget=128 * MIB, workers=1).partition_tasks()


@given(
    st.integers(64, 1 << 16), st.integers(1, 64), st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(1, 1e6)
)
def test_a_bucket_always_fits_into_the_memory_of_a_task(
    budget_mib: int, workers: int, stored: int, draft: int, block_rows: int
) -> None:
    share = MemoryShare(budget=budget_mib * MIB, workers=workers)
    record = RecordBytes(stored=stored, draft=draft, whole=draft)
    records = share.bucket_records(record, block_rows)
    assert records >= 1
    if records > 1:
        assert share.assemble_tasks(record, records, block_rows) == share.max_pending


@pytest.mark.parametrize(("budget_mib", "run_mib"), [(64, 4), (512, 4), (1024, 73), (8192, 128)])
def test_a_run_fits_into_the_memory_of_a_task(budget_mib: int, run_mib: int) -> None:
    assert MemoryShare(budget=budget_mib * MIB, workers=2).run_bytes // MIB == run_mib


def test_a_million_classes_count_and_ten_do_not() -> None:
    def share(classes: int) -> MemoryShare:
        held = ClassBytes.of(classes=classes, label_bytes=8, splits=2, entries=4 * classes, in_part=classes)
        return MemoryShare(budget=1024 * MIB, workers=2, classes=held)

    plain = MemoryShare(budget=1024 * MIB, workers=2)
    assert 0 <= plain.run_bytes - share(10).run_bytes < MIB // 64
    assert share(1_000_000).bucket_records(RECORD, 1 << 16) < plain.bucket_records(RECORD, 1 << 16)
    with pytest.raises(ConfigError, match=r"with 2 workers, .* MiB of it for the classes of the label, and"):
        share(3_000_000).partition_tasks()
