"""The programs of examples/, as a user runs them."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import append, build, open_dataset, read_records
from tests.helpers import feature_tables
from tests.helpers.kinds import plain, write_kinds

ROOT = Path(__file__).resolve().parent.parent


def test_weights_are_split_over_four_devices_of_jax(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    points = rng.uniform(-1, 1, (2000, 2)).astype(np.float32)
    rows = {"x": points[:, 0], "y": points[:, 1], "inside": (np.square(points).sum(axis=1) < 0.5).astype(np.int64)}
    build(source=pa.table(rows), destination=str(tmp_path / "data"), label="inside")
    command = [
        sys.executable,
        str(ROOT / "examples/model_parallel_jax.py"),
        str(tmp_path / "data"),
        "--batch-size",
        "64",
    ]
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    *epochs, where = done.stdout.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in epochs]
    assert losses[-1] < 0.6 * losses[0]
    assert where == "the hidden kernel, (2, 256), is on 4 devices, (2, 64) on each"


READER = ROOT / "examples/read_without_ringfeed.py"
KINDS: dict[str, dict[str, Any]] = {
    "every kind": {"shards": 3, "split": {"train": "0.75", "test": "0.25"}, "label": "label"},
    "compressed": {"shards": 2, "compression": "gzip"},
    "one layout": {"shards": 2, "label": "label"},
}


@pytest.fixture(scope="module")
def reader() -> Callable[[Path], Any]:
    found: Callable[[Path], Any] = runpy.run_path(str(READER))["read"]
    return found


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset with columns of every kind, or with those that share one layout, and a second generation."""
    if request.param == "one layout":
        pq.write_table(feature_tables.make_table(), tmp_path / "table.parquet")
    else:
        write_kinds(tmp_path / "table.parquet")
    table = str(tmp_path / "table.parquet")
    build(source=table, destination=str(tmp_path / "data"), **KINDS[request.param])
    append(source=table, destination=str(tmp_path / "data"), shards=2, again=True)
    return tmp_path / "data"


@pytest.mark.parametrize("stored", KINDS, indirect=True)
def test_a_dataset_is_read_without_ringfeed(reader: Callable[[Path], Any], stored: Path) -> None:
    dataset = open_dataset(str(stored))
    found = [(split, {name: plain(value) for name, value in record.items()}) for split, record in reader(stored)]
    splits = dataset.manifest.splits
    written = [
        (split, {name: plain(value) for name, value in record.items()})
        for split in splits
        for record in read_records(dataset, split, dataset.manifest.records)
    ]
    assert len(dataset.manifest.generations) == 2
    assert sorted(map(repr, found)) == sorted(map(repr, written))
    assert [repr(record) for split, record in found if split == "train"] == [
        repr(record) for split, record in written if split == "train"
    ]


@pytest.mark.parametrize("stored", ["one layout"], indirect=True)
def test_a_loader_delivers_what_is_read_without_ringfeed(reader: Callable[[Path], Any], stored: Path) -> None:
    records = [record for _, record in reader(stored)]
    (batch,) = Loader(str(stored), batch_size=len(records)).numpy_epoch(0)
    order = np.argsort([record["id"] for record in records], kind="stable")
    delivered = np.argsort(batch["id"], kind="stable")
    for name in records[0]:
        expected = np.stack([records[place][name] for place in order])
        assert expected.dtype == batch[name].dtype, name
        np.testing.assert_array_equal(batch[name][delivered], expected, name)


@pytest.mark.parametrize("stored", ["one layout"], indirect=True)
def test_any_damage_is_noticed_without_ringfeed(reader: Callable[[Path], Any], stored: Path) -> None:
    """In every file that counts for a reader; the indexes only help to find one record among many."""
    for path in [path for path in sorted(stored.rglob("*")) if path.is_file() and path.suffix != ".index"]:
        if path.name == "shards.table":  # of the generation before
            continue
        intact = path.read_bytes()
        for place in (0, len(intact) // 2, len(intact) - 1):
            path.write_bytes(intact[:place] + bytes([intact[place] ^ 4]) + intact[place + 1 :])
            with pytest.raises((ValueError, KeyError)):
                list(reader(stored))
        path.write_bytes(intact)
    next(stored.glob("train-*.tfrecord")).write_bytes(b"")
    with pytest.raises(ValueError, match="a record is missing"):
        list(reader(stored))


def test_the_reader_has_a_hundred_lines_and_needs_only_numpy() -> None:
    tree = ast.parse(READER.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported - {*sys.stdlib_module_names} == {"numpy"}
    told = [node for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    docstrings = {line for node in told for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = {number for number, line in enumerate(READER.read_text().splitlines(), 1) if line.split("#")[0].strip()}
    assert len(lines - docstrings) <= 100


def test_zero_bytes_at_the_end_of_values_are_read(reader: Callable[[Path], Any], tmp_path: Path) -> None:
    rows = [{"a": [b"x\0", b"\0\0"], "b": b"\0", "c": ["t\0", ""]}, {"a": [b"", b"z"], "b": b"", "c": ["", ""]}]
    schema = pa.schema({"a": pa.list_(pa.binary(), 2), "b": pa.binary(), "c": pa.list_(pa.string(), 2)})
    build(source=pa.Table.from_pylist(rows, schema), destination=str(tmp_path / "data"), shards=1)
    found = [{name: plain(value) for name, value in record.items()} for _, record in reader(tmp_path / "data")]
    expected = [{name: plain(value) for name, value in row.items()} for row in rows]
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
