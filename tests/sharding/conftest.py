"""Sources of many kinds, and what is in them."""

import csv
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

from ringfeed.sharding import BuildOptions, Dataset, Progress, build, open_dataset
from ringfeed.sharding.storage import Storage

SPLITS = {"train": Fraction(9, 10), "test": Fraction(1, 10)}
OLD, NEW = 600, 500  # records of a dataset, and of what is appended to it

settings.register_profile(  # the cores are shared: times mean nothing
    "ringfeed", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ringfeed")


@pytest.fixture
def table() -> pa.Table:
    """600 records of every type, with a label of three unequal classes and a unique `id`."""
    return make_table(600)


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


@pytest.fixture
def parquet(tmp_path: Path, table: pa.Table) -> str:
    """The table as a Parquet file of several row groups."""
    path = tmp_path / "source.parquet"
    pq.write_table(table, path, row_group_size=100)
    return str(path)


@pytest.fixture
def write_csv(tmp_path: Path) -> Callable[..., str]:
    """Write rows to a CSV file; returns its path."""

    def write(*rows: list[Any], name: str = "source.csv") -> str:
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        return str(tmp_path / name)

    return write


def built(source: str, destination: str | Path, **options: Any) -> Dataset:
    """Build in this process and open what was built."""
    build(BuildOptions(source=source, destination=str(destination), **options))
    return open_dataset(str(destination))


@pytest.fixture
def files_of() -> Callable[[Path], dict[str, bytes]]:
    """All files of a folder and their contents."""

    def read(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    return read


@pytest.fixture
def spill_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test, and the commands that it starts, spill."""
    get_temp_dir()  # of this process's sockets: whoever needs it first makes it, and it stays
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def temporary_folder(spill_folder: Path) -> Iterator[Path]:
    """The same; no file may be left there."""
    yield spill_folder
    assert not [path for path in spill_folder.rglob("*") if path.is_file()]


@pytest.fixture
def empty_folder(temporary_folder: Path) -> Iterator[None]:
    """Where repairs of this test make shards; not even a folder may be left there."""
    yield
    assert list(temporary_folder.iterdir()) == []


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[Path]:
    """A destination that does not exist, nor the folder it lies in, before the test and after."""
    destination = tmp_path / "new" / "dataset"
    yield destination
    assert not destination.parent.exists()


class Killed(BaseException):
    """Nothing that is done after it has an effect on the store."""


def ends_in_writes(work: Callable[[], object], root: Path, writes: int) -> bool:
    """Whether some work on a dataset ends with so many writes to it; it is killed at the next one."""
    write, steps = Storage.write, 0

    def writing(storage: Storage, path: str, data: Any, **how: Any) -> None:
        nonlocal steps
        steps += storage.locate() == str(root)
        if steps > writes:
            raise Killed
        write(storage, path, data, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ringfeed.sharding.lease._BEAT_SECONDS", 600)  # which is a write, too
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


def interrupted(options: BuildOptions, shards: int) -> None:
    """Build until so many shards are written."""
    with pytest.raises(KeyboardInterrupt):
        build(options, report=interrupt_after(shards, KeyboardInterrupt()))


def newer_table(rows: int = NEW, first: int = OLD) -> pa.Table:
    """Records with numbers from `first` on, of which those of class c are of a new class."""
    table = make_table(rows)
    labels = pa.array(["aa" if value == "c" else value for value in table["label"].to_pylist()])
    return table.set_column(0, "id", pa.array(np.arange(rows) + first)).set_column(5, "label", labels)


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """The records to append, with the columns in another order."""
    path = tmp_path / "newer.parquet"
    pq.write_table(newer_table().select(["label", "id", "vector", "small", "price", "flag"]), path, row_group_size=100)
    return str(path)


@pytest.fixture
def dataset(parquet: str, tmp_path: Path) -> Path:
    """600 records in eight shards, to append to."""
    built(parquet, tmp_path / "out", label="label", splits=SPLITS, shards=7)
    return tmp_path / "out"


@pytest.fixture
def root(pristine: Dataset, tmp_path: Path) -> Path:
    """A copy of the dataset that the tests of a module share."""
    return Path(shutil.copytree(pristine.storage.locate(), tmp_path / "copy"))
