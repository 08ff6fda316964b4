"""Appending to every kind of dataset: with companion files, split by a column, balanced by bytes."""

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import (
    ConfigError,
    CorruptionError,
    Dataset,
    DestinationError,
    ExportOptions,
    Original,
    SourceError,
    check_dataset,
    clean,
    export,
    open_dataset,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.tfds_files import TFDS_NAMES, tfds_obstacle
from ringfeed.sharding.prepare import Drop, Encoding, ImageOptions, PrepareOptions, Size
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.appending import appended
from tests.helpers.builds import built, make_table
from tests.helpers.files import contents
from tests.helpers.rebuilding import spoil

OLD, NEW = 600, 300


@pytest.fixture
def newer(tmp_path: Path) -> str:
    """Records like those of `parquet`, with numbers of their own."""
    path = tmp_path / "newer.parquet"
    pq.write_table(make_table(NEW).set_column(0, "id", pa.array(np.arange(NEW) + OLD)), path, row_group_size=100)
    return str(path)


def rows_of(dataset: Dataset, split: str) -> list[dict[str, Any]]:
    return list(read_records(dataset, split, 10**9))


# --- files for other programs, and of records that were passed over ----------------------------------------------


def test_metadata_that_an_append_invalidates_are_removed(parquet: str, newer: str, tmp_path: Path) -> None:
    before = built(parquet, tmp_path / "out", label="label", shards=2).manifest
    assert set(TFDS_NAMES) <= set(before.files)
    for _ in (1, 2):
        dataset = appended(newer, tmp_path / "out", again=True)
        found = {name for name in dataset.manifest.files if name.endswith(TFDS_NAMES)}
        assert found == set(TFDS_NAMES)
    assert tfds_obstacle(dataset.manifest, dataset.shards) == ""
    name = min(found)
    data = (tmp_path / "out" / name).read_bytes()
    (tmp_path / "out" / name).write_bytes(data[:-9])
    assert [damage.path for damage in verify(str(tmp_path / "out"), deep=True)] == [name]
    repair(str(tmp_path / "out"))
    assert (tmp_path / "out" / name).read_bytes() == data


def test_each_generation_has_indexes_for_dali(parquet: str, newer: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    built(parquet, out, label="label", shards=2, dali_index=True)
    dataset = appended(newer, out, shards=2)
    names = {shard.dali_path for shard in dataset.shards}
    assert {name for name in dataset.manifest.files if name.endswith(".idx")} == names
    assert len(names) == 4
    name = next(name for name in sorted(names) if "-g00001-" in name)
    data = (out / name).read_bytes()
    (out / name).write_bytes(data[:-1])
    assert [damage.path for damage in verify(str(out))] == [name]
    repair(str(out))
    assert (out / name).read_bytes() == data


def test_each_generation_lists_the_records_that_it_skipped(tmp_path: Path) -> None:
    def lines(first: int) -> str:
        good = [json.dumps({"id": i, "label": "ab"[i % 2]}) for i in range(first, first + 40)]
        return "\n".join([*good[:7], "{", *good[7:], ""])

    for number in (0, 1, 2):
        (tmp_path / f"{number}.jsonl").write_text(lines(100 * number))
    out = tmp_path / "out"
    built(str(tmp_path / "0.jsonl"), out, label="label", shards=2, on_bad_record="skip:1")
    for number in (1, 2):
        manifest = appended(str(tmp_path / f"{number}.jsonl"), out, on_bad_record="skip:1").manifest
    assert manifest.records == 120
    names = [f"_ringfeed/rejected{number}.jsonl" for number in ("", "-g00001", "-g00002")]
    assert [name for name in manifest.files if name.endswith(".jsonl")] == names
    assert [Path(json.loads((out / name).read_text())["source"]).name for name in names] == [
        "0.jsonl", "1.jsonl", "2.jsonl",
    ]  # fmt: skip
    assert verify(str(out)) == []
    clean(Storage(str(out)))
    assert set(names) <= set(contents(out))


def test_clean_removes_replaced_tables_and_leaves_foreign_files(parquet: str, newer: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    built(parquet, out, label="label", shards=2)
    appended(newer, out)
    appended(newer, out, again=True)
    (out / "other-00000-of-00001.tfrecord").write_bytes(b"of another program")
    before = contents(out)
    removed = clean(Storage(str(out)))
    assert sorted(Path(url).name for url in removed) == ["shards-g00001.table", "shards.table"]
    assert before.keys() - contents(out).keys() == {"_ringfeed/shards-g00001.table", "_ringfeed/shards.table"}
    assert check_dataset(str(out), deep=True).damages == ()
    assert clean(Storage(str(out))) == []


# --- splits by a column, groups, balance by bytes ----------------------------------------------------------------


def folds(rows: int, first: int, names: str) -> pa.Table:
    ids = np.arange(first, first + rows)
    fold = pa.array([names[i % len(names)] for i in range(rows)])
    return pa.table({"id": pa.array(ids), "fold": fold, "label": pa.array(ids % 3)})


@pytest.mark.parametrize("balance", ["records", "bytes"])
@pytest.mark.parametrize("dropped", [False, True])
def test_the_column_names_the_splits_of_new_records_too(tmp_path: Path, dropped: bool, balance: str) -> None:
    pq.write_table(folds(120, 0, "xy"), tmp_path / "old.parquet")
    pq.write_table(folds(90, 1000, "yzz").select(["label", "fold", "id"]), tmp_path / "new.parquet")
    prepare = PrepareOptions(steps=(Drop(("fold",)),)) if dropped else PrepareOptions()
    how: dict[str, Any] = {"label": "label", "split_column": "fold", "balance": balance, "prepare": prepare}
    built(str(tmp_path / "old.parquet"), tmp_path / "out", shards=2, **how)
    dataset = appended(str(tmp_path / "new.parquet"), tmp_path / "out", shards=2)
    expected = {"x": range(0, 120, 2), "y": [*range(1, 120, 2), *range(1000, 1090, 3)]}
    expected["z"] = [i for i in range(1000, 1090) if i % 3 != 1]
    assert list(dataset.manifest.splits) == ["x", "y", "z"]
    for split, ids in expected.items():
        assert sorted(row["id"] for row in rows_of(dataset, split)) == list(ids)
    assert dataset.manifest.schema.names == (("id", "label") if dropped else ("id", "fold", "label"))
    assert verify(str(tmp_path / "out"), deep=True) == []


def test_shares_may_replace_the_split_column(tmp_path: Path) -> None:
    pq.write_table(folds(120, 0, "xy"), tmp_path / "old.parquet")
    pq.write_table(folds(90, 1000, "q"), tmp_path / "new.parquet")
    built(str(tmp_path / "old.parquet"), tmp_path / "out", label="label", split_column="fold", shards=2)
    splits = {"x": Fraction(2, 3), "y": Fraction(1, 3)}
    dataset = appended(str(tmp_path / "new.parquet"), tmp_path / "out", splits=splits)
    assert {name: split.records for name, split in dataset.manifest.splits.items()} == {"x": 120, "y": 90}


def test_a_source_without_the_column_is_refused(tmp_path: Path) -> None:
    pq.write_table(folds(120, 0, "xy"), tmp_path / "old.parquet")
    pq.write_table(folds(90, 1000, "x").drop_columns(["fold"]), tmp_path / "new.parquet")
    prepare = PrepareOptions(steps=(Drop(("fold",)),))
    built(str(tmp_path / "old.parquet"), tmp_path / "out", label="label", split_column="fold", prepare=prepare)
    before = contents(tmp_path / "out")
    with pytest.raises(ConfigError, match="--split-column: there is no column 'fold'"):
        appended(str(tmp_path / "new.parquet"), tmp_path / "out", as_is=True)
    assert contents(tmp_path / "out") == before


HALVES = {"train": Fraction(1, 2), "test": Fraction(1, 2)}


def grouped(folder: Path, **options: Any) -> Path:
    """A dataset divided by groups, and other records of some of them beside it: two more generations."""
    for name, table in {
        "old": folds(120, 0, "abcdefgh"),
        "new": folds(90, 1000, "abhvwxyz"),
        "last": folds(60, 2000, "avkl"),
    }.items():
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=25)
    built(
        str(folder / "old.parquet"), folder / "out", label="label", group_by="fold", splits=HALVES, shards=2, **options
    )
    return folder / "out"


@pytest.mark.parametrize("split", HALVES)
def test_all_new_records_may_be_of_groups_of_one_split(tmp_path: Path, split: str) -> None:
    out = grouped(tmp_path)
    before = open_dataset(str(out))
    groups = sorted({row["fold"] for row in rows_of(before, split)})
    pq.write_table(folds(30, 5000, "".join(groups)), tmp_path / "more.parquet")
    dataset = appended(str(tmp_path / "more.parquet"), out)
    for name, known in before.manifest.splits.items():
        assert dataset.manifest.splits[name].records == known.records + 30 * (name == split)
    assert not check_dataset(str(out), deep=True).damages


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("balance", ["records", "bytes"])
def test_a_group_stays_in_its_split_and_new_groups_are_split(tmp_path: Path, shard_format: str, balance: str) -> None:
    out = grouped(tmp_path, shard_format=shard_format, balance=balance)
    of = {row["fold"]: split for split in HALVES for row in rows_of(open_dataset(str(out)), split)}
    for name, records in (("new", 210), ("last", 270)):
        dataset = appended(str(tmp_path / f"{name}.parquet"), out)
        found = {(row["fold"], split) for split in HALVES for row in rows_of(dataset, split)}
        assert len(found) == len({fold for fold, _ in found})  # no group on both sides
        assert all((fold, split) in found for fold, split in of.items())
        assert dataset.manifest.records == records
        of = dict(found)
        assert abs(dataset.manifest.splits["train"].records / records - 0.5) < 0.1
    assert not check_dataset(str(out), deep=True).damages


def test_a_damaged_generation_of_groups_is_rebuilt(tmp_path: Path) -> None:
    out = grouped(tmp_path)
    appended(str(tmp_path / "new.parquet"), out)
    dataset = appended(str(tmp_path / "last.parquet"), out)
    before = contents(out)
    shard = next(s for s in dataset.shards if generation_of(s.path) == 1)
    (out / shard.path).write_bytes(b"nothing")
    repair(str(out), originals=[Original(url=str(tmp_path / "new.parquet"))])
    assert contents(out) == before


def test_groups_that_are_not_stored_are_not_appended_to(tmp_path: Path) -> None:
    out = grouped(tmp_path, prepare=PrepareOptions(steps=(Drop(("fold",)),)))
    before = contents(out)
    with pytest.raises(ConfigError, match=r"with --group-by fold but .* rebuild all records with --group-by fold"):
        appended(str(tmp_path / "new.parquet"), out)
    assert contents(out) == before


def test_all_splits_must_be_named_where_groups_stay_in_theirs(tmp_path: Path) -> None:
    out = grouped(tmp_path)
    with pytest.raises(ConfigError, match="--split must name all splits; it lacks test"):
        appended(str(tmp_path / "new.parquet"), out, splits={"train": Fraction(1, 2), "val": Fraction(1, 2)})


def test_groups_are_not_read_from_a_damaged_shard(tmp_path: Path) -> None:
    out = grouped(tmp_path)
    (out / open_dataset(str(out)).shards[0].path).write_bytes(b"nothing")
    before = contents(out)
    with pytest.raises(CorruptionError, match=r"splits of the groups .* repair them first"):
        appended(str(tmp_path / "new.parquet"), out)
    assert contents(out) == before


def test_new_shards_are_alike_in_bytes_where_the_old_ones_are(tmp_path: Path) -> None:
    def texts(rows: int, seed: int) -> pa.Table:
        lengths = np.random.default_rng(seed).lognormal(5, 1.2, rows).astype(int)
        return pa.table({"id": np.arange(rows) + 10_000 * seed, "text": ["x" * n for n in lengths]})

    for seed in (0, 1):
        pq.write_table(texts(2000, seed), tmp_path / f"{seed}.parquet")
    built(str(tmp_path / "0.parquet"), tmp_path / "out", shards=4, balance="bytes")
    dataset = appended(str(tmp_path / "1.parquet"), tmp_path / "out", shards=4)
    sizes = [shard.bytes for shard in dataset.shards if generation_of(shard.path) == 1]
    assert len(sizes) == 4
    assert max(sizes) / min(sizes) < 1.01
    assert len(rows_of(dataset, "train")) == 4000


# --- what else is done with a dataset ----------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "suffix"), [("hf", "parquet"), ("webdataset", "tar")])
def test_all_generations_are_exported(parquet: str, newer: str, tmp_path: Path, to: str, suffix: str) -> None:
    built(parquet, tmp_path / "out", label="label", shards=3)
    appended(newer, tmp_path / "out", shards=2)
    written = export(ExportOptions(url=str(tmp_path / "out"), destination=str(tmp_path / "there"), to=to))
    assert written.records == OLD + NEW
    assert sorted(path.name for path in (tmp_path / "there").rglob(f"*.{suffix}")) == [
        f"train-{i:05d}-of-00005.{suffix}" for i in range(5)
    ]


def test_types_are_those_of_the_dataset_with_a_schema_file_too(write_csv: Callable[..., str], tmp_path: Path) -> None:
    from ringfeed.sharding import Feature

    prepare = PrepareOptions(features={"code": Feature(name="code", dtype="string")})
    old = write_csv(["code", "label"], *([i, i % 2] for i in range(40)), name="old.csv")
    new = write_csv(["code", "label"], *([i, i % 2] for i in range(40, 80)), name="new.csv")
    built(old, tmp_path / "out", label="label", shards=2, prepare=prepare)
    rows = rows_of(appended(new, tmp_path / "out"), "train")
    assert sorted(int(row["code"]) for row in rows) == list(range(80))


# --- repair from the sources of the generations ------------------------------------------------------------------


def integers(first: int, rows: int, path: Path) -> str:
    ids = np.arange(first, first + rows)
    pq.write_table(pa.table({"id": pa.array(ids), "label": pa.array(ids % (3 if first == 0 else 4))}), path)
    return str(path)


@pytest.fixture(params=["layout kept", "layout ended", "parquet"])
def three(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    """A dataset of three generations, and their sources; of TFRecords, the last may have ended the common layout."""
    last = 400 if request.param == "layout kept" else 1_000_000
    sources = [integers(first, 160, tmp_path / f"{first}.parquet") for first in (0, 200, last)]
    shard_format = "parquet" if request.param == "parquet" else "tfrecord"
    splits = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
    dataset = built(sources[0], tmp_path / "out", label="label", shards=2, splits=splits, shard_format=shard_format)
    assert (dataset.manifest.layout is None) == (shard_format == "parquet")
    for source in sources[1:]:
        dataset = appended(source, tmp_path / "out", shards=2)
    assert (dataset.manifest.layout is None) == (request.param != "layout kept")
    assert dataset.manifest.classes == (0, 1, 2, 3)
    return tmp_path / "out", sources


def test_the_draft_of_a_shard_of_a_generation_is_removed(three: tuple[Path, list[str]]) -> None:
    before = contents(three[0])
    name = next(name for name in before if name.startswith("train-g00001-00000"))
    (three[0] / f".{name}.0123abcd.part").write_bytes(b"cut short")
    (three[0] / ".another program's.0123abcd.part").write_bytes(b"cut short")
    repair(str(three[0]))
    left = contents(three[0]).keys() - before.keys()
    assert left == {".another program's.0123abcd.part"}


@pytest.mark.parametrize("number", [0, 1, 2])
def test_lost_shards_are_rebuilt_from_the_source_of_their_generation(
    three: tuple[Path, list[str]], number: int
) -> None:
    out, sources = three
    before = contents(out)
    shards = [shard for shard in open_dataset(str(out)).shards if generation_of(shard.path) == number]
    spoil(out / shards[0].path)
    (out / shards[-1].path).unlink()
    with pytest.raises(SourceError, match=f"is not what generation {number} of .* was built from"):
        repair(str(out), originals=[Original(url=integers(7, 50, out.parent / "other.parquet"))])
    assert repair(str(out), originals=[Original(url=sources[number])]).lost == ()
    assert contents(out) == before


def test_shards_of_other_generations_are_left_for_their_source(
    three: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    from ringfeed.tools.shard_dataset.program import main

    out, sources = three
    before = contents(out)
    shards = {generation_of(shard.path): shard for shard in open_dataset(str(out)).shards}
    spoil(out / shards[0].path)
    spoil(out / shards[2].path)
    assert main(["repair", str(out), "--source", sources[2], "--json"]) == 0
    remedies = {entry["path"]: entry for entry in json.loads(capsys.readouterr().out)["remedies"]}
    assert remedies[shards[2].path]["action"] == "rebuild"
    assert remedies[shards[0].path]["action"] == "leave"
    assert f"its records came from {sources[0]}" in remedies[shards[0].path]["how"]
    assert {damage.path for damage in verify(str(out))} == {shards[0].path}
    assert main(["repair", str(out), "--source", sources[0]]) == 0
    assert "repaired 1 damaged file; no record is lost" in capsys.readouterr().out
    assert contents(out) == before


# --- doubles of what is there ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
@pytest.mark.parametrize("columns", [(), ("id",)])
def test_duplicates_of_existing_records_are_not_appended(
    parquet: str, tmp_path: Path, shard_format: str, columns: tuple[str, ...]
) -> None:
    built(parquet, tmp_path / "out", label="label", shards=3, shard_format=shard_format)
    fresh = make_table(OLD).slice(0, NEW).set_column(0, "id", pa.array(np.arange(NEW) + OLD))
    more = pa.concat_tables([make_table(OLD).slice(200, 100), fresh, fresh.slice(0, 50)])
    pq.write_table(more, tmp_path / "more.parquet", row_group_size=90)
    prepare = PrepareOptions(dedup=columns)
    dataset = appended(str(tmp_path / "more.parquet"), tmp_path / "out", prepare=prepare, shards=2)
    assert sorted(row["id"] for row in rows_of(dataset, "train")) == list(range(OLD + NEW))
    before = contents(tmp_path / "out")
    with pytest.raises(DestinationError, match="already: they were appended as generation 1"):
        appended(str(tmp_path / "more.parquet"), tmp_path / "out", prepare=prepare)
    with pytest.raises(SourceError, match=r"source.parquet \(after .*--dedup.*\) holds no records"):
        appended(parquet, tmp_path / "out", prepare=PrepareOptions(dedup=(*columns, "price")), again=False)
    assert contents(tmp_path / "out") == before
    shard = next(s for s in dataset.shards if generation_of(s.path) == 1)
    (tmp_path / "out" / shard.path).write_bytes(b"nothing")
    repair(str(tmp_path / "out"), originals=[Original(url=str(tmp_path / "more.parquet"))])
    assert contents(tmp_path / "out") == before


def write_photos(folder: Path, colours: range) -> str:
    """An image of each colour, and of the last one two."""
    for number, colour in enumerate([*colours, colours[-1]]):
        path = folder / "ab"[number % 2] / f"{number}-{colour}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (20 * colour, 0, 0)).save(path)
    return str(folder)


@pytest.mark.parametrize("policy", ["fail", "skip:1"])
@pytest.mark.parametrize(
    "images", [None, ImageOptions(size=Size(width=3)), ImageOptions(encoding=Encoding(form="jpeg"))]
)
def test_images_are_compared_with_the_stored_ones(tmp_path: Path, images: ImageOptions | None, policy: str) -> None:
    old, new = write_photos(tmp_path / "old", range(6)), write_photos(tmp_path / "new", range(4, 10))
    prepare = PrepareOptions(dedup=("image",), images=images)
    built(old, tmp_path / "out", shards=1, prepare=prepare)
    dataset = appended(new, tmp_path / "out", shards=1, prepare=prepare, on_bad_record=policy)
    rows = rows_of(dataset, "train")
    assert sorted(row["path"].partition("-")[2] for row in rows) == [f"{colour}.png" for colour in range(10)]
    with pytest.raises(SourceError, match=r"holds no records"):
        appended(write_photos(tmp_path / "all", range(2, 8)), tmp_path / "out", prepare=prepare, on_bad_record=policy)


# --- the table lost together with shards -------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [0, 1])
def test_a_table_lost_with_shards_of_a_generation_is_rebuilt_from_its_source(
    parquet: str, newer: str, tmp_path: Path, generation: int
) -> None:
    out = tmp_path / "out"
    splits = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
    built(parquet, out, label="label", shards=3, splits=splits)
    dataset = appended(newer, out, shards=2)
    clean(Storage(str(out)))
    before = contents(out)
    (out / dataset.manifest.shards_path).unlink()
    damaged = [shard for shard in dataset.shards if generation_of(shard.path) == generation]
    (out / damaged[0].path).unlink()
    (out / damaged[1].index_path).write_bytes(b"nothing")
    with pytest.raises(CorruptionError, match="and the source of each other generation whose shards are damaged"):
        repair(str(out))
    told = ["shards of generation 0 are damaged as well; .* repair with", "cannot be rebuilt from|is not what"]
    with pytest.raises(CorruptionError, match=told[generation]):
        repair(str(out), originals=[Original(url=[newer, parquet][generation])])
    repair(str(out), originals=[Original(url=[parquet, newer][generation])])
    assert contents(out) == before
