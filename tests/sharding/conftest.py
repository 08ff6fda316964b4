"""Sources, datasets and folders for tests of sharding."""

import csv
import re
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings

from ringfeed.sharding import Dataset
from ringfeed.sharding.sources.files import inflation
from tests.helpers.builds import SPLITS, built, make_table, newer_table

settings.register_profile(  # the cores are shared, so that times mean nothing
    "ringfeed", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ringfeed")


@pytest.fixture
def table() -> pa.Table:
    """600 records of every type, with a label of three unequal classes and a unique `id`."""
    return make_table(600)


@pytest.fixture(scope="session")
def _original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `parquet` and `dataset` copy."""
    folder = tmp_path_factory.mktemp("original")
    pq.write_table(make_table(600), folder / "source.parquet", row_group_size=100)
    built(str(folder / "source.parquet"), folder / "out", label="label", splits=SPLITS, shards=7)
    return folder


@pytest.fixture
def parquet(_original: Path, tmp_path: Path) -> str:
    """The table as a Parquet file of several row groups."""
    return shutil.copy2(_original / "source.parquet", str(tmp_path))


@pytest.fixture
def write_csv(tmp_path: Path) -> Callable[..., str]:
    """Write rows to a CSV file; returns its path."""

    def write(*rows: list[Any], name: str = "source.csv") -> str:
        with (tmp_path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
        return str(tmp_path / name)

    return write


@pytest.fixture
def spill_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for spill files of this test and of the commands that it starts."""
    get_temp_dir()  # created now, as it outlives the test: multiprocessing keeps its sockets there
    folder = tmp_path / "t"  # the shorter its path, the more likely it leaves room for that of a socket
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


@pytest.fixture
def temporary_folder(spill_folder: Path) -> Iterator[Path]:
    """The spill folder, in which no file may be left."""
    yield spill_folder
    assert not [path for path in spill_folder.rglob("*") if path.is_file() and not is_trial(path)]


@pytest.fixture
def empty_folder(temporary_folder: Path) -> Iterator[None]:
    """Checks that not even a folder is left in the spill folder, where repairs rebuild shards."""
    yield
    assert [path for path in temporary_folder.iterdir() if not is_trial(path)] == []


def is_trial(path: Path) -> bool:
    """Whether Python wrote a file to try the folder (`tempfile.gettempdir`): a kill at that moment leaves it."""
    is_named_at_random = re.fullmatch("[a-z0-9_]{8}", path.name) is not None
    return is_named_at_random and path.is_file() and path.read_bytes() in (b"", b"blat")


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[Path]:
    """A destination whose parent folder exists neither before nor after the test."""
    destination = tmp_path / "new" / "dataset"
    yield destination
    assert not destination.parent.exists()


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """The records to append, with the columns in another order."""
    path = tmp_path / "newer.parquet"
    pq.write_table(newer_table().select(["label", "id", "vector", "small", "price", "flag"]), path, row_group_size=100)
    return str(path)


@pytest.fixture
def dataset(_original: Path, parquet: str, tmp_path: Path) -> Path:
    """600 records in eight shards, built from a file like `parquet`, to append to."""
    return Path(shutil.copytree(_original / "out", tmp_path / "out"))


@pytest.fixture
def root(pristine: Dataset, tmp_path: Path) -> Path:
    """A copy of the dataset that the tests of a module share."""
    return Path(shutil.copytree(pristine.storage.locate(), tmp_path / "copy"))


@pytest.fixture
def _exact_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limit the memory of this process, and let Arrow give back each large buffer, so that what it takes is counted."""
    monkeypatch.setattr(inflation, "shares_process", lambda: False)  # the tests' process holds TensorFlow
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    yield
    pa.set_memory_pool(usual)
