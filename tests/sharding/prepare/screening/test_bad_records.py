"""Bad records (also `image_checks`, `record_origins`) are skipped within a budget, named, and counted nowhere."""

import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow import feather, orc

from ringfeed.sharding import (
    AppendOptions,
    ConfigError,
    Feature,
    Original,
    SourceError,
    append,
    read_records,
    repair,
    verify,
)
from ringfeed.sharding.dataset.file_names import NAMES
from ringfeed.sharding.prepare import Drop, DropNulls, Filter, ImageOptions, MapBatches, PrepareOptions, Size, Step
from ringfeed.sharding.prepare.screening.bad_records import LenientSource, parse_budget
from ringfeed.sharding.sources import open_source
from tests.helpers.builds import built
from tests.helpers.files import contents


def rejected(folder: Path) -> list[dict[str, Any]]:
    path = folder / "_ringfeed/rejected.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_images(folder: Path, bad: set[int]) -> str:
    for i in range(40):
        target = folder / f"c{i % 2}" / f"{i:03}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        sink = BytesIO()
        Image.fromarray(np.full((4, 4, 3), i, np.uint8)).save(sink, "PNG")
        target.write_bytes(sink.getvalue()[: 30 if i in bad else None])
    return str(folder)


@pytest.mark.parametrize("workers", [1, 2])
def test_damaged_images_are_skipped_and_balance_holds(tmp_path: Path, workers: int) -> None:
    source = write_images(tmp_path / "images", {3, 8, 9})
    out = tmp_path / "out"
    dataset = built(source, out, shards=4, workers=workers, on_bad_record="skip:3")
    assert dataset.manifest.records == 37
    assert {tuple(shard.class_counts) for shard in dataset.shards} <= {(4, 4), (5, 4), (4, 5), (5, 5)}
    names = {Path(entry["source"]).name for entry in rejected(out)}
    assert names == {"003.png", "008.png", "009.png"}
    assert all(entry["reason"] and " at 0x" not in entry["reason"] for entry in rejected(out))
    assert verify(str(out)) == []


def test_where_all_records_are_bad_the_error_says_so(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2], "y": pa.nulls(2, pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"only bad records, 2 of them; .*no value for the label"):
        built(str(tmp_path / "a.parquet"), tmp_path / "out", label="y", on_bad_record="skip:2")
    assert not (tmp_path / "out").exists()


def unpreparable(folder: Path) -> str:
    """A folder of images of which two are whole as far as their formats tell: of fractions, and of broken codes."""
    write_images(folder, {3})
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / "c0" / "fractions.tif")
    sink = BytesIO()
    Image.fromarray(np.full((40, 40), 9, np.uint8)).save(sink, "JPEG")
    data = bytearray(sink.getvalue())
    codes = data.index(b"\xff\xc4") + 5
    data[codes : codes + 16] = b"\xfe" * 16
    (folder / "c1" / "codes.jpg").write_bytes(data)
    return str(folder)


@pytest.mark.parametrize("form", ["folder", "list", "table", "dataset"])
def test_images_that_cannot_be_transformed_are_skipped(tmp_path: Path, form: str) -> None:
    source = folder = unpreparable(tmp_path / "images")
    paths = [str(path) for path in sorted(Path(folder).rglob("*.*")) if path.name != "003.png" or form == "folder"]
    labels = [Path(path).parent.name for path in paths]
    prepare = PrepareOptions(images=ImageOptions(size=Size(width=3)))
    how: dict[str, Any] = {"label": "label", "shards": 2, "prepare": prepare}
    if form == "list":
        pq.write_table(pa.table({"path": paths, "label": labels}), source := str(tmp_path / "list.parquet"))
        how["source_kind"] = "image-list"
    elif form != "folder":
        features = {"photo": Feature(name="photo", dtype="binary", encoding="image")}
        table = pa.table({"photo": [Path(path).read_bytes() for path in paths], "label": labels})
        pq.write_table(table, source := str(tmp_path / "table.parquet"))
        how["prepare"] = replace(prepare, features=features)
    if form == "dataset":
        built(source, tmp_path / "first", **{**how, "prepare": PrepareOptions(features=features)})
        source, how["prepare"] = str(tmp_path / "first"), prepare
    bad = 3 if form == "folder" else 2
    with pytest.raises(SourceError, match=f"at least {bad} bad records?, more than --on-bad-record"):
        built(source, tmp_path / "out", on_bad_record=f"skip:{bad - 1}", **how)
    with pytest.raises(SourceError, match=r"the image .*, or skip such records with --on-bad-record"):
        built(source, tmp_path / "out", **how)
    dataset = built(source, tmp_path / "out", on_bad_record=f"skip:{bad}", **how)
    assert dataset.manifest.records == 39
    reasons = sorted(
        entry["reason"].partition("image ")[2].removeprefix("in column 'photo' ")
        for entry in rejected(tmp_path / "out")
    )
    assert [reason.partition(" (")[0] for reason in reasons] == ["cannot be prepared"] * 2 + [
        "is damaged or cut short"
    ] * (bad - 2)


def test_shards_are_alike_in_bytes_beside_damaged_images(tmp_path: Path) -> None:
    source = write_images(tmp_path / "images", {3, 8, 9})
    noise = np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)
    for number in (0, 1, 16, 17):
        Image.fromarray(noise).save(tmp_path / "images" / f"c{number % 2}" / f"{number:03}.png")
    dataset = built(source, tmp_path / "out", shards=4, balance="bytes", on_bad_record="skip:3")
    sizes = [shard.bytes for shard in dataset.shards]
    assert max(sizes) <= 1.02 * min(sizes)


def test_the_list_of_skipped_records_has_a_checksum(tmp_path: Path) -> None:
    built(write_images(tmp_path / "images", {3}), tmp_path / "out", shards=2, on_bad_record="skip:1")
    (tmp_path / "out" / "_ringfeed/rejected.jsonl").write_text("{}\n")
    assert [damage.path for damage in verify(str(tmp_path / "out"))] == ["_ringfeed/rejected.jsonl"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_list_of_skipped_records_is_rebuilt_from_the_source(tmp_path: Path, number: int) -> None:
    sources = [write_images(tmp_path / name, {3, 5}) for name in ("first", "second")]
    out = tmp_path / "out"
    built(sources[0], out, shards=2, on_bad_record="skip:2")
    append(AppendOptions(source=sources[1], destination=str(out), on_bad_record="skip:2"))
    whole = contents(out)
    name = NAMES.rejected(number)
    (out / name).write_text("{}\n")
    repair(str(out), originals=[Original(url=sources[number])])
    assert contents(out) == whole
    (out / name).unlink()
    (remedy,) = repair(str(out)).remedies
    assert (remedy.path, remedy.action) == (name, "remove")
    assert f"list of skipped records is lost; only a repair with --source {sources[number]} could" in remedy.how
    assert verify(str(out)) == []


@pytest.mark.parametrize("policy", ["skip:2", "skip:7%", "fail"])
def test_more_than_the_budget_leaves_nothing(tmp_path: Path, nothing_left: Path, policy: str) -> None:
    source = write_images(tmp_path / "images", {3, 8, 9})
    with pytest.raises(SourceError, match=r"00[389]\.png"):
        built(source, nothing_left, shards=2, on_bad_record=policy)


def test_a_share_is_of_all_records(tmp_path: Path) -> None:
    source = write_images(tmp_path / "images", {3, 8, 9})
    assert built(source, tmp_path / "out", shards=2, on_bad_record="skip:7.5%").manifest.records == 37


@pytest.mark.parametrize("step", [Filter("id >= 54"), Filter("y == 'b'"), DropNulls(("z",))])
def test_a_share_counts_the_records_that_steps_drop(
    tmp_path: Path, nothing_left: Path, write_csv: Callable[..., str], step: Step
) -> None:
    rows: list[list[Any]] = [[i, "b" if i >= 54 else "a", i if i >= 54 else "NA"] for i in range(60)]
    for bad in (10, 20, 55):
        rows[bad] = [bad, "b"]
    source = write_csv(["id", "y", "z"], *rows)
    how: dict[str, Any] = {"label": "y", "shards": 1, "prepare": PrepareOptions(steps=(step,))}
    assert built(source, tmp_path / "out", on_bad_record="skip:5%", **how).manifest.records == 5
    with pytest.raises(SourceError, match=r"at least 3 bad records, more than --on-bad-record skip:4.9% allows"):
        built(source, nothing_left, on_bad_record="skip:4.9%", **how)


def test_lines_that_do_not_parse_are_named(tmp_path: Path, write_csv: Callable[..., str]) -> None:
    rows: list[list[Any]] = [[i, "a" if i % 3 else "b"] for i in range(60)]
    rows[10] = [10, "a", "too many"]
    source = write_csv(["id", "y"], *rows)
    with open(source, "ab") as file:
        file.write(b"60,\xff\n")
    dataset = built(source, tmp_path / "out", label="y", shards=3, on_bad_record="skip:2")
    assert sorted(row["id"] for row in read_records(dataset, "train", 100)) == [i for i in range(60) if i != 10]
    told = {entry["position"]: entry["reason"] for entry in rejected(tmp_path / "out")}
    assert told == {"line 12": "Expected 2 columns, got 3", "line 62": "byte 4 is not UTF-8"}


def test_duplicates_are_dropped_beside_lines_that_do_not_parse(tmp_path: Path, write_csv: Callable[..., str]) -> None:
    rows: list[list[Any]] = [[i % 50, "ab"[i % 2]] for i in range(60)]
    rows[10] = [10, "a", "too many"]
    how: dict[str, Any] = {"label": "y", "shards": 3, "on_bad_record": "skip:1", "prepare": PrepareOptions(dedup=())}
    dataset = built(write_csv(["id", "y"], *rows), tmp_path / "out", **how)
    assert sorted(row["id"] for row in read_records(dataset, "train", 100)) == [i for i in range(50) if i != 10]


def test_a_missing_label_is_named_by_its_record(tmp_path: Path) -> None:
    table = pa.table({"id": range(50), "y": [None if i in (7, 31) else "ab"[i % 2] for i in range(50)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=20)
    dataset = built(str(tmp_path / "x.parquet"), tmp_path / "out", label="y", shards=2, on_bad_record="skip:5%")
    assert sorted(row["id"] for row in read_records(dataset, "train", 100)) == [
        i for i in range(50) if i not in (7, 31)
    ]
    assert [entry["position"] for entry in rejected(tmp_path / "out")] == ["record 7", "record 31"]
    assert all("no value for the label 'y'" in entry["reason"] for entry in rejected(tmp_path / "out"))


@pytest.mark.parametrize(
    ("ending", "text", "places"),
    [
        ("jsonl", '{"id": 0}\n\n[]\n{"id": 1, "y": "a"}\n{"id": 2}\n{"id": 3, "y": "b"}\n', ["line 3", "line 5"]),
        ("csv", 'id,y,z\n0,,"a\n\nb"\n1,1,a,too many\n2,,a\n3,2,b\n', ["line 5", "line 6"]),
    ],
)
def test_a_missing_label_behind_a_filter_is_named_by_its_line(
    tmp_path: Path, ending: str, text: str, places: list[str]
) -> None:
    (tmp_path / f"x.{ending}").write_text(text)
    how: dict[str, Any] = {"label": "y", "prepare": PrepareOptions(steps=(Filter("id > 0"),)), "min_class_records": 1}
    built(str(tmp_path / f"x.{ending}"), tmp_path / "out", shards=1, on_bad_record="skip:2", **how)
    assert [entry["position"] for entry in rejected(tmp_path / "out")] == places


@pytest.mark.parametrize("option", ["label", "split_column", "group_by"])
def test_an_error_names_the_record_of_the_source_behind_a_filter(tmp_path: Path, option: str) -> None:
    table = pa.table({"id": range(10), "y": [None if i == 7 else "a" for i in range(10)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    how: dict[str, Any] = {option: "y", "shards": 2, "prepare": PrepareOptions(steps=(Filter("id > 4"),))}
    how |= {"splits": {"a": Fraction(1, 2), "b": Fraction(1, 2)}} if option == "group_by" else {}
    with pytest.raises(SourceError, match=r"x\.parquet: record 7 \(from 0\) has no value for"):
        built(str(tmp_path / "x.parquet"), tmp_path / "out", **how)


def test_a_missing_label_behind_a_damaged_block_and_a_filter_is_named_by_its_record(tmp_path: Path) -> None:
    table = pa.table({"id": range(40), "y": [None if i in (7, 31) else f"{i % 2}" for i in range(40)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    damaged = pq.read_metadata(tmp_path / "x.parquet").row_group(1).column(0).dictionary_page_offset
    data[damaged : damaged + 8] = b"\xff" * 8
    (tmp_path / "x.parquet").write_bytes(data)
    how: dict[str, Any] = {"label": "y", "shards": 1, "prepare": PrepareOptions(steps=(Filter("id not in (4, 5)"),))}
    built(str(tmp_path / "x.parquet"), tmp_path / "out", on_bad_record="skip:12", **how)
    entries = [entry["position"] for entry in rejected(tmp_path / "out") if "label" in entry["reason"]]
    assert entries == ["record 7", "record 31"]


def test_behind_a_function_no_record_of_the_source_is_named(tmp_path: Path) -> None:
    (tmp_path / "steps_hiding.py").write_text("def cut(batch):\n    return batch.slice(1)\n")
    pq.write_table(pa.table({"y": ["a", "b", None]}), tmp_path / "x.parquet")
    prepare = PrepareOptions(steps=(MapBatches("steps_hiding:cut", str(tmp_path)),))
    how: dict[str, Any] = {"label": "y", "prepare": prepare, "min_class_records": 1}
    built(str(tmp_path / "x.parquet"), tmp_path / "out", shards=1, on_bad_record="skip:1", **how)
    (entry,) = rejected(tmp_path / "out")
    assert entry["position"] == "record 1 of what --map makes of the records from 0 on"


def test_without_bad_records_the_policy_writes_no_list(parquet: str, tmp_path: Path) -> None:
    built(parquet, tmp_path / "out", label="label", shards=2, on_bad_record="skip:1")
    assert not (tmp_path / "out" / "_ringfeed/rejected.jsonl").exists()


def test_parse_budget() -> None:
    assert [parse_budget(text) for text in ("fail", "skip:0", "skip:12", "skip:2.5%", "skip:100%")] == [
        None, 0, 12, Fraction(1, 40), Fraction(1),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "skip", "skip:", "skip:-1", "skip:1.5", "skip:101%", "skip:5 %", "ignore"])
def test_an_invalid_policy_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be fail, skip:N or skip:P%, got"):
        parse_budget(text)


# --- images within records ---------------------------------------------------------------------------------------


AN_IMAGE = Feature(name="jpg", dtype="binary", encoding="image")


def write_records_with_images(folder: Path, kind: str, bad: int) -> str:
    sink = BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(sink, "JPEG")
    images = [sink.getvalue()[: 200 if i == bad else None] for i in range(6)]
    if kind == "tar":
        with tarfile.open(folder / "x.tar", "w") as archive:
            for i, image in enumerate(images):
                info = tarfile.TarInfo(f"k{i}.jpg")
                info.size = len(image)
                archive.addfile(info, BytesIO(image))
    else:
        table = pa.table({"jpg": [*images[:5], None, *images[5:]], "id": range(7)})
        pq.write_table(table, folder / "x.parquet", row_group_size=2)
    return str(folder / f"x.{kind}")


@pytest.mark.parametrize("images", [None, ImageOptions(size=Size(width=8))])
@pytest.mark.parametrize(("kind", "place"), [("tar", "record 3 ('k3') at offset 4608"), ("parquet", "record 3")])
def test_a_damaged_image_within_a_record_is_named_and_left_out(
    tmp_path: Path, kind: str, place: str, images: ImageOptions | None
) -> None:
    source = write_records_with_images(tmp_path, kind, bad=3)
    prepare = PrepareOptions(images=images)
    if kind == "parquet":
        prepare = replace(prepare, steps=(Filter("id != 0"),), features={"jpg": AN_IMAGE})
    with pytest.raises(SourceError, match=rf"x\.{kind}: {re.escape(place)}.*: the image in column 'jpg' is damaged"):
        built(source, tmp_path / "out", shards=2, prepare=prepare)
    dataset = built(source, tmp_path / "out", shards=2, prepare=prepare, on_bad_record="skip:1")
    assert dataset.manifest.records == 5
    assert [entry["position"] for entry in rejected(tmp_path / "out")] == [place]


def test_a_damaged_image_that_is_not_stored_does_not_matter(tmp_path: Path) -> None:
    source = write_records_with_images(tmp_path, "parquet", bad=3)
    for step, records in ((Filter("id != 3"), 6), (Drop(("jpg",)), 7)):
        prepare = PrepareOptions(steps=(step,), features={"jpg": AN_IMAGE})
        assert built(source, tmp_path / f"{records}", shards=2, prepare=prepare).manifest.records == records


# --- blocks of tables --------------------------------------------------------------------------------------------


def write_tables(folder: Path, kind: str) -> tuple[int, range]:
    """Tables, one block of which cannot be read, though its labels can; how many records, and which are lost."""
    lost = {"parquet": range(60, 80), "orc": range(18_000), "arrow": range(20, 100), "h5": range(60, 80)}[kind]
    rows = 20_000 if kind == "orc" else 100
    table = pa.table({"id": range(rows), "text": [f"text {i} {i}" for i in range(rows)], "y": ["a", "b"] * (rows // 2)})
    path = folder / f"x.{kind}"
    folder.mkdir()
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=20)
        damaged = pq.read_metadata(path).row_group(3).column(1).dictionary_page_offset
    elif kind == "orc":
        orc.write_table(table, path, stripe_size=1 << 16, compression="zlib", batch_size=1000)
        damaged = 5000
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("id", data=np.arange(rows))
            file.create_dataset("text", data=np.arange(rows), chunks=(20,), compression="gzip")
            file.create_dataset("y", data=np.arange(rows) % 2)
            damaged = file["text"].id.get_chunk_info(3).byte_offset
    else:
        feather.write_feather(table.slice(0, 20), folder / "w.arrow", compression="uncompressed")
        feather.write_feather(table.slice(20), path, compression="uncompressed")
        damaged = path.read_bytes().find(b"text 20 20")
    data = bytearray(path.read_bytes())
    data[damaged : damaged + 8] = b"\xff" * 8
    path.write_bytes(data)
    return rows, lost


@pytest.mark.parametrize("prepare", [PrepareOptions(), PrepareOptions(steps=(Filter("id >= 0"),), dedup=("id",))])
@pytest.mark.parametrize("kind", ["parquet", "orc", "arrow", "h5"])
def test_a_block_of_a_table_that_cannot_be_read_is_left_out(tmp_path: Path, kind: str, prepare: PrepareOptions) -> None:
    rows, lost = write_tables(tmp_path / "x", kind)
    how: dict[str, Any] = {"label": "y", "shards": 2, "prepare": prepare}
    dataset = built(str(tmp_path / "x"), tmp_path / "out", on_bad_record=f"skip:{len(lost)}", **how)
    kept = sorted(row["id"] for row in read_records(dataset, "train", rows))
    assert kept == [i for i in range(rows) if i not in lost]
    first = 0 if kind == "arrow" else lost.start
    entries = rejected(tmp_path / "out")
    assert [entry["position"] for entry in entries] == [f"record {first + i}" for i in range(len(lost))]
    assert {Path(entry["source"]).name for entry in entries} == {f"x.{kind}"}
    assert entries[0]["reason"].startswith("it lies in a damaged ")
    for policy in (f"skip:{len(lost) - 1}", "skip:19%", "fail"):
        with pytest.raises(
            SourceError,
            match=rf"x\.{kind}: .*--on-bad-record skip" if policy == "fail" else "more than --on-bad-record",
        ):
            built(str(tmp_path / "x"), tmp_path / "less", on_bad_record=policy, **how)


def test_a_missing_table_is_not_skipped(tmp_path: Path) -> None:
    write_tables(tmp_path / "x", "parquet")
    source = LenientSource(inner=open_source(str(tmp_path / "x"), "y"))
    (tmp_path / "x" / "x.parquet").unlink()
    with pytest.raises(SourceError, match=r"was removed while the source was read: .*x\.parquet"):
        list(source.labels(source.parts[0]))


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("prepare", [PrepareOptions(), PrepareOptions(steps=(Filter("x > 0"),), dedup=())])
def test_a_first_file_may_have_bad_records_alone(tmp_path: Path, ending: str, prepare: PrepareOptions) -> None:
    lines = {
        "csv": ("x,y\n1\n", "x,y\n" + "1,a\n2,b\n"),
        "jsonl": ("[1]\n", '{"x": 1, "y": "a"}\n{"x": 2, "y": "b"}\n'),
    }
    (tmp_path / "in").mkdir()
    for name, text in zip("ab", lines[ending], strict=True):
        (tmp_path / "in" / f"{name}.{ending}").write_text(text)
    dataset = built(str(tmp_path / "in"), tmp_path / "out", shards=1, on_bad_record="skip:1", prepare=prepare)
    assert dataset.manifest.records == 2
