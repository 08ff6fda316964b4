"""Builds from end to end (also `planning`, `stages` and their tasks): exact, balanced, reproducible, all or nothing."""

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    ConfigError,
    Dataset,
    DestinationError,
    ExportOptions,
    Original,
    Progress,
    RepeatedError,
    RingfeedError,
    SourceError,
    append,
    build,
    clean,
    export,
    open_dataset,
    plan_build,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.building import shard_writer as write_module
from ringfeed.sharding.building.build import build_at
from ringfeed.sharding.destination import dataset_draft as destination_module
from ringfeed.sharding.progress import ignore
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings
from tests.helpers.builds import built, is_heartbeat, make_table
from tests.helpers.files import contents
from tests.servers.store import Store

SPLITS = {"train": Fraction(9, 10), "test": Fraction(1, 10)}


def all_records(dataset: Dataset) -> list[dict[str, Any]]:
    return [row for split in dataset.manifest.splits for row in read_records(dataset, split, 10**9)]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize(
    ("shard_format", "compression"),
    [("tfrecord", None), ("tfrecord", "gzip"), ("tfrecord", "zlib"), ("parquet", None), ("parquet", "zstd")],
)
def test_every_value_is_stored_exactly_once(
    parquet: str, table: pa.Table, tmp_path: Path, shard_format: str, compression: str | None
) -> None:
    dataset = built(
        parquet,
        tmp_path / "out",
        label="label",
        splits=SPLITS,
        shards=7,
        shard_format=shard_format,
        compression=compression,
    )
    assert by_id(all_records(dataset)) == table.to_pylist()
    assert verify(str(tmp_path / "out")) == []


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_nested_lists_are_stored_as_columns_of_lists(tmp_path: Path, shard_format: str) -> None:
    boxes = [[{"box": [i, i + 0.5], "class": "x"}] * (i % 3) for i in range(20)]
    words = [[["p"] * i, []] for i in range(20)]
    pq.write_table(pa.table({"id": range(20), "boxes": boxes, "words": words}), tmp_path / "a.parquet")
    dataset = built(str(tmp_path / "a.parquet"), tmp_path / "out", shards=2, shard_format=shard_format)
    assert by_id(all_records(dataset)) == [
        {
            "id": i,
            "boxes.box.values": [i, i + 0.5] * (i % 3),
            "boxes.box.lengths": [2] * (i % 3),
            "boxes.class": ["x"] * (i % 3),
            "words.values": ["p"] * i,
            "words.lengths": [i, 0],
        }
        for i in range(20)
    ]


def test_shards_are_balanced_and_the_manifest_describes_them(parquet: str, table: pa.Table, tmp_path: Path) -> None:
    dataset = built(parquet, tmp_path / "out", label="label", splits=SPLITS, shards=7)
    for split, share in SPLITS.items():
        found = []
        for shard in dataset.split_shards(split):
            index = pa.ipc.open_file(str(tmp_path / "out" / shard.index_path)).read_all()
            found.append(np.bincount(index.column("class_id").to_numpy(), minlength=3))
            assert tuple(found[-1]) == shard.class_counts
            data = (tmp_path / "out" / shard.path).read_bytes()
            ends = index.column("offset").to_numpy() + index.column("length").to_numpy()
            assert ends[-1] == len(data) == shard.bytes
        counts = np.stack(found)
        assert np.ptp(counts, axis=0).max() <= 1
        assert np.ptp(counts.sum(axis=1)) <= 1
        assert abs(counts.sum() - share * len(table)) <= 1
        assert tuple(counts.sum(axis=0)) == dataset.manifest.split(split).class_counts
        expected = list(read_records(dataset, split, 10**9))
        statistics = dataset.manifest.split(split).statistics
        assert statistics["price"].mean == pytest.approx(np.mean([row["price"] for row in expected]))
        assert statistics["label"].vocabulary == ("a", "b", "c")


def test_the_index_names_each_record_s_class(parquet: str, tmp_path: Path) -> None:
    dataset = built(parquet, tmp_path / "out", label="label", shards=1)
    ids = (
        pa.ipc.open_file(str(tmp_path / "out" / dataset.shards[0].index_path)).read_all().column("class_id").to_pylist()
    )
    assert [dataset.manifest.classes[i] for i in ids] == [row["label"] for row in read_records(dataset, "train", 600)]


def test_records_of_a_shard_are_shuffled(parquet: str, tmp_path: Path) -> None:
    for seed in (0, 1):
        built(parquet, tmp_path / str(seed), label="label", shards=1, seed=seed)
    labels = [
        [row["label"] for row in read_records(open_dataset(str(tmp_path / name)), "train", 600)] for name in ("0", "1")
    ]
    runs = 1 + sum(a != b for a, b in zip(labels[0], labels[0][1:], strict=False))
    assert runs > 150  # of three classes in order it would be 3; in random order, about 270
    assert labels[0] != labels[1]


def test_workers_change_no_byte(parquet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for workers, shard_format in [(1, "tfrecord"), (2, "tfrecord"), (1, "parquet"), (2, "parquet")]:
        options = {"splits": SPLITS, "shards": 5, "workers": workers, "shard_format": shard_format}
        built(parquet, tmp_path / f"{shard_format}{workers}", label="label", **options)
    for shard_format in ("tfrecord", "parquet"):
        assert contents(tmp_path / f"{shard_format}1") == contents(tmp_path / f"{shard_format}2")


def test_batch_boundaries_change_no_byte(parquet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(parquet, tmp_path / "a", label="label", shards=5)
    monkeypatch.setattr("ringfeed.sharding.sources.tables.parquet.BATCH_ROWS", 17)
    monkeypatch.setattr("ringfeed.sharding.sources.tables.table_files._PART_ROWS", 150)
    built(parquet, tmp_path / "b", label="label", shards=5)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_another_seed_is_another_order_and_split(parquet: str, tmp_path: Path) -> None:
    a, b = (built(parquet, tmp_path / str(seed), label="label", splits=SPLITS, seed=seed) for seed in (0, 1))
    ids = [[row["id"] for row in read_records(d, "test", 600)] for d in (a, b)]
    assert set(ids[0]) != set(ids[1])
    assert ids[0] != sorted(ids[0])


@pytest.mark.parametrize(
    "labels",
    [
        pa.array([True, False, True, False]),
        pa.array([2**64 - 1, 2**63, 2**64 - 1, 2**63], pa.uint64()),
        pa.array([-5, 3, -5, 3], pa.int8()),
        pa.array(["", "ü x", "", "ü x"]),
        pa.array(["b", "a", "b", "a"]).dictionary_encode(),
    ],
    ids=str,
)
def test_labels_of_every_kind_keep_their_values(tmp_path: Path, labels: pa.Array) -> None:
    pq.write_table(pa.table({"id": range(4), "größe, y": labels}), tmp_path / "x.parquet")
    dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", label="größe, y", shards=2)
    assert dataset.manifest.classes == tuple(sorted(set(labels.to_pylist())))
    assert by_id(all_records(dataset)) == [{"id": i, "größe, y": v} for i, v in enumerate(labels.to_pylist())]
    assert [shard.class_counts for shard in dataset.shards] == [(1, 1), (1, 1)]


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_nulls_and_ragged_lists_survive(tmp_path: Path, shard_format: str) -> None:
    table = pa.table(
        {
            "id": range(6),
            "n": pa.array([None, 2**64 - 1, 3, None, 5, 0], pa.uint64()),
            "s": ["", None, "ü", "b", "c", "d"],
            "list": [[], None, [1.5], [2.5, float("inf")], [-0.0], [5.0]],
            "fixed": pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8], [9, 10]], pa.list_(pa.int16(), 2)),
            "half": pa.array(np.arange(6, dtype=np.float16)),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", shards=2, shard_format=shard_format)
    assert dataset.manifest.layout is None
    assert dataset.manifest.classes == (None,)
    assert by_id(all_records(dataset)) == table.to_pylist()
    assert dataset.manifest.split("train").statistics["n"].nulls == 2
    assert dataset.manifest.split("train").statistics["list"].nonfinite == 1


def test_records_are_equal_in_both_formats_whatever_their_shape(tmp_path: Path) -> None:
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.uint8).reshape(4, 2, 3))
    pq.write_table(pa.table({"id": range(4), "image": tensor}), tmp_path / "x.parquet")
    rows = [
        by_id(all_records(built(str(tmp_path / "x.parquet"), tmp_path / form, shard_format=form)))
        for form in ("tfrecord", "parquet")
    ]
    assert rows[0] == rows[1]
    assert rows[0][1]["image"] == [[6, 7, 8], [9, 10, 11]]


class TestAgainstTensorFlow:
    def test_tfrecord_shards_open_with_plain_tensorflow(self, parquet: str, table: pa.Table, tmp_path: Path) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        tf = pytest.importorskip("tensorflow")
        spec = {
            "id": tf.io.FixedLenFeature([], tf.int64),
            "vector": tf.io.FixedLenFeature([4], tf.float32),
            "price": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.string),
        }
        for compression in ("none", "gzip", "zlib"):
            out = tmp_path / compression
            built(parquet, out, label="label", shards=3, compression=compression)
            files = sorted(map(str, out.glob("*.tfrecord")))
            records = tf.data.TFRecordDataset(files, compression_type=compression.upper().replace("NONE", ""))
            parsed = tf.io.parse_example(list(records.as_numpy_iterator()), spec)
            order = np.argsort(parsed["id"].numpy())
            assert np.array_equal(parsed["id"].numpy()[order], np.arange(len(table)))
            vectors = np.array(table.column("vector").to_pylist(), np.float32)
            assert np.array_equal(parsed["vector"].numpy()[order], vectors)
            prices = tf.io.decode_raw(parsed["price"], tf.float64).numpy()[order, 0]
            assert np.array_equal(prices, table.column("price").to_numpy())
            assert [v.decode() for v in parsed["label"].numpy()[order]] == table.column("label").to_pylist()


def test_parquet_shards_open_with_plain_pyarrow(parquet: str, table: pa.Table, tmp_path: Path) -> None:
    built(parquet, tmp_path / "out", label="label", shards=3, shard_format="parquet")
    found = pads.dataset(sorted(map(str, (tmp_path / "out").glob("train-*.parquet")))).to_table().sort_by("id")
    assert found.to_pylist() == table.to_pylist()


def test_a_plan_matches_the_build_and_writes_nothing(parquet: str, tmp_path: Path) -> None:
    seen: list[Progress] = []
    options = BuildOptions(source=parquet, destination=str(tmp_path / "out"), label="label", splits=SPLITS)
    plan = plan_build(options, report=seen.append)
    assert not (tmp_path / "out").exists()
    assert (seen[-1].stage, seen[-1].done, seen[-1].total, seen[-1].records) == ("count", 1, 1, 600)
    manifest = build(options)
    assert [(s.name, s.shards, s.class_counts) for s in plan.assignment.splits] == [
        (name, split.shards, split.class_counts) for name, split in manifest.splits.items()
    ]
    size = sum(shard.bytes for shard in open_dataset(str(tmp_path / "out")).shards) / 600
    assert plan.record_bytes == pytest.approx(size, rel=0.05)


class TestEveryStore:
    def test_a_dataset_is_built_verified_opened_and_replaced(self, store: Store, parquet: str, table: pa.Table) -> None:
        url = store.url + "/set"
        dataset = built(parquet, url, label="label", shards=2)
        assert by_id(all_records(dataset)) == table.to_pylist()
        assert verify(url) == []
        tfds = ["set/dataset_info.json", "set/features.json"]
        own = ["dataset.json", "shards.table", "train-00000-of-00002.index", "train-00001-of-00002.index"]
        names = [*(f"set/_ringfeed/{name}" for name in own), *tfds]
        names += [f"set/train-0000{i}-of-00002.tfrecord" for i in (0, 1)]
        assert store.list() == names
        with pytest.raises(RepeatedError, match=r"already holds a dataset, which this build wrote .* --overwrite"):
            built(parquet, url, label="label", shards=2)
        with pytest.raises(DestinationError, match=r"already holds a dataset; .* --overwrite"):
            built(parquet, url, label="label", shards=1)
        assert store.list() == names
        dataset = built(parquet, url, label="label", shards=1, seed=1, overwrite=True)
        assert by_id(all_records(dataset)) == table.to_pylist()
        own = ["dataset.json", "shards.table", "train-00000-of-00001.index"]
        names = [*(f"set/_ringfeed/{name}" for name in own), *tfds, "set/train-00000-of-00001.tfrecord"]
        assert store.list() == names

    def test_a_flipped_and_a_missing_file_are_named(self, store: Store, parquet: str) -> None:
        built(parquet, store.url, label="label", shards=2)
        name = "train-00001-of-00002.tfrecord"
        data = bytearray(store.read_bytes(name))
        data[len(data) // 2] ^= 1
        store.write_bytes(name, bytes(data))
        store.delete("_ringfeed/train-00000-of-00002.index")
        damages = verify(store.url)
        assert [damage.path for damage in damages] == ["_ringfeed/train-00000-of-00002.index", name]
        assert "is missing" in damages[0].problem
        assert "checksum does not match (record 150 at offset" in damages[1].problem

    def test_a_build_that_fails_leaves_nothing(
        self, store: Store, parquet: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fail_after_first_shard(monkeypatch)
        before = Storage(store.url).absent_folders()
        with pytest.raises(SourceError, match="planted"):
            built(parquet, store.url + "/deep/er", label="label", shards=2)
        assert store.list() == []
        assert Storage(store.url).absent_folders() == before
        if store.name != "s3":
            assert len(Storage(store.url + "/deep").absent_folders()) == 1

    def test_a_replacement_that_fails_leaves_the_old_dataset(
        self, store: Store, parquet: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        built(parquet, store.url, label="label", shards=2)
        before = {name: store.read_bytes(name) for name in store.list()}
        fail_after_first_shard(monkeypatch)
        with pytest.raises(SourceError, match="planted"):
            built(parquet, store.url, label="label", shards=2, seed=1, overwrite=True)
        assert {name: store.read_bytes(name) for name in store.list()} == before


def fail_after_first_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    original = write_module.summarise
    seen: list[str] = []

    def fail(column: pa.Array, feature: Any) -> Any:
        seen.append(feature.name)
        if seen.count("id") > 1:
            raise SourceError("planted")
        return original(column, feature)

    monkeypatch.setattr(write_module, "summarise", fail)


def test_a_failing_worker_leaves_nothing(tmp_path: Path, nothing_left: Path) -> None:
    """Others go on writing while one fails: what they write last must go, too."""
    folder = tmp_path / "images"
    for i in range(40):
        (folder / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        (folder / f"c{i % 2}" / f"{i:03}.gif").write_bytes(b"GIF89a" if i == 17 else TINY_GIF)
    with pytest.raises(SourceError, match=r"017.gif"):
        built(str(folder), nothing_left, shards=10, workers=2)


TINY_GIF = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")


def test_an_interrupt_before_a_shard_is_finished_leaves_nothing(
    parquet: str, nothing_left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Storage.write

    def interrupted(self: Storage, path: str, data: bytes, **how: Any) -> None:
        if not is_heartbeat():
            raise KeyboardInterrupt
        write(self, path, data, **how)

    monkeypatch.setattr(Storage, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        built(parquet, nothing_left, label="label", shards=3)


def test_a_failed_swap_leaves_no_half_dataset(parquet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(parquet, tmp_path / "out", label="label", shards=2)

    def fail(*_: object) -> None:
        raise RingfeedError("planted")

    monkeypatch.setattr(Storage, "move", fail)
    with pytest.raises(RingfeedError, match="planted"):
        built(parquet, tmp_path / "out", label="label", shards=2, overwrite=True)
    assert [p for p in (tmp_path / "out").rglob("*") if p.is_file()] == []


def test_a_dataset_written_before_the_lease_is_taken_is_not_overwritten(
    parquet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(parquet, tmp_path / "out", label="label", shards=2)
    before = contents(tmp_path / "out")
    monkeypatch.setattr(destination_module, "check_destination", lambda *_: False)  # as it was seen
    with pytest.raises(DestinationError, match="already holds a dataset"):
        built(parquet, tmp_path / "out", label="label", shards=3)
    assert contents(tmp_path / "out") == before


def test_a_dataset_committed_by_another_build_in_the_meantime_is_an_error(parquet: str, tmp_path: Path) -> None:
    def intrude(progress: Progress) -> None:
        if progress.stage == "write" and progress.done == 1:
            (tmp_path / "out" / "_ringfeed/dataset.json").write_text("{}")

    options = BuildOptions(source=parquet, destination=str(tmp_path / "out"), label="label", shards=2)
    with pytest.raises(DestinationError, match="was filled by another build in the meantime"):
        build(options, report=intrude)


def test_leftovers_of_a_killed_build_are_removed(parquet: str, tmp_path: Path) -> None:
    whole = files_of_build(parquet, tmp_path / "whole")
    out = tmp_path / "out"
    out.mkdir()
    for name in ("_building.json", "train-00000-of-00099.tfrecord", ".x.0011aabb.part"):
        (out / name).write_bytes(b"debris")
    with pytest.raises(RingfeedError, match="no dataset at"):
        open_dataset(str(out))
    options = BuildOptions(source=parquet, destination=str(out), label="label", shards=3)
    build_at(Storage(str(out), timings=StoreTimings(silent_seconds=0.1)), options, None, ignore)
    assert contents(out) == whole


def files_of_build(parquet: str, out: Path) -> dict[str, bytes]:
    built(parquet, out, label="label", shards=3)
    result: dict[str, bytes] = contents(out)
    return result


@pytest.mark.parametrize(
    "files", [["notes.txt"], ["train-00000-of-00001.tfrecord"], ["_building.json", "sub/mine.csv"]]
)
def test_a_folder_with_other_files_is_left_alone(parquet: str, tmp_path: Path, files: list[str]) -> None:
    out = tmp_path / "out"
    for name in files:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(b"mine")
    for overwrite in (False, True):
        with pytest.raises(DestinationError, match="is not empty and holds no dataset"):
            built(parquet, out, label="label", overwrite=overwrite)
    assert sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()) == files


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ("{}/a", "{}/a", "is the source itself"),
        ("{}/a", "{}/a/", "is the source itself"),
        ("{}/a", "{}/x/../a/b", "lies inside the source"),
        ("{}/a/b.csv", "{}/a", "lies inside the destination"),
        ("{}/a/*.csv", "{}/a", "lies inside the destination"),
        ("{}/a/*/x.csv", "{}", "lies inside the destination"),
        ("s3://b/a", "s3://b/a/", "is the source itself"),
        ("s3://b/a", "s3://b/a/b", "lies inside the source"),
    ],
)
def test_source_and_destination_must_not_overlap(tmp_path: Path, source: str, destination: str, message: str) -> None:
    with pytest.raises(DestinationError, match=message):
        build(BuildOptions(source=source.format(tmp_path), destination=destination.format(tmp_path)))


@pytest.mark.parametrize("spill", ["out", "out/", "out/spill", "x/../out"])
def test_nothing_is_spilled_into_the_destination(parquet: str, tmp_path: Path, spill: str) -> None:
    with pytest.raises(DestinationError, match=r"--spill .* lies inside the destination .*/out; choose another"):
        built(parquet, tmp_path / "out", label="label", spill=f"{tmp_path}/{spill}")
    assert not (tmp_path / "out").exists()
    built(parquet, tmp_path / "out", label="label", shards=2, spill=f"{tmp_path}/out-spill")


@pytest.mark.parametrize(("source", "records"), [("{}/*.csv", [1, 2]), ("{}/ab", [3, 4]), ("{}/a.csv", [1, 2])])
def test_neighbouring_folders_do_not_overlap(
    tmp_path: Path, source: str, records: list[int], write_csv: Callable[..., str]
) -> None:
    write_csv(["x"], [1], [2], name="a.csv")
    (tmp_path / "ab").mkdir()
    write_csv(["x"], [3], [4], name="ab/c.csv")
    dataset = built(source.format(tmp_path), tmp_path / "a")
    assert sorted(row["x"] for row in all_records(dataset)) == records


@pytest.mark.parametrize(
    ("column", "label", "message"),
    [
        (
            pa.array(["a", None, "a"]),
            "x",
            r"record 1 \(from 0\) has no value for the label 'x'; .* --filter 'x is not null', ",
        ),
        (pa.array([1.5, 2.5, 1.5]), "x", "'x' holds 1.5, and only whole numbers make classes"),
        (pa.array([[1], [1], [1]]), "x", "'x' holds lists of int64 of any length, which make no classes"),
        (
            pa.array([["a", "b"], ["c", "d"]], pa.list_(pa.string(), 2)),
            "x",
            r"'x' holds lists of string of shape \[2\], which make no",
        ),
        (pa.array([b"a", b"a"]), "x", "'x' holds bytes, .* --cast x=string"),
        (
            pa.array([1.0, float("nan"), 1.0]),
            "x",
            r"record 1 \(from 0\) has no value for the label 'x'; .* 'x - x == 0'",
        ),
        (pa.array([1e300, 1e300]), "x", r"'x' holds 1e\+300, and only whole numbers make classes"),
        (pa.array([[1, None], [1, 2], [1, 2]]), None, "column 'x' hold nulls; .* --mask-nulls x, .* --drop-nulls"),
        (pa.array([[1, None], [1, 2], [1, 2]], pa.list_(pa.int64(), 2)), None, "lists in column 'x' hold nulls"),
        (pa.array(["a", "b", "a"]), "x", "class 'b' has 1 record, fewer than 2"),
        (pa.array([], pa.string()), "x", "holds no records"),
        (pa.array([], pa.string()), None, "holds no records"),
    ],
)
def test_data_that_cannot_be_sharded_is_refused(
    tmp_path: Path, nothing_left: Path, column: pa.Array, label: str | None, message: str
) -> None:
    pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=message):
        built(str(tmp_path / "x.parquet"), nothing_left, label=label)


def test_a_source_changed_between_the_passes_is_detected(parquet: str, table: pa.Table, nothing_left: Path) -> None:
    def change(progress: Progress) -> None:
        if progress.stage == "count" and progress.done == 1:
            pq.write_table(table.slice(0, 599).append_column("new", pa.array(range(599))), parquet, row_group_size=100)

    options = BuildOptions(source=parquet, destination=str(nothing_left), label="label", shards=2)
    with pytest.raises(SourceError, match=r"source\.parquet: the file changed while the source was read"):
        build(options, report=change)


@pytest.fixture
def halves(table: pa.Table, tmp_path: Path) -> Path:
    """A folder of two files with 300 records each."""
    (tmp_path / "halves").mkdir()
    for number in range(2):
        pq.write_table(table.slice(300 * number, 300), tmp_path / "halves" / f"{number}.parquet")
    return tmp_path / "halves"


def test_a_file_replaced_by_a_similar_one_between_the_passes_is_detected(
    halves: Path, tmp_path: Path, nothing_left: Path
) -> None:
    def change(progress: Progress) -> None:
        if progress.stage == "count" and progress.done == progress.total:
            table = pq.read_table(halves / "1.parquet")
            pq.write_table(table.set_column(0, "id", pa.array(range(300))), tmp_path / "like-it.parquet")
            (tmp_path / "like-it.parquet").replace(halves / "1.parquet")

    options = BuildOptions(source=str(halves), destination=str(nothing_left), label="label", shards=2)
    with pytest.raises(
        SourceError, match=r"halves/1\.parquet: the file changed while the source was read; build again"
    ):
        build(options, report=change)


def test_files_that_come_and_go_during_a_build_do_not_matter(halves: Path, tmp_path: Path) -> None:
    def change(progress: Progress) -> None:
        if progress.stage == "partition" and progress.done == progress.total:
            (halves / "1.parquet").rename(halves / "2.parquet")

    built(str(halves), tmp_path / "undisturbed", label="label", shards=2)
    build(BuildOptions(source=str(halves), destination=str(tmp_path / "out"), label="label", shards=2), report=change)
    assert contents(tmp_path / "out") == contents(tmp_path / "undisturbed")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_source_that_goes_missing_between_the_passes_is_named(
    table: pa.Table, tmp_path: Path, nothing_left: Path, suffix: str
) -> None:
    source = tmp_path / f"x.{suffix}"
    rows = table.select(["id", "label"])
    (pq.write_table if suffix == "parquet" else pacsv.write_csv)(rows, source)

    def remove(progress: Progress) -> None:
        if progress.stage == "count" and progress.done == progress.total:
            source.unlink(missing_ok=True)

    options = BuildOptions(source=str(source), destination=str(nothing_left), label="label", shards=2)
    with pytest.raises(SourceError, match=rf"was removed while the source was read: .*/x\.{suffix}; check its name"):
        build(options, report=remove)


def test_paths_are_accepted_as_urls(parquet: str, tmp_path: Path) -> None:
    source, out = Path(parquet), tmp_path / "out"
    build(BuildOptions(source=source, destination=out, label="label", spill=tmp_path / "spill"))  # type: ignore[arg-type]
    build(BuildOptions(source=parquet, destination=str(tmp_path / "same"), label="label"))
    assert contents(out) == contents(tmp_path / "same")
    append(AppendOptions(source=source, destination=out, again=True))  # type: ignore[arg-type]
    export(ExportOptions(url=out, destination=tmp_path / "tars", to="webdataset"))  # type: ignore[arg-type]
    repair(out, originals=[Original(url=source)], spill=tmp_path / "spill")  # type: ignore[arg-type]
    assert [Path(url).name for url in clean(out, spill=tmp_path / "spill")] == ["shards.table"]
    for wrong in (3, None, b"x", ""):
        with pytest.raises(ConfigError, match="source must be a URL or a path, got"):
            BuildOptions(source=wrong, destination="x")  # type: ignore[arg-type]


def test_a_source_that_grows_between_the_passes_is_detected(tmp_path: Path, nothing_left: Path) -> None:
    source = tmp_path / "x.parquet"
    pq.write_table(make_table(600), source)

    def grow(progress: Progress) -> None:
        if progress.stage == "count" and progress.done == progress.total:
            pq.write_table(make_table(900), source)

    options = BuildOptions(source=str(source), destination=str(nothing_left), label="label", min_class_records=1)
    with pytest.raises(SourceError, match="the source changed while it was read: there are records that the first"):
        build(options, report=grow)
