"""Classes with too few records: refused with a hint, dropped, or merged into one."""

from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    ConfigError,
    Original,
    SourceError,
    append,
    open_dataset,
    plan_build,
    read_records,
    repair,
)
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.progress import Progress
from tests.helpers.builds import SPLITS, built

THIRDS = {name: Fraction(1, 3) for name in ("train", "val", "test")}


def write(path: Path, labels: list[Any]) -> str:
    pq.write_table(pa.table({"id": pa.array(range(len(labels))), "y": pa.array(labels)}), path)
    return str(path)


def counts(dataset: Any) -> Counter[Any]:
    return Counter(row["y"] for split in dataset.manifest.splits for row in read_records(dataset, split, 1000))


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "a.parquet", ["a"] * 20 + ["b"] * 2 + ["c"] * 2 + ["d"])


@pytest.mark.parametrize(
    ("policy", "splits", "expected"),
    [
        ("drop", THIRDS, {"a": 20}),  # b and c have fewer records than splits
        ("drop", {"train": Fraction(1)}, {"a": 20, "b": 2, "c": 2}),
        ("merge:other", THIRDS, {"a": 20, "other": 5}),
        ("merge:a", SPLITS, {"a": 21, "b": 2, "c": 2}),
    ],
)
@pytest.mark.parametrize(("balance", "times_counted"), [("records", 1), ("bytes", 2)])
def test_rare_classes_are_dropped_or_merged(
    source: str,
    tmp_path: Path,
    policy: str,
    splits: dict[str, Fraction],
    expected: dict[str, int],
    balance: str,
    times_counted: int,
) -> None:
    how: Any = {"label": "y", "splits": splits, "rare_classes": policy, "balance": balance}
    dataset = built(source, tmp_path / "o", **how)
    assert counts(dataset) == expected
    assert dataset.manifest.classes == tuple(sorted(expected))
    seen: list[Progress] = []
    plan = plan_build(BuildOptions(source=source, destination=str(tmp_path / "p"), **how), report=seen.append)
    assert plan.classes == tuple(sorted(expected))
    assert plan.fingerprint == dataset.manifest.plan
    assert [(progress.stage, progress.done) for progress in seen].count(("count", 1)) == times_counted


def test_what_is_rare_is_said(source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    built(source, tmp_path / "o", label="y", splits=THIRDS, rare_classes="drop")
    assert caplog.messages == ["3 classes with fewer than 3 records, 5 records in all, dropped: 'b', 'c', 'd'"]


def test_duplicates_do_not_count(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3, 4, 4], "y": ["a", "a", "a", "b", "b"]}), tmp_path / "a.parquet")
    how: Any = {"label": "y", "prepare": PrepareOptions(dedup=()), "rare_classes": "drop"}
    assert counts(built(str(tmp_path / "a.parquet"), tmp_path / "o", **how)) == {"a": 3}


def test_a_repair_and_an_append_treat_the_classes_alike(source: str, tmp_path: Path) -> None:
    destination = str(tmp_path / "o")
    dataset = built(
        source, destination, label="y", splits=SPLITS, shards=1, rare_classes="merge:other", min_class_records=3
    )
    shard = tmp_path / "o" / dataset.shards[0].path
    whole = shard.read_bytes()
    shard.unlink()
    repair(destination, originals=[Original(url=source)])
    assert shard.read_bytes() == whole
    more = write(tmp_path / "b.parquet", ["b"] * 4 + ["e"])
    with pytest.raises(SourceError, match=r"class 'e' has 1 record, .*--rare-classes drop, or merge"):
        append(AppendOptions(source=more, destination=destination))
    append(AppendOptions(source=more, destination=destination, rare_classes="merge:other"))
    assert counts(open_dataset(destination)) == {"a": 20, "other": 5 + 5}


def test_impossible_policies_are_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be error, drop or merge:NAME, got 'merge:'"):
        BuildOptions(source=source, destination="o", rare_classes="merge:")
    with pytest.raises(ConfigError, match="needs classes; name their column with --label"):
        built(source, tmp_path / "o", rare_classes="drop")
    numbers = write(tmp_path / "n.parquet", [1, 1, 1, 2])
    with pytest.raises(ConfigError, match="merge:other: the labels are int64, and 'other' is none"):
        built(numbers, tmp_path / "o", label="y", rare_classes="merge:other")
    assert counts(built(numbers, tmp_path / "o", label="y", rare_classes="merge:1")) == {1: 4}


def test_a_merged_class_that_stays_rare_is_refused_with_a_way_out(source: str, tmp_path: Path) -> None:
    """The advice of the error is followed, and the build succeeds."""
    how: Any = {"label": "y", "min_class_records": 9}
    with pytest.raises(SourceError, match=r"merge:other: the merged class has 5 records, fewer than 9; .* merge:a, or"):
        built(source, tmp_path / "o", rare_classes="merge:other", **how)
    assert counts(built(source, tmp_path / "o", rare_classes="merge:a", **how)) == {"a": 25}
    assert counts(built(source, tmp_path / "p", rare_classes="drop", **how)) == {"a": 20}
