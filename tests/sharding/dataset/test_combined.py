"""One manifest for several datasets says of them what that of a dataset of all their records would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.dataset.combined import combined_manifest
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError


def _table(records: int, seed: int, labels: list[str]) -> pa.Table:
    rng = np.random.default_rng(seed)
    code = pa.array(rng.integers(seed, 40, records), mask=np.arange(records) % 7 == 0)
    columns = {"x": rng.normal(seed, 2, records), "code": code, "name": rng.choice(["a", "b", f"own{seed}"], records)}
    return pa.table({**columns, "y": rng.choice(labels, records)})


def _manifest(folder: Path, name: str, table: pa.Table, label: str | None = "y") -> Manifest:
    pq.write_table(table, folder / f"{name}.parquet")
    built = str(folder / name)
    build(BuildOptions(source=str(folder / f"{name}.parquet"), destination=built, label=label, shards=1))
    return open_dataset(built).manifest


def test_records_classes_and_statistics_are_those_of_all_datasets(tmp_path: Path) -> None:
    tables = {"a": _table(60, 1, ["m", "p"]), "b": _table(90, 2, ["m", "n"])}
    manifests = {name: _manifest(tmp_path, name, table) for name, table in tables.items()}
    whole = _manifest(tmp_path, "whole", pa.concat_tables(tables.values())).split("train")
    combined = combined_manifest(manifests)
    assert combined == Manifest.decode(combined.encode(), "x")
    assert combined.classes == ("m", "p", "n")
    split = combined.split("train")
    assert split.records == 150
    assert dict(zip(combined.classes, split.class_counts, strict=True)) == dict(
        zip(("m", "n", "p"), whole.class_counts, strict=True)
    )
    for name, known in whole.statistics.items():
        got = split.statistics[name]
        assert (got.count, got.nulls, got.min, got.max, got.vocabulary) == (
            known.count, known.nulls, known.min, known.max, known.vocabulary,
        )  # fmt: skip
        if known.mean is not None:
            np.testing.assert_allclose([got.mean, got.std], [known.mean, known.std])
    assert combined_manifest({"a": manifests["a"]}).shards_checksum != combined.shards_checksum


def test_datasets_that_differ_are_refused_by_name(tmp_path: Path) -> None:
    own, other = _table(60, 1, ["m"]), _table(60, 2, ["m"])
    first = _manifest(tmp_path, "a", own)
    wrong = [
        (other.set_column(1, "cod", other["code"]), "y", "'a' has 'code' of int64.*, 'b' has 'cod' of int64"),
        (other.drop_columns("name"), "y", "'a' has 'name' of string.*, 'b' has 'y' of string"),
        (other, "name", "the same label: 'a' has 'y', 'b' has 'name'"),
    ]
    for number, (table, label, message) in enumerate(wrong):
        with pytest.raises(ConfigError, match=message):
            combined_manifest({"a": first, "b": _manifest(tmp_path, f"b{number}", table, label)})
