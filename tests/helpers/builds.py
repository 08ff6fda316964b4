"""Tables to build from, and builds that run to their end or are interrupted."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.sharding import AppendOptions, BuildOptions, Dataset, Progress, append, build, open_dataset
from ringfeed.sharding.storage.storage import Storage

SPLITS = {"train": Fraction(9, 10), "test": Fraction(1, 10)}


OLD, NEW = 600, 500  # records of a dataset, and of what is appended to it


def make_table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(rows, 4)).astype(np.float32)
    return pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4),
            "small": pa.array(rng.integers(-100, 100, rows).astype(np.int8)),
            "price": pa.array(rng.normal(size=rows)),
            "flag": pa.array(rng.random(rows) < 0.5),
            "label": pa.array(rng.choice(["a", "b", "c"], rows, p=[0.7, 0.25, 0.05])),
        }
    )


def built(source: str, destination: str | Path, **options: Any) -> Dataset:
    """Build in this process and open what was built."""
    build(BuildOptions(source=source, destination=str(destination), **options))
    return open_dataset(str(destination))


@contextmanager
def rows_of_blocks(rows: int) -> Iterator[None]:
    """Shards in blocks, and row groups, of fewer records than builds and repairs otherwise write."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringfeed.sharding.building.build_plan._BLOCK_ROWS", rows)
        yield


def is_heartbeat() -> bool:
    """Whether the heartbeat of a lease writes, at a time of its own."""
    return threading.current_thread().name == "ringfeed-lease"


class Killed(BaseException):
    """Nothing that is done after it has an effect on the store."""


def ends_in_writes(work: Callable[[], object], root: Path, writes: int) -> bool:
    """Whether some work on a dataset ends with so many writes to it; it is killed at the next one."""
    write, steps = Storage.write, 0

    def writing(storage: Storage, path: str, data: Any, **how: Any) -> None:
        nonlocal steps
        steps += storage.locate() == str(root) and not is_heartbeat()
        if steps > writes:
            raise Killed
        write(storage, path, data, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "write", writing)
        try:
            work()
        except Killed:
            return False
    return True


def interrupt_after(shards: int, error: BaseException) -> Any:
    """What to report to, to be interrupted once so many shards are written."""

    def report(progress: Progress) -> None:
        if progress.stage == "write" and progress.done >= shards:
            raise error

    return report


def interrupted(options: BuildOptions | AppendOptions, shards: int) -> None:
    """Build or append until so many shards are written."""
    work: Any = append if isinstance(options, AppendOptions) else build
    with pytest.raises(KeyboardInterrupt):
        work(options, report=interrupt_after(shards, KeyboardInterrupt()))


def newer_table(rows: int = NEW, first: int = OLD) -> pa.Table:
    """Records with numbers from `first` on, of which those of class c are of a new class."""
    table = make_table(rows)
    labels = pa.array(["aa" if value == "c" else value for value in table["label"].to_pylist()])
    return table.set_column(0, "id", pa.array(np.arange(rows) + first)).set_column(5, "label", labels)
