"""Appending: old files stay, new shards are balanced, and readers see the dataset before or after."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import (
    AppendOptions,
    ConfigError,
    DatasetError,
    DestinationError,
    Manifest,
    Progress,
    SourceError,
    VerifyProgress,
    append,
    check_dataset,
    clean,
    open_dataset,
    plan_append,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.prepare import Filter, ImageOptions, MapBatches, PrepareOptions, Rename, Select, parse_size
from ringfeed.sharding.storage.lease import hold_lease
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.appending import appended, assert_balanced, rows_of
from tests.helpers.builds import NEW, OLD, SPLITS, built, interrupted, make_table, newer_table
from tests.helpers.files import contents
from tests.servers.store import Store

pytestmark = pytest.mark.usefixtures("temporary_folder")

# --- what comes out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("store", "shard_format"),
    [("local", "tfrecord"), ("local", "parquet"), ("s3", "tfrecord"), ("hdfs", "parquet")],
    indirect=["store"],
)
def test_old_and_new_records_are_stored_once_and_no_old_file_changes(
    store: Store, parquet: str, newer: str, shard_format: str
) -> None:
    built(parquet, store.url, label="label", splits=SPLITS, shards=7, shard_format=shard_format)
    before = {name: store.read_bytes(name) for name in store.list()}
    dataset = appended(newer, store.url)
    assert rows_of(dataset) == [*make_table(OLD).to_pylist(), *newer_table().to_pylist()]
    after = {name: store.read_bytes(name) for name in store.list()}
    tfds = {"dataset_info.json"} if shard_format == "tfrecord" else set()
    assert {name for name in before if after.get(name) != before[name]} == {"_ringfeed/dataset.json", *tfds}
    shards = {path for s in dataset.shards for path in (s.path, s.index_path) if "-g00001-" in s.path}
    assert set(after) - set(before) == {*shards, "_ringfeed/shards-g00001.table"}
    assert_balanced(dataset)
    assert check_dataset(store.url, deep=True).damages == ()


def test_classes_keep_their_ids_and_new_ones_come_last(dataset: Path, newer: str) -> None:
    indexes = {
        shard.index_path: (dataset / shard.index_path).read_bytes() for shard in open_dataset(str(dataset)).shards
    }
    manifest = appended(newer, dataset).manifest
    assert manifest.classes == ("a", "b", "c", "aa")
    assert all((dataset / path).read_bytes() == data for path, data in indexes.items())
    train = manifest.split("train")
    assert [len(split.class_counts) for split in manifest.splits.values()] == [4, 4]
    assert train.records == sum(train.class_counts) == 990
    assert [len(shard.class_counts) for shard in open_dataset(str(dataset)).shards] == [4] * train.shards + [4] * 2


def test_totals_and_statistics_are_those_of_all_records(dataset: Path, newer: str) -> None:
    manifest = appended(newer, dataset, splits={"train": Fraction(1)}).manifest
    prices = [row["price"] for row in read_records(open_dataset(str(dataset)), "train", 10**9)]
    found = manifest.split("train").statistics["price"]
    assert (found.count, found.min, found.max) == (1040, min(prices), max(prices))
    assert (found.mean, found.std) == pytest.approx((np.mean(prices), np.std(prices)))
    assert manifest.split("train").statistics["label"].vocabulary == ("a", "aa", "b", "c")
    assert manifest.split("test").records == 60


def test_generations_are_recorded_and_add_up(dataset: Path, newer: str, tmp_path: Path) -> None:
    first = open_dataset(str(dataset)).manifest
    assert (first.generations, b'"generations"' in (dataset / "_ringfeed/dataset.json").read_bytes()) == ((), False)
    appended(newer, dataset, shards=2)
    pq.write_table(newer_table(60, 5000), tmp_path / "third.parquet")
    manifest = appended(str(tmp_path / "third.parquet"), dataset, seed=7, splits={"held_out": Fraction(1)}).manifest
    assert [g.records for g in manifest.generations] == [
        {"train": 540, "test": 60}, {"train": 450, "test": 50}, {"held_out": 60},
    ]  # fmt: skip
    assert [g.seed for g in manifest.generations] == [0, 0, 7]
    assert manifest.generations[0].plan == first.plan == manifest.plan
    assert {name: (s.records, s.shards) for name, s in manifest.splits.items()} == {
        "train": (990, 9), "test": (110, 2), "held_out": (60, 1),
    }  # fmt: skip
    assert manifest.shards_path == "_ringfeed/shards-g00002.table"
    assert_balanced(open_dataset(str(dataset)))
    assert Manifest.decode((dataset / "_ringfeed/dataset.json").read_bytes(), "") == manifest
    assert check_dataset(str(dataset), deep=True).damages == ()


def test_the_bytes_are_a_function_of_dataset_and_source(parquet: str, newer: str, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        built(parquet, tmp_path / name, label="label", splits=SPLITS, shards=7)
        appended(newer, tmp_path / name, workers=workers)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_same_records_lie_in_another_order_in_another_generation(dataset: Path, parquet: str) -> None:
    manifest = appended(parquet, dataset, again=True, shards=7).manifest
    assert manifest.generations[1].seed == manifest.seed
    shards = {shard.path: shard for shard in open_dataset(str(dataset)).shards}
    name = "train-00000-of-00007.tfrecord"
    assert shards[name].records == shards[name.replace("-", "-g00001-", 1)].records
    assert (dataset / name).read_bytes() != (dataset / name.replace("-", "-g00001-", 1)).read_bytes()


@pytest.mark.parametrize("how", [{}, {"shards": 3}, {"shard_bytes": 4000}])
def test_new_shards_are_as_large_as_the_old_ones_unless_asked_otherwise(
    dataset: Path, newer: str, how: dict[str, int]
) -> None:
    shards = appended(newer, dataset, **how).split_shards("train")
    old, new = ([s.bytes for s in shards if generation_of(s.path) == n] for n in (0, 1))
    if "shards" in how:
        assert len(new) == 3
    else:
        assert np.mean(new) == pytest.approx(how.get("shard_bytes", np.mean(old)), rel=0.3)


def test_many_small_appends_keep_to_the_shares(dataset: Path, tmp_path: Path) -> None:
    table = make_table(20)
    for number in range(20):
        pq.write_table(table.slice(number, 1), tmp_path / f"{number}.parquet")
        appended(str(tmp_path / f"{number}.parquet"), dataset)
        splits = open_dataset(str(dataset)).manifest.splits
        assert sum(split.records for split in splits.values()) == 601 + number
        assert abs(splits["test"].records - (601 + number) / 10) < 1
    counts = np.array([splits[name].class_counts for name in ("train", "test")])
    assert np.abs(counts[1] - counts.sum(axis=0) / 10).max() < 1
    assert verify(str(dataset)) == []


def test_small_appends_of_every_class_keep_each_to_its_shares(tmp_path: Path) -> None:
    """Of classes that came with an append, too."""

    def labelled(number: int, classes: int, rows: int) -> str:
        ids = range(1000 * number, 1000 * number + classes * rows)
        labels = [f"{i % classes:02}" for i in ids]
        pq.write_table(pa.table({"id": ids, "label": labels}), tmp_path / f"{number}.parquet")
        return str(tmp_path / f"{number}.parquet")

    built(labelled(0, 10, 10), tmp_path / "out", label="label", splits=SPLITS, shards=1)
    appended(labelled(1, 12, 10), tmp_path / "out", shards=1)
    for number in range(2, 12):
        manifest = appended(labelled(number, 12, 1), tmp_path / "out", shards=1).manifest
    assert manifest.split("train").class_counts == (*(27,) * 10, *(18,) * 2)
    assert manifest.split("test").class_counts == (*(3,) * 10, *(2,) * 2)


def test_a_dataset_without_labels_is_appended_to(parquet: str, newer: str, tmp_path: Path) -> None:
    built(parquet, tmp_path / "out", shards=4)
    dataset = appended(newer, tmp_path / "out")
    assert dataset.manifest.classes == (None,)
    assert len(rows_of(dataset)) == OLD + NEW


def test_a_rare_new_class_is_refused_and_a_rare_known_one_is_not(dataset: Path, tmp_path: Path) -> None:
    table = newer_table(40)
    for name, labels in (("new", ["a"] * 39 + ["d"]), ("known", ["a"] * 39 + ["c"])):
        pq.write_table(table.set_column(5, "label", pa.array(labels)), tmp_path / f"{name}.parquet")
    with pytest.raises(SourceError, match="class 'd' has 1 record, fewer than 2"):
        appended(str(tmp_path / "new.parquet"), dataset)
    assert appended(str(tmp_path / "known.parquet"), dataset).manifest.classes == ("a", "b", "c")


def test_a_plan_writes_nothing(dataset: Path, newer: str) -> None:
    before = contents(dataset)
    plan = plan_append(AppendOptions(source=newer, destination=str(dataset)))
    assert contents(dataset) == before
    assert (plan.classes, plan.assignment.generation) == (("a", "b", "c", "aa"), 1)
    assert sum(split.records for split in plan.assignment.splits) == NEW


# --- layouts of TFRecords ----------------------------------------------------------------------------------------


def integers(first: int, rows: int) -> pa.Table:
    ids = np.arange(first, first + rows)
    return pa.table({"id": pa.array(ids), "x": pa.array(ids.astype(np.float32)), "label": pa.array(ids % 3)})


@pytest.mark.parametrize(("first", "fits"), [(128, True), (16_000, False)])
def test_the_layout_stays_as_long_as_all_records_fit(tmp_path: Path, first: int, fits: bool) -> None:
    pq.write_table(integers(0, 1000), tmp_path / "a.parquet")
    pq.write_table(integers(first, 500), tmp_path / "b.parquet")
    layout = built(str(tmp_path / "a.parquet"), tmp_path / "out", label="label", shards=4).manifest.layout
    dataset = appended(str(tmp_path / "b.parquet"), tmp_path / "out")
    assert layout is not None
    assert dataset.manifest.layout == (layout if fits else None)
    expected = sorted([*integers(0, 1000).to_pylist(), *integers(first, 500).to_pylist()], key=lambda row: row["id"])
    assert rows_of(dataset) == expected
    assert check_dataset(str(tmp_path / "out"), deep=True).damages == ()
    resharded = built(str(tmp_path / "out"), tmp_path / "again", label="label", shards=2)
    assert rows_of(resharded) == expected


def test_a_missing_value_ends_the_layout(tmp_path: Path) -> None:
    pq.write_table(integers(0, 100), tmp_path / "a.parquet")
    table = integers(100, 50)
    table = table.set_column(1, "x", pa.array([None, *table["x"].to_pylist()[1:]], pa.float32()))
    pq.write_table(table, tmp_path / "b.parquet")
    built(str(tmp_path / "a.parquet"), tmp_path / "out", label="label", shards=4)
    dataset = appended(str(tmp_path / "b.parquet"), tmp_path / "out")
    assert dataset.manifest.layout is None
    assert rows_of(dataset) == [*integers(0, 100).to_pylist(), *table.to_pylist()]


# --- what must agree ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["price"]), r"has no column 'price', which .*out has; its columns are: id, vector"),
        (lambda t: t.drop_columns(["price", "flag"]), r"has no column 'price', which .*out has \(and 1 more\)"),
        (
            lambda t: t.append_column("more", t["id"]),
            r"has a column 'more', which .* lacks; .* --select id,vector,small",
        ),
        (
            lambda t: t.set_column(3, "price", t["price"].cast(pa.float32())),
            r"the column 'price' of .* is float32, in .* it is float64; cast it with --cast price=float64",
        ),
        (
            lambda t: t.set_column(5, "label", pa.array(np.arange(len(t)))),
            r"the label 'label' of .* is int64, in .* it is string; cast it with --cast label=string",
        ),
        (
            lambda t: t.set_column(1, "vector", t["vector"].cast(pa.list_(pa.float32()))),
            r"the column 'vector' of .* is float32\[\?\], in .* it is float32\[4\]; convert it with --schema",
        ),
        (
            lambda t: t.set_column(3, "price", t["price"].cast(pa.int64(), safe=False).cast(pa.timestamp("s"))),
            r"the column 'price' of .* is int64 \(timestamp\[ms\]\), in .* it is float64; give it the Arrow type",
        ),
        (
            lambda t: t.rename_columns([*t.column_names[:-1], "lable"]),
            "no label column 'label'; .*did you mean 'lable'",
        ),
    ],
)
def test_another_schema_is_refused_by_the_name_of_the_column(
    dataset: Path, tmp_path: Path, change: Callable[[pa.Table], pa.Table], message: str
) -> None:
    pq.write_table(change(newer_table()), tmp_path / "other.parquet")
    before = contents(dataset)
    with pytest.raises(SourceError, match=message):
        appended(str(tmp_path / "other.parquet"), dataset)
    assert contents(dataset) == before


def test_text_is_read_as_the_types_of_the_dataset(write_csv: Callable[..., str], tmp_path: Path) -> None:
    old = [["code", "x", "day", "label"], *([f"{i:03d}x", i / 2, "2026-01-02", i % 2] for i in range(40))]
    new = [["code", "x", "day", "label"], *([f"{i:03d}", i, "2026-01-03", i % 2] for i in range(40))]
    built(write_csv(*old, name="old.csv"), tmp_path / "out", label="label", shards=2)
    dataset = appended(write_csv(*new, name="new.csv"), tmp_path / "out")
    rows = [row for row in read_records(dataset, "train", 100) if not row["code"].endswith("x")]
    assert sorted((row["code"], row["x"]) for row in rows) == [(f"{i:03d}", float(i)) for i in range(40)]
    assert len({row["day"] for row in rows}) == 1
    lines = [json.dumps({"label": i % 2, "day": "2026-01-04", "x": i, "code": "7"}) for i in range(40)]
    (tmp_path / "new.jsonl").write_text("\n".join(lines) + "\n")
    assert appended(str(tmp_path / "new.jsonl"), tmp_path / "out").manifest.records == 120


def test_text_with_other_columns_is_refused_as_tables_are(write_csv: Callable[..., str], tmp_path: Path) -> None:
    rows = [[i, i / 2, i % 2] for i in range(40)]
    built(write_csv(["id", "x", "label"], *rows, name="old.csv"), tmp_path / "out", label="label", shards=2)
    lacking = write_csv(["id", "y", "label"], *rows, name="lacking.csv")
    with pytest.raises(SourceError, match=r"lacking.csv has no column 'x', which .*; its columns are: id, y, label"):
        appended(lacking, tmp_path / "out")
    unfit = write_csv(["id", "x", "label"], [1, "many", 0], [2, 1, 1], [3, 1, 0], [4, 1, 1], name="unfit.csv")
    with pytest.raises(SourceError, match=r"unfit.csv: line 2: column 'x': 'many' is no float64"):
        appended(unfit, tmp_path / "out")


def test_preparing_may_bring_a_source_into_form(dataset: Path, tmp_path: Path) -> None:
    table = newer_table().rename_columns(["number", "vector", "small", "price", "flag", "label"])
    pq.write_table(table.append_column("more", table["price"]), tmp_path / "other.parquet")
    steps = (Rename((("number", "id"),)), Select(("id", "vector", "small", "price", "flag", "label")))
    found = appended(str(tmp_path / "other.parquet"), dataset, prepare=PrepareOptions(steps=steps))
    assert rows_of(found)[OLD:] == newer_table().to_pylist()


def test_text_is_renamed_before_its_types_are_inferred(write_csv: Callable[..., str], tmp_path: Path) -> None:
    rows = [[f"{i:03d}", i % 2] for i in range(40)]
    old = write_csv(["code", "label"], ["x", 0], *rows, name="old.csv")
    built(old, tmp_path / "out", label="label", shards=2)
    new = write_csv(["kode", "label"], *rows, name="new.csv")
    prepare = PrepareOptions(steps=(Rename((("kode", "code"),)),))
    assert appended(new, tmp_path / "out", prepare=prepare).manifest.records == 81


def test_what_is_appended_is_prepared_as_the_dataset_was(parquet: str, newer: str, tmp_path: Path) -> None:
    prepare = PrepareOptions(steps=(Filter("price > 0"),), dedup=("id",))
    built(parquet, tmp_path / "out", label="label", shards=3, prepare=prepare)
    first = appended(newer, tmp_path / "out").manifest
    assert first.split("train").statistics["price"].min > 0  # type: ignore[operator]
    assert first.generations[1].options["prepare"] == first.options["prepare"] == prepare.recorded()
    with pytest.raises(DestinationError, match="already: they were appended as generation 1"):
        appended(newer, tmp_path / "out", prepare=prepare)
    pq.write_table(newer_table(100, 9000), tmp_path / "third.parquet")
    second = appended(str(tmp_path / "third.parquet"), tmp_path / "out", as_is=True).manifest
    assert second.records == first.records + 100
    assert "prepare" not in second.generations[2].options


def test_a_given_preparation_replaces_that_of_the_build(parquet: str, newer: str, tmp_path: Path) -> None:
    built(parquet, tmp_path / "out", label="label", prepare=PrepareOptions(steps=(Filter("id < 300"),)))
    other = PrepareOptions(steps=(Filter("id >= 1000"),))
    assert len(rows_of(appended(newer, tmp_path / "out", prepare=other))) == 300 + 100


def test_a_dataset_is_appended_to_another(dataset: Path, newer: str, tmp_path: Path) -> None:
    built(newer, tmp_path / "more", label="label", splits=SPLITS, shards=3, shard_format="parquet")
    found = appended(str(tmp_path / "more"), dataset)
    assert rows_of(found) == [*make_table(OLD).to_pylist(), *newer_table().to_pylist()]


def test_foreign_tfrecords_are_read_as_the_types_of_the_dataset(dataset: Path, newer: str, tmp_path: Path) -> None:
    built(newer, tmp_path / "more", label="label", shards=3)
    found = appended(f"{tmp_path}/more/*.tfrecord", dataset, source_kind="tfrecord")
    assert rows_of(found) == [*make_table(OLD).to_pylist(), *newer_table().to_pylist()]


def test_code_that_the_dataset_names_is_called_only_if_trusted(parquet: str, newer: str, tmp_path: Path) -> None:
    module = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\nsame = lambda batch: batch\n"
    (tmp_path / "theirs").mkdir()
    for path in ("append_ours.py", "theirs/append_theirs.py"):
        (tmp_path / path).write_text(module)
    steps = (MapBatches("append_ours:same", str(tmp_path)), Filter("price > 0"))
    built(parquet, tmp_path / "out", label="label", shards=2, prepare=PrepareOptions(steps=steps))
    path = tmp_path / "out" / "_ringfeed/dataset.json"
    manifest = open_dataset(str(tmp_path / "out")).manifest
    options = json.loads(json.dumps(manifest.options).replace("append_ours", "append_theirs"))
    path.write_bytes(replace(manifest, options=options).encode())  # as an attacker would
    theirs = str(tmp_path / "theirs")
    with pytest.raises(ConfigError, match=r"names code .* \(append_theirs:same\), .* not imported; .* --trust-code"):
        appended(newer, tmp_path / "out", folder=theirs)
    assert not (tmp_path / "theirs" / "append_theirs.ran").exists()
    first = appended(newer, tmp_path / "out", prepare=PrepareOptions(steps=steps))  # the same functions, given again
    assert first.manifest.generations[1].options["prepare"]["steps"][0] == "--map append_ours:same"
    assert not (tmp_path / "theirs" / "append_theirs.ran").exists()
    appended(newer, tmp_path / "out", folder=theirs, trust_code=True, again=True)
    assert (tmp_path / "theirs" / "append_theirs.ran").exists()


def test_images_are_prepared_as_those_of_the_dataset_were(tmp_path: Path) -> None:
    for folder, labels in (("old", "ab"), ("new", "bc")):
        for label in labels:
            (tmp_path / folder / label).mkdir(parents=True)
            for i in range(6):
                image = Image.new("RGB", (20 + i, 30), (i, 0, 0))
                image.save(tmp_path / folder / label / f"{i}.png")
    prepare = PrepareOptions(images=ImageOptions(size=parse_size("8")))
    built(str(tmp_path / "old"), tmp_path / "out", label="label", shards=2, prepare=prepare)
    dataset = appended(str(tmp_path / "new"), tmp_path / "out")
    assert dataset.manifest.classes == ("a", "b", "c")
    image = dataset.manifest.split("train").statistics["image"].image
    assert image is not None
    assert (image.images, image.min_width, image.max_width) == (24, 8, 8)


def test_an_error_hints_at_the_source_kind_of_the_build(tmp_path: Path) -> None:
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = [f"{number}.png,{number % 2}" for number in range(4)]
    for name in ("old", "new"):
        (tmp_path / f"{name}.csv").write_text("\n".join(["path,label", *rows]))
    built(f"{tmp_path}/old.csv", tmp_path / "out", label="label", shards=2, source_kind="image-list")
    with pytest.raises(SourceError, match=r"no column 'image'.* \(.*/out was built with --source-kind image-list; add"):
        appended(f"{tmp_path}/new.csv", tmp_path / "out")
    with pytest.raises(SourceError, match="no column 'image'"):
        plan_append(AppendOptions(source=f"{tmp_path}/new.csv", destination=str(tmp_path / "out")))
    found = appended(f"{tmp_path}/new.csv", tmp_path / "out", source_kind="image-list")
    assert found.manifest.records == 8


@pytest.mark.parametrize("how", [{"shards": 0}, {"shards": 2, "shard_bytes": 9}, {"splits": {"a": Fraction(1, 2)}}])
def test_options_follow_the_rules_of_a_build(how: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AppendOptions(source="a", destination="b", **how)


# --- one commit --------------------------------------------------------------------------------------------------


def test_the_same_source_is_appended_once_unless_asked_again(dataset: Path, parquet: str, newer: str) -> None:
    appended(newer, dataset)
    before = contents(dataset)
    for source, how in ((newer, "appended as generation 1"), (parquet, "what the dataset was built from")):
        with pytest.raises(DestinationError, match=rf"already: they were {how}; to store them twice, add --again"):
            append(AppendOptions(source=source, destination=str(dataset)))
        with pytest.raises(DestinationError, match="--again"):
            plan_append(AppendOptions(source=source, destination=str(dataset)))
    assert contents(dataset) == before
    assert appended(newer, dataset, again=True).manifest.records == OLD + 2 * NEW


def test_appending_needs_a_dataset(newer: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no dataset at"):
        append(AppendOptions(source=newer, destination=str(tmp_path / "nothing")))
    assert not (tmp_path / "nothing").exists()


def test_a_concurrent_append_is_refused(dataset: Path, newer: str) -> None:
    with hold_lease(Storage(str(dataset)), {}) as lease:
        with pytest.raises(DestinationError, match=rf"another build is writing to .* \(process {os.getpid()} on"):
            append(AppendOptions(source=newer, destination=str(dataset)))
        lease.release(keep=False)
    assert appended(newer, dataset).manifest.records == OLD + NEW


def test_a_dataset_changed_in_the_meantime_is_not_overwritten(dataset: Path, newer: str, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "repaired")
    (tmp_path / "repaired" / open_dataset(str(dataset)).shards[0].path).unlink()
    repair(str(tmp_path / "repaired"))

    def spoil(progress: Progress) -> None:
        if progress.stage == "write" and progress.done == 1:
            (dataset / open_dataset(str(dataset)).shards[0].path).unlink()
            with pytest.raises(DestinationError, match=r"another append is writing to .* \(process \d+"):
                repair(str(dataset))
            shutil.copytree(tmp_path / "repaired", dataset, dirs_exist_ok=True)

    with pytest.raises(DestinationError, match="was changed by another program in the meantime; append again"):
        append(AppendOptions(source=newer, destination=str(dataset)), report=spoil)
    lost = sum(entry.records for entry in open_dataset(str(dataset)).manifest.lost)
    again = appended(newer, dataset)
    assert again.manifest.records == OLD + NEW - lost
    assert len(again.manifest.lost[0].class_counts) == 4
    assert verify(str(dataset)) == []


def test_readers_see_the_old_or_the_new_dataset(store: Store, parquet: str, newer: str) -> None:
    built(parquet, store.url, label="label", splits=SPLITS, shards=4)
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        last = False
        while not last:
            last = done.is_set()
            dataset = open_dataset(store.url)
            splits = dataset.manifest.splits
            assert {name: len(dataset.split_shards(name)) for name in splits} == {
                n: s.shards for n, s in splits.items()
            }
            records = sum(1 for _ in read_records(dataset, "test", 10**9))
            assert (records, dataset.manifest.records) in ((60, 600), (110, 1100))
            seen.append(records)

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(read)
        while not seen and not reader.done():
            time.sleep(0.01)
        append(AppendOptions(source=newer, destination=store.url))
        done.set()
        reader.result()
    assert seen == sorted(seen)
    assert set(seen) == {60, 110}


def test_the_old_table_stays_for_its_readers_until_clean(dataset: Path, newer: str) -> None:
    old = open_dataset(str(dataset))
    appended(newer, dataset)
    assert rows_of(old) == make_table(OLD).to_pylist()
    (note,) = check_dataset(str(dataset)).notes
    assert note.path == "_ringfeed/shards.table"
    assert note.remark.startswith("shard table from before an append,")
    assert clean(Storage(str(dataset))) == [f"{dataset}/_ringfeed/shards.table"]
    assert check_dataset(str(dataset), deep=True).notes == ()
    assert rows_of(open_dataset(str(dataset))) == [*make_table(OLD).to_pylist(), *newer_table().to_pylist()]


@pytest.mark.parametrize("read", [open_dataset, verify])
def test_a_reader_whose_table_disappears_reads_dataset_json_again(
    dataset: Path, newer: str, read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Manifest.decode
    came: list[bytes] = []

    def late(data: bytes, path: str) -> Manifest:
        if not came:
            came.append(data)
            appended(newer, dataset)
            clean(Storage(str(dataset)))
        return decode(data, path)

    monkeypatch.setattr(Manifest, "decode", late)
    found = read(str(dataset))
    assert came
    assert found == ([] if read is verify else open_dataset(str(dataset)))


def test_verify_reports_no_damage_in_files_replaced_while_it_reads(dataset: Path, newer: str) -> None:
    def replace_dataset(progress: VerifyProgress) -> None:
        if progress.files == 1 and open_dataset(str(dataset)).manifest.records == OLD:
            built(newer, dataset, label="label", shards=2, overwrite=True)

    assert check_dataset(str(dataset), replace_dataset, workers=1).damages == ()


def test_a_build_beside_a_killed_append_neither_takes_its_place_nor_harms_it(
    dataset: Path, parquet: str, newer: str
) -> None:
    options = AppendOptions(source=newer, destination=str(dataset))
    interrupted(options, 3)
    with pytest.raises(DestinationError, match=r"already holds a dataset; .* or add to it with: shard-dataset append"):
        built(newer, dataset, label="label", shards=3)
    assert verify(str(dataset)) == []
    seen: list[Progress] = []
    append(options, report=seen.append)
    assert max(progress.resumed for progress in seen) >= 3


def test_a_build_replaces_all_generations(dataset: Path, newer: str, tmp_path: Path) -> None:
    appended(newer, dataset)
    pq.write_table(newer_table(100, 9000), tmp_path / "third.parquet")
    interrupted(AppendOptions(source=str(tmp_path / "third.parquet"), destination=str(dataset), shards=5), 2)
    assert list(dataset.glob("*-g00002-*"))
    built(newer, dataset, label="label", shards=3, overwrite=True)
    built(newer, tmp_path / "whole", label="label", shards=3)
    assert contents(dataset) == contents(tmp_path / "whole")
    clean(Storage(str(dataset)))


# --- the command line --------------------------------------------------------------------------------------------


def test_the_command_reports_what_it_added_and_the_new_totals(
    dataset: Path, newer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ringfeed.tools.shard_dataset.program import main

    words = ["append", newer, str(dataset), "--workers", "1"]
    assert main([*words, "--dry-run"]) == 0
    assert "would append tfrecord to" in capsys.readouterr().out
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "appended 500 records, " in out
    assert "it holds 1,100 records in " in out
    assert main([*words, "--seed", "1"]) == 1
    assert "they were appended as generation 1; to store them twice, add --again" in capsys.readouterr().err
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.endswith(" already: they were appended as generation 1; to store them twice, add --again\n")
    assert main([*words, "--again", "--json", "--split", "train=1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["generation"], document["records"], document["total_records"]) == (2, 500, 1600)
    assert list(document["splits"]) == ["train"]


def test_inspect_shows_generations_and_their_balance(
    dataset: Path, newer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from ringfeed.tools.shard_dataset.program import main

    appended(newer, dataset, shards=3)
    assert main(["inspect", str(dataset)]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["0", "600", "8", "3", "0"] in [row[:5] for row in rows]
    assert ["1", "500", "4", "4", "0", newer] in rows
    assert "largest difference between two shards of a split and generation: 1 in records, 1 in any class" in out
    assert f"glob('{dataset}/train-*.tfrecord')" in out
    assert main(["inspect", str(dataset), "--json"]) == 0
    generations = json.loads(capsys.readouterr().out)["generations"]
    assert [generation["records"] for generation in generations] == [
        {"train": 540, "test": 60},
        {"train": 450, "test": 50},
    ]
