"""Builds that split by a column or deal by size (also `census`, `existing_groups`): every guarantee, on the files."""

import io
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import (
    BuildOptions,
    ConfigError,
    Dataset,
    Progress,
    RingfeedError,
    SourceError,
    append,
    build,
    open_dataset,
    plan_build,
    read_records,
    verify,
)
from ringfeed.sharding.engines.executors import local_executor
from ringfeed.sharding.prepare import Drop, Filter, ImageOptions, PrepareOptions, Rename, Select, Size
from ringfeed.sharding.sources.tables.parquet import ParquetSource
from tests.helpers.builds import built, interrupted
from tests.helpers.files import contents
from tests.servers.store import Store

pytestmark = pytest.mark.usefixtures("temporary_folder")

ROWS = 3000
SPLITS = {"train": Fraction(8, 10), "test": Fraction(2, 10)}
WAYS: dict[str, dict[str, Any]] = {
    "column": {"split_column": "fold"},
    "groups": {"group_by": "user", "splits": SPLITS},
    "bytes": {"balance": "bytes", "splits": SPLITS},
    "column-bytes": {"split_column": "fold", "balance": "bytes"},
    "groups-bytes": {"group_by": "user", "splits": SPLITS, "balance": "bytes"},
}


@pytest.fixture
def records() -> pa.Table:
    rng = np.random.default_rng(0)
    users = rng.integers(0, 150, ROWS)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "user": pa.array(users).cast(pa.string()),
            "fold": rng.choice(["train", "val", "test"], ROWS, p=[0.7, 0.2, 0.1]),
            "label": pa.array(np.array(["a", "b", "c"])[np.minimum(users % 10, 2)]),
            "text": ["x" * int(length) for length in rng.lognormal(5, 0.7, ROWS)],
        }
    )


@pytest.fixture
def source(tmp_path: Path, records: pa.Table, monkeypatch: pytest.MonkeyPatch) -> str:
    """The records as a Parquet file of six parts."""
    monkeypatch.setattr("ringfeed.sharding.sources.tables.table_files._PART_ROWS", 500)
    pq.write_table(records, tmp_path / "source.parquet", row_group_size=250)
    return str(tmp_path / "source.parquet")


def rows_by_split(dataset: Dataset) -> dict[str, list[dict[str, Any]]]:
    return {split: list(read_records(dataset, split, 10**9)) for split in dataset.manifest.splits}


def all_rows(dataset: Dataset) -> list[dict[str, Any]]:
    return sorted((row for rows in rows_by_split(dataset).values() for row in rows), key=lambda row: row["id"])


def largest_by_smallest(dataset: Dataset, split: str) -> float:
    sizes = [shard.bytes for shard in dataset.split_shards(split)]
    return max(sizes) / min(sizes)


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("way", WAYS)
def test_every_record_is_stored_once_in_balanced_shards(
    source: str, records: pa.Table, tmp_path: Path, way: str, shard_format: str
) -> None:
    dataset = built(source, tmp_path / "out", label="label", shards=3, shard_format=shard_format, **WAYS[way])
    assert all_rows(dataset) == records.to_pylist()
    assert verify(str(tmp_path / "out")) == []
    for split in dataset.manifest.splits:
        counts = np.array([shard.class_counts for shard in dataset.split_shards(split)])
        assert np.ptp(counts, axis=0).max() <= 1
        assert np.ptp(counts.sum(axis=1)) <= 1
        assert tuple(counts.sum(axis=0)) == dataset.manifest.split(split).class_counts
        if "bytes" in way and shard_format == "tfrecord":
            assert largest_by_smallest(dataset, split) <= 1.001


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with local_executor(2) as pool:
        yield pool


@pytest.mark.parametrize("way", WAYS)
def test_workers_batches_and_parts_change_no_byte(
    source: str, tmp_path: Path, way: str, processes: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"label": "label", "shards": 3, **WAYS[way]}
    built(source, tmp_path / "one", **how)
    build(BuildOptions(source=source, destination=str(tmp_path / "two"), workers=2, **how), executor=processes)
    monkeypatch.setattr("ringfeed.sharding.sources.tables.parquet.BATCH_ROWS", 17)
    monkeypatch.setattr("ringfeed.sharding.sources.tables.table_files._PART_ROWS", 1000)
    monkeypatch.setattr("ringfeed.sharding.assignment.split_by_column._NOTES_AT_ONCE", 100)
    built(source, tmp_path / "three", **how)
    assert contents(tmp_path / "one") == contents(tmp_path / "two") == contents(tmp_path / "three")


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_build_resumes(source: str, tmp_path: Path, way: str) -> None:
    how = {"label": "label", "shards": 6, **WAYS[way]}
    seen: list[Progress] = []

    options = BuildOptions(source=source, destination=str(tmp_path / "out"), **how)
    interrupted(options, 3)
    build(options, report=seen.append)
    assert max(progress.resumed for progress in seen) >= 3
    built(source, tmp_path / "whole", **how)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_other_options_give_other_fingerprints(source: str, tmp_path: Path) -> None:
    ways = {"plain": {"splits": SPLITS}, **WAYS, "another": {"group_by": "fold", "splits": SPLITS}}
    plans = {}
    for name, way in ways.items():
        options = BuildOptions(source=source, destination=str(tmp_path / "out"), label="label", shards=3, **way)
        plans[name] = plan_build(options).fingerprint
    assert len(set(plans.values())) == len(ways)


def test_defaults_leave_no_trace_in_the_manifest(source: str, tmp_path: Path) -> None:
    plain = built(source, tmp_path / "out", label="label", splits=SPLITS).manifest.options
    assert set(plain) == {"label", "shards", "shard_bytes", "splits"}
    asked = built(source, tmp_path / "asked", label="label", **WAYS["groups-bytes"]).manifest.options
    assert asked == plain | {"group_by": "user", "balance": "bytes"}


@pytest.mark.parametrize("way", ["groups", "bytes"])
def test_the_files_of_a_plan_may_lie_on_any_store(source: str, tmp_path: Path, way: str) -> None:
    how = {"label": "label", "shards": 3, **WAYS[way]}
    built(source, tmp_path / "a", **how)
    built(source, tmp_path / "b", spill=f"memory://{uuid.uuid4().hex}", **how)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("way", WAYS)
def test_a_dry_run_leaves_a_resumable_build_alone(source: str, tmp_path: Path, way: str) -> None:
    options = BuildOptions(source=source, destination=str(tmp_path / "out"), label="label", shards=6, **WAYS[way])
    interrupted(options, 3)
    spilled = set((tmp_path / "t").rglob("*.json"))
    assert spilled
    plan = plan_build(options)
    assert sum(split.records for split in plan.assignment.splits) == ROWS
    assert set((tmp_path / "t").rglob("*.json")) == spilled
    build(options)


class TestSplitColumn:
    def test_each_record_goes_to_the_split_that_it_names(self, source: str, records: pa.Table, tmp_path: Path) -> None:
        dataset = built(source, tmp_path / "out", label="label", split_column="fold", shards=3)
        assert list(dataset.manifest.splits) == ["test", "train", "val"]
        for split, rows in rows_by_split(dataset).items():
            assert {row["fold"] for row in rows} == {split}
        assert dataset.manifest.options["splits"] == {}

    @pytest.mark.parametrize("step", [Drop(("fold",)), Select(("id", "label"))], ids=lambda step: step.spec)
    def test_a_column_that_was_dropped_divides_all_the_same(
        self, source: str, records: pa.Table, tmp_path: Path, step: Any
    ) -> None:
        how: dict[str, Any] = {"label": "label", "split_column": "fold", "shards": 3}
        kept = built(source, tmp_path / "kept", **how)
        dataset = built(source, tmp_path / "out", prepare=PrepareOptions(steps=(step,)), **how)
        assert "fold" not in dataset.manifest.schema.names
        for split, rows in rows_by_split(kept).items():
            assert {row["id"] for row in rows} == {row["id"] for row in rows_by_split(dataset)[split]}

    @pytest.mark.parametrize(
        ("values", "splits"),
        [
            (pa.array([10, 9, 10, 9], pa.uint8()), ["9", "10"]),
            (pa.array([True, False, True, False]), ["False", "True"]),
            (pa.array(["b", "a", "b", "a"]).dictionary_encode(), ["a", "b"]),
        ],
        ids=str,
    )
    def test_splits_are_named_by_values_of_every_kind(
        self, tmp_path: Path, values: pa.Array, splits: list[str]
    ) -> None:
        pq.write_table(pa.table({"id": range(4), "fold": values}), tmp_path / "x.parquet")
        dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", split_column="fold", shards=1)
        assert list(dataset.manifest.splits) == splits
        assert [[row["id"] for row in rows] for rows in rows_by_split(dataset).values()].count([]) == 0
        assert {row["id"] for row in rows_by_split(dataset)[splits[1]]} == {0, 2}

    def test_a_split_may_lack_a_class(self, write_csv: Callable[..., str], tmp_path: Path) -> None:
        rows = [[i, "xy"[i % 2], "train" if i % 2 else "test"] for i in range(8)]
        dataset = built(
            write_csv(["id", "label", "fold"], *rows), tmp_path / "out", label="label", split_column="fold", shards=2
        )
        assert dataset.manifest.split("test").class_counts == (4, 0)
        assert dataset.manifest.split("train").class_counts == (0, 4)

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            (["a", None], r"record 1 \(from 0\) has no value for --split-column fold; drop or fill it first"),
            (["a", "b/c"], "--split-column fold: the name of a split must.*got 'b/c'; replace that value"),
            (["a", ""], "got ''"),
            (list(range(300)), "has 300 values, and each names a split; .* with --group-by fold"),
        ],
    )
    def test_values_that_name_no_splits_are_refused(self, tmp_path: Path, values: list[Any], message: str) -> None:
        pq.write_table(pa.table({"id": range(len(values)), "fold": values}), tmp_path / "x.parquet")
        with pytest.raises(SourceError, match=message):
            built(str(tmp_path / "x.parquet"), tmp_path / "out", split_column="fold")
        assert not (tmp_path / "out").exists()


class TestGroupBy:
    @pytest.mark.parametrize("label", ["label", None])
    def test_no_group_is_in_two_splits_and_shares_are_met(self, source: str, tmp_path: Path, label: str | None) -> None:
        dataset = built(source, tmp_path / "out", label=label, **WAYS["groups"])
        train, test = rows_by_split(dataset).values()
        assert not {row["user"] for row in train} & {row["user"] for row in test}
        assert abs(len(train) - 0.8 * ROWS) < 0.01 * ROWS
        for name in "abc" if label else "":
            of_class = [sum(row["label"] == name for row in rows) for rows in (train, test)]
            assert abs(of_class[0] / sum(of_class) - 0.8) < 0.03

    def test_another_seed_divides_them_otherwise(self, source: str, tmp_path: Path) -> None:
        users = []
        for seed in (0, 1):
            rows = rows_by_split(built(source, tmp_path / str(seed), seed=seed, **WAYS["groups"]))
            users.append({row["user"] for row in rows["test"]})
        assert users[0] != users[1]

    def test_the_first_pass_reads_no_other_column(
        self, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []
        read = ParquetSource.read
        monkeypatch.setattr(
            ParquetSource, "read", lambda self, part, columns: asked.append(set(columns)) or read(self, part, columns)
        )
        steps = (Rename((("user", "person"),)), Drop(("person",)))
        options = BuildOptions(
            source=source,
            destination=str(tmp_path / "out"),
            label="label",
            splits=SPLITS,
            group_by="person",
            prepare=PrepareOptions(steps=steps, dedup=("id",)),
        )
        plan_build(options)
        assert {"label", "user"} in asked
        assert {"id", "user", "fold", "label", "text"} not in asked

    def test_parts_that_are_left_without_a_record_do_no_harm(self, source: str, tmp_path: Path) -> None:
        prepare = PrepareOptions(steps=(Filter("id >= 1100"),))
        for way in ("groups", "groups-bytes"):
            dataset = built(source, tmp_path / way, label="label", prepare=prepare, **WAYS[way])
            assert [row["id"] for row in all_rows(dataset)] == list(range(1100, ROWS))

    def test_a_record_without_a_group_is_named(self, write_csv: Callable[..., str], tmp_path: Path) -> None:
        url = write_csv(["id", "user"], [0, 7], [1, 8], [2, None], [3, 7])
        with pytest.raises(SourceError, match=r"source.csv: line 4 has no value for --group-by user"):
            built(url, tmp_path / "out", group_by="user", splits=SPLITS)

    def test_fewer_groups_than_splits_are_refused(self, write_csv: Callable[..., str], tmp_path: Path) -> None:
        url = write_csv(["id", "user"], *[[i, "a"] for i in range(9)])
        with pytest.raises(SourceError, match="has 1 value, too few for one in each of 2 splits; ask for fewer splits"):
            built(url, tmp_path / "out", group_by="user", splits=SPLITS)

    @pytest.mark.parametrize("way", ["column", "groups", "bytes"])
    def test_a_source_that_changes_meanwhile_is_found_out(
        self, source: str, records: pa.Table, tmp_path: Path, way: str
    ) -> None:
        def change(progress: Progress) -> None:
            if progress.stage == "partition" and progress.done == 0:
                more = records.slice(0, 1).set_column(1, "user", [["new"]]).set_column(2, "fold", [["new"]])
                pq.write_table(pa.concat_tables([more, records]).slice(0, ROWS), source, row_group_size=251)

        options = BuildOptions(source=source, destination=str(tmp_path / "out"), label="label", **WAYS[way])
        with pytest.raises(SourceError, match="the source changed while it was read"):
            build(options, report=change)


class TestByTime:
    @pytest.mark.parametrize("kind", [pa.int64(), pa.date32(), pa.timestamp("us"), pa.string(), "/"], ids=str)
    def test_the_newest_records_are_the_test(self, tmp_path: Path, kind: pa.DataType | str) -> None:
        days = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 7)).astype("datetime64[D]")
        if kind == "/":
            times = pa.array([str(day).replace("-", "/") for day in days])
        else:
            times = pa.array(days).cast(pa.int32()).cast(kind) if kind == pa.int64() else pa.array(days).cast(kind)
        table = pa.table({"time": times, "id": range(700), "label": ["a", "b"] * 350})
        url = str(tmp_path / "s.parquet")
        pq.write_table(table, url)
        dataset = built(url, tmp_path / "out", label="label", split_by_time="time", shards=2)
        rows = rows_by_split(dataset)
        ids = {split: {row["id"] for row in found} for split, found in rows.items()}
        expected = {"train": (0, 80), "val": (80, 90), "test": (90, 100)}
        for split, (first, stop) in expected.items():
            inside = (days >= np.datetime64(first, "D")) & (days < np.datetime64(stop, "D"))
            assert ids[split] == set(np.flatnonzero(inside).tolist())
            sizes = [info.records for info in dataset.shards if info.split == split]
            assert max(sizes) - min(sizes) <= 1
        with pytest.raises(ConfigError, match="--split-by-time time, which does not say where new records go; name"):
            append(source=url, destination=str(tmp_path / "out"), again=True)
        append(source=url, destination=str(tmp_path / "out"), again=True, split={"train": 1})
        assert verify(str(tmp_path / "out")) == []

    @pytest.mark.parametrize(
        ("values", "options", "error"),
        [
            (
                ["3/1/2020", "2/1/2020", "2020-01-01"],
                {},
                "'3/1/2020' is no time that sorts as text does; write times as",
            ),
            ([1, 1, 2], {}, "the 2 values of the column leave one of 3 splits without any; ask for fewer splits"),
            ([1, 2, 3], {"group_by": "id"}, "give --split-by-time or --group-by, not both"),
        ],
    )
    def test_what_has_no_order_is_refused(self, values: list[Any], options: dict[str, Any], error: str) -> None:
        with pytest.raises(RingfeedError, match=error):
            build(source=pa.table({"t": values, "id": [0, 1, 2]}), destination="out", split_by_time="t", **options)


@pytest.mark.parametrize("flag", ["split_column", "group_by"])
class TestColumn:
    @pytest.mark.parametrize(
        ("column", "message"),
        [
            ("usr", "there is no column 'usr'; did you mean 'user'"),
            ("label", "label: this is the label, so each class would be in a single split"),
            ("score", "score: the column holds float64 values; it must hold strings, integers or bools"),
            ("tags", "tags: the column holds lists of int64; it must hold strings"),
        ],
    )
    def test_one_that_cannot_divide_is_refused(self, tmp_path: Path, flag: str, column: str, message: str) -> None:
        table = pa.table({"user": [1, 2], "label": ["a", "b"], "score": [0.5, 1.5], "tags": [[1], [2]]})
        pq.write_table(table, tmp_path / "x.parquet")
        splits = {"splits": SPLITS} if flag == "group_by" else {}
        with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')}.*{message}"):
            built(str(tmp_path / "x.parquet"), tmp_path / "out", label="label", **{flag: column}, **splits)

    def test_one_that_is_read_with_the_images_is_refused(self, tmp_path: Path, flag: str) -> None:
        write_images(tmp_path / "images", 4)
        splits = {"splits": SPLITS} if flag == "group_by" else {}
        with pytest.raises(ConfigError, match="height: the column is unknown until the images are read"):
            built(str(tmp_path / "images"), tmp_path / "out", **{flag: "height"}, **splits)


def write_images(folder: Path, images: int) -> None:
    """PNGs of noise and of one colour, of all sizes, in two class folders."""
    rng = np.random.default_rng(0)
    for i in range(images):
        side = int(rng.integers(4, 60))
        pixels = rng.integers(0, 256, (side, side, 3), np.uint8) if i % 3 else np.zeros((side, side, 3), np.uint8)
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, "PNG")
        path = folder / "xy"[i % 2] / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.getvalue())


class TestBytes:
    @pytest.mark.parametrize(
        "prepare",
        [PrepareOptions(), PrepareOptions(steps=(Rename((("image", "photo"),)), Drop(("height",))))],
        ids=["plain", "steps"],
    )
    def test_images_are_dealt_by_the_sizes_of_their_files(
        self, tmp_path: Path, prepare: PrepareOptions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ringfeed.sharding.sources.images.class_folders._PART_FILES", 100)
        write_images(tmp_path / "images", 400)
        ratios = []
        for balance in ("records", "bytes"):
            dataset = built(str(tmp_path / "images"), tmp_path / balance, shards=4, balance=balance, prepare=prepare)
            ratios.append(largest_by_smallest(dataset, "train"))
        assert ratios[1] <= 1.005 < 1.02 < ratios[0]

    def test_images_of_a_list_are_too_and_none_is_opened(
        self, tmp_path: Path, write_csv: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_images(tmp_path / "images", 200)
        rows = [
            [f"images/{path.parent.name}/{path.name}", path.parent.name]
            for path in (tmp_path / "images").rglob("*.png")
        ]
        url = write_csv(["path", "label"], *sorted(rows))
        how: dict[str, Any] = {"label": "label", "source_kind": "image-list", "shards": 4, "balance": "bytes"}
        dataset = built(url, tmp_path / "out", **how)
        assert largest_by_smallest(dataset, "train") <= 1.005

    def test_images_that_are_transformed_count_as_they_were(self, tmp_path: Path) -> None:
        write_images(tmp_path / "images", 60)
        prepare = PrepareOptions(steps=(Drop(("path",)),), dedup=("image",), images=ImageOptions(size=Size(width=8)))
        how: dict[str, Any] = {"group_by": "path", "splits": SPLITS, "balance": "bytes", "prepare": prepare}
        dataset = built(str(tmp_path / "images"), tmp_path / "out", shards=2, min_class_records=1, **how)
        assert "path" not in dataset.manifest.schema.names
        assert 40 < dataset.manifest.records < 60
        assert all(row["width"] == 8 for rows in rows_by_split(dataset).values() for row in rows)

    def test_images_of_a_list_elsewhere_tell_their_sizes(self, store: Store, tmp_path: Path) -> None:
        write_images(tmp_path / "images", 12)
        rows = ["path,label"]
        for path in sorted((tmp_path / "images").rglob("*.png")):
            store.write_bytes(f"data/{path.name}", path.read_bytes())
            rows.append(f"{path.name},{path.parent.name}")
        store.write_bytes("data/list.csv", "\n".join(rows).encode())
        how: dict[str, Any] = {"label": "label", "source_kind": "image-list", "shards": 2, "balance": "bytes"}
        plan = plan_build(BuildOptions(source=f"{store.url}/data/list.csv", destination=str(tmp_path / "out"), **how))
        assert plan.dealt is not None
        files = sum(path.stat().st_size for path in (tmp_path / "images").rglob("*.png"))
        assert files < plan.dealt.shard_bytes.sum() < files + 12 * 200

    def test_the_plan_tells_the_sizes_of_the_shards(self, source: str, tmp_path: Path) -> None:
        how: dict[str, Any] = {"label": "label", "shards": 3, **WAYS["bytes"]}
        plan = plan_build(BuildOptions(source=source, destination=str(tmp_path / "out"), **how))
        dataset = built(source, tmp_path / "out", **how)
        assert plan.dealt is not None
        assert plan.dealt.shard_bytes.tolist() == [shard.bytes for shard in dataset.shards]

    @pytest.mark.parametrize("lengths", [[20] * 2000 + [3000] * 2000, [3000] * 2000 + [20] * 2000])
    def test_the_size_that_is_asked_for_is_met_whatever_the_first_records_are(
        self, tmp_path: Path, lengths: list[int]
    ) -> None:
        table = pa.table({"id": np.arange(len(lengths)), "text": ["x" * length for length in lengths]})
        pq.write_table(table, tmp_path / "a.parquet")
        dataset = built(str(tmp_path / "a.parquet"), tmp_path / "out", balance="bytes", shard_bytes=1 << 20)
        sizes = [shard.bytes for shard in dataset.shards]
        assert 0.8 * (1 << 20) < min(sizes) <= max(sizes) < 1.1 * (1 << 20)

    def test_rows_of_a_shard_are_not_in_the_order_of_their_sizes(self, source: str, tmp_path: Path) -> None:
        dataset = built(source, tmp_path / "out", label="label", shards=1, balance="bytes")
        lengths = [len(row["text"]) for row in read_records(dataset, "train", 10**9)]
        assert abs(np.corrcoef(np.arange(ROWS), np.argsort(np.argsort(lengths)))[0, 1]) < 0.1


def test_a_dataset_is_opened_by_its_splits(source: str, tmp_path: Path) -> None:
    built(source, tmp_path / "out", label="label", split_column="fold", shards=2)
    dataset = open_dataset(str(tmp_path / "out"))
    again = built(f"{tmp_path / 'out'}#val", tmp_path / "again", label="label", shards=1)
    assert again.manifest.records == dataset.manifest.split("val").records
