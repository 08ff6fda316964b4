"""Data files that installed packages ship: each is built as an independent reader reads it, or refused in a line.

The short version takes the files of pyarrow and scikit-learn; the campaign takes those of every installed package.
"""

import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import RingfeedError, open_dataset, read_records
from ringfeed.tools.shard_dataset.program import main

PACKAGES = Path(sysconfig.get_paths()["purelib"])
READERS: dict[str, Callable[[Path], pa.Table]] = {
    ".parquet": lambda path: pq.ParquetFile(path).read(),
    ".orc": lambda path: pa.orc.ORCFile(str(path)).read(),
    ".feather": lambda path: pa.feather.read_table(path),
}
ENDINGS = (*READERS, ".csv", ".csv.gz", ".tsv", ".jsonl", ".npy", ".npz", ".h5", ".arrow", ".bmp", ".gif", ".png")
MOST_BYTES = 20 << 20


def files(*packages: str) -> Iterator[Path]:
    for package in packages or ("",):
        for path in sorted((PACKAGES / package).rglob("*")):
            if path.is_file() and path.name.endswith(ENDINGS) and path.stat().st_size <= MOST_BYTES:
                yield path


def flat(value: Any) -> Any:
    return list(map(flat, value)) if isinstance(value, list) else value


def check(path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Build from a file; return ``built`` or ``refused``.

    Raises:
        AssertionError: a value differs from the independent reader's, or the refusal is no line.
    """
    flags = ["--min-class-records", "1", "--workers", "1", "--shards", "1", "-q"]
    source = str(path.parent if path.suffix in (".bmp", ".gif", ".png") else path)
    status = main(["build", source, str(folder), *flags])
    errors = [line for line in capsys.readouterr().err.splitlines() if "warning" not in line]
    if status:
        assert status == 1
        assert len(errors) == 1, errors
        assert errors[0].startswith("shard-dataset: error: ")
        assert not folder.exists()
        return "refused"
    dataset = open_dataset(str(folder))
    split = next(iter(dataset.manifest.splits))
    reader = READERS.get(path.suffix)
    if reader is not None:
        expected, found = reader(path), list(read_records(dataset, split, dataset.manifest.records))
        assert len(found) == expected.num_rows
        for name in set(expected.column_names) & set(dataset.manifest.schema.names):
            column = expected.column(name)
            if pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_boolean(column.type):
                assert sorted(map(repr, column.to_pylist())) == sorted(repr(row[name]) for row in found), name
    return "built"


def search(paths: Iterator[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    seen = {"built": 0, "refused": 0}
    done: set[Path] = set()
    for number, path in enumerate(paths):
        place = path.parent if path.suffix in (".bmp", ".gif", ".png") else path
        if place not in done:
            done.add(place)
            try:
                seen[check(path, tmp_path / str(number), capsys)] += 1
            except (RingfeedError, AssertionError) as error:
                raise AssertionError(f"{path}: {error}") from error
    return seen


def test_files_that_pyarrow_and_scikit_learn_ship(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(files("pyarrow/tests/data", "sklearn/datasets/data"), tmp_path, capsys)["built"] > 0


@pytest.mark.campaign
def test_files_that_any_package_ships(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = search(files(), tmp_path, capsys)
    print(seen)
    assert seen["built"] > 20
