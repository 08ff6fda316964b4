"""Lists of images (`image_list.py`, `record_places.py`)."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from ringfeed.sharding import SourceError, StorageError
from ringfeed.sharding.prepare import Filter, PrepareOptions
from ringfeed.sharding.sources import open_source, select_part
from ringfeed.sharding.sources.base import BadRecord, CheckableSource
from ringfeed.sharding.sources.images import image_files
from ringfeed.sharding.sources.images import image_list as lines
from ringfeed.sharding.sources.images.image_list import ImageListSource
from tests.helpers.builds import built
from tests.helpers.contents import completed
from tests.helpers.pictures import noise_image
from tests.servers.store import Store

Write = Callable[..., str]


def test_images_are_read_with_the_other_columns_on_every_store(store: Store) -> None:
    files = {"a/1.png": noise_image(1), "b/2.jpg": noise_image(2, "JPEG"), "a/3.png": noise_image(3, width=5)}
    for name, data in files.items():
        store.write_bytes(f"data/{name}", data)
    rows = ["label,file_name,score,width", "cat,a/1.png,1.5,1", "dog,b/2.jpg,,2", "cat,a/3.png,0.5,3"]
    store.write_bytes("data/list.csv", "\n".join(rows).encode())
    source = pickle.loads(pickle.dumps(open_source(f"{store.url}/data/list.csv", "label", "image-list")))
    assert source.schema.names == ("image", "height", "width", "label", "score", "path")
    assert completed(source) == [
        {"image": files["a/1.png"], "height": 7, "width": 9, "label": "cat", "score": 1.5, "path": "a/1.png"},
        {"image": files["b/2.jpg"], "height": 7, "width": 9, "label": "dog", "score": None, "path": "b/2.jpg"},
        {"image": files["a/3.png"], "height": 7, "width": 5, "label": "cat", "score": 0.5, "path": "a/3.png"},
    ]
    assert [v for part in source.parts for batch in source.labels(part) for v in batch.to_pylist()] == [
        "cat", "dog", "cat",
    ]  # fmt: skip
    assert source.sample(source.parts[0], 2).num_rows == 2


def test_a_task_gets_only_its_own_part(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}.csv").write_text("path,label\nx.png,a\n")
    source = open_source(f"{tmp_path}/*.csv", "label", "image-list")
    assert len(source.parts) == 100
    assert select_part(source).parts == ()
    assert select_part(source, 7).parts == source.parts[7:8]


def test_paths_may_hold_dots_on_every_store(store: Store) -> None:
    paths = ["./x.png", "../data/./x.png", "../x.png"]
    store.write_bytes("data/x.png", noise_image(1))
    store.write_bytes("x.png", noise_image(2))
    store.write_bytes("data/list.csv", "\n".join(["path,label", *[f"{path},a" for path in paths]]).encode())
    source = open_source(f"{store.url}/data/list.csv", "label", "image-list")
    with pytest.raises(SourceError, match=r"names the image '\.\./x\.png', which is .*/x\.png, outside the list"):
        completed(source)
    rows = completed(open_source(f"{store.url}/data/list.csv", "label", "image-list", images_from=(store.url,)))
    assert [row["image"] for row in rows] == [noise_image(1), noise_image(1), noise_image(2)]
    assert [row["path"] for row in rows] == paths


def test_a_list_may_not_name_files_elsewhere_unless_they_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(noise_image(1))
    (tmp_path / "lists" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "lists" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "lists" / "out").symlink_to(tmp_path)
    (tmp_path / "lists" / "near").symlink_to("deep/er")
    (tmp_path / "lists" / "x.png").write_bytes(noise_image(2))
    table = tmp_path / "lists" / "l.csv"
    for path in (
        "../secret.png", "link.png", "out/secret.png", f"{tmp_path}/secret.png", f"file://{tmp_path}/secret.png",
        f"{tmp_path}/lists/../secret.png", f"{tmp_path}/lists2/x.png", "near/../../../secret.png",
        "http://127.0.0.1:1/x.png", "https://host/x.png", "s3://bucket/x.png", "zip://x.png::x.zip",
    ):  # fmt: skip
        table.write_text(f"path\nx.png\n{path}\n")
        source = open_source(str(table), None, "image-list")
        with pytest.raises(
            SourceError, match=r"l\.csv names the image .* outside the list's .*; if it may, add"
        ) as told:
            next(source.drafts(source.parts[0]))
        if path == "link.png":  # the remedy works
            assert f"which is {tmp_path}/secret.png" in str(told.value)
            folder = str(told.value).rpartition("--images-from ")[2]
            assert len(completed(open_source(str(table), None, "image-list", images_from=(folder,)))) == 2
    table.write_text(f"path\nx.png\n{tmp_path}/lists/x.png\nnear/../../x.png\n./deep/../x.png\n")
    assert [row["image"] for row in completed(open_source(str(table), None, "image-list"))] == [noise_image(2)] * 4


def test_paths_may_be_absolute_or_urls(tmp_path: Path, write_csv: Write) -> None:
    (tmp_path / "x.png").write_bytes(noise_image(1))
    (tmp_path / "lists").mkdir()
    paths = [str(tmp_path / "x.png"), (tmp_path / "x.png").as_uri(), "../x.png"]
    url = write_csv(["path", "label"], *[[path, "a"] for path in paths], name="lists/l.csv")
    rows = completed(open_source(url, "label", "image-list", images_from=(str(tmp_path),)))
    assert [row["image"] for row in rows] == [noise_image(1)] * 3
    assert [row["path"] for row in rows] == paths


def test_paths_may_lead_to_several_stores_and_archives(store: Store, tmp_path: Path, write_csv: Write) -> None:
    paths = [f"{store.url}/x.png", *(f"zip://x.png::{tmp_path / name}" for name in ("a.zip", "b.zip"))]
    store.write_bytes("x.png", noise_image(0, width=5))
    for seed, name in enumerate(("a.zip", "b.zip"), start=1):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("x.png", noise_image(seed, width=5 + seed))
    url = write_csv(["path", "label"], *[[path, "a"] for path in paths])
    archives = [f"zip://::{tmp_path / name}" for name in ("a.zip", "b.zip")]
    source = open_source(url, "label", "image-list", images_from=(store.url, *archives))
    rows = completed(source)
    assert [row["image"] for row in rows] == [noise_image(seed, width=5 + seed) for seed in range(3)]
    drafts = next(source.drafts(source.parts[0]))
    assert isinstance(source, ImageListSource)
    assert source.late_bytes(source.parts[0], drafts).tolist() == [len(row["image"]) for row in rows]


@pytest.mark.parametrize("change", [-1, 1])
def test_an_image_that_changes_between_two_passes_is_named(
    tmp_path: Path, write_csv: Write, monkeypatch: pytest.MonkeyPatch, change: int
) -> None:
    (tmp_path / "1.png").write_bytes(noise_image(1))
    monkeypatch.setattr(image_files, "_size", lambda path: len(noise_image(1)) + change)
    with pytest.raises(SourceError, match=r"1\.png: the file changed while the source was read"):
        completed(open_source(write_csv(["path", "label"], ["1.png", "a"]), "label", "image-list"))


def test_any_table_can_be_a_list(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(noise_image(1))
    pq.write_table(pa.table({"only": ["1.png"]}), tmp_path / "list.parquet")
    (row,) = completed(open_source(str(tmp_path / "list.parquet"), None, "image-list"))
    assert (row["image"], row["path"]) == (noise_image(1), "1.png")


@pytest.mark.parametrize(("end", "encoding"), [("\n", "utf-8"), ("\r\n", "utf-8"), ("\r\n", "utf-8-sig")])
def test_a_text_file_is_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, encoding: str) -> None:
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 7)
    names = ["1.png", "zwei é.png", "3.png"]
    for i, name in enumerate(names):
        (tmp_path / name).write_bytes(noise_image(i))
    (tmp_path / "list.txt").write_bytes(end.join([names[0], "", *names[1:]]).encode(encoding))
    source = open_source(str(tmp_path / "list.txt"), None, "image-list")
    assert [(row["path"], row["image"]) for row in completed(source)] == [
        (n, noise_image(i)) for i, n in enumerate(names)
    ]
    assert sum(len(batch) for part in source.parts for batch in source.labels(part)) == 3
    assert source.sample(source.parts[0], 5).num_rows > 0
    (tmp_path / "list.txt").write_bytes(b"1.png\n\n\xff.png\n")
    with pytest.raises(SourceError, match=r"list\.txt: line 3 is not UTF-8"):
        completed(source)


@pytest.mark.parametrize(
    ("header", "label", "message"),
    [
        (["a", "b"], None, "has no column of paths; name it one of image, path, file"),
        (["image", "path"], None, r"several columns of paths \(image, path\); keep one"),
        (["path", "b"], "path", "the column 'path' names the images; choose another one as the label"),
        (["path", "height"], "height", "'height' is measured from the images; rename the list's column"),
        (["path", "b"], "c", "there is no label column 'c'"),
    ],
)
def test_a_list_without_one_column_of_paths_is_refused(
    write_csv: Write, header: list[str], label: str | None, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(write_csv(header, ["1.png", "2.png"]), label, "image-list")


def test_paths_are_strings(write_csv: Write) -> None:
    with pytest.raises(SourceError, match="'path' holds int64 values, not paths"):
        open_source(write_csv(["path", "b"], [1, 2]), None, "image-list")


@pytest.mark.parametrize("folder", ["memory://list", "{}"])
def test_a_check_finds_what_complete_would_fail_on(tmp_path: Path, folder: str) -> None:
    folder = folder.format(tmp_path)
    names = [f"{i}.png" for i in range(6)]
    for i, name in enumerate(names):
        if i != 4:
            with fsspec.open(f"{folder}/{name}", "wb") as file:
                file.write(noise_image(i)[: -30 if i == 2 else None])
    with fsspec.open(f"{folder}/list.parquet", "wb") as file:
        pq.write_table(pa.table({"path": [*names[:5], None, names[5]], "label": ["a"] * 7}), file)
    source = open_source(f"{folder}/list.parquet", "label", "image-list")
    assert isinstance(source, CheckableSource)
    found: list[BadRecord] = []
    positions = [p for part in source.parts for batch in source.check(part, found.append) for p in batch.to_pylist()]
    assert positions == [2, 4, 5]
    assert "2.png: the image is damaged" in str(found[0])
    assert "4.png: there is no such file" in str(found[1])
    assert "record 5: a record names no image" in str(found[2])
    drafts = next(source.drafts(source.parts[0]))
    assert source.complete(drafts.take(pa.array([0, 1, 3, 6]))).num_rows == 4
    for bad in positions:
        with pytest.raises(SourceError):
            source.complete(drafts.slice(bad, 1))


@pytest.mark.parametrize("name", ["folder", "0.png/x", "x" * 300, "x\0y", "http://[bad", "pipe"])
def test_a_path_that_names_no_file_is_a_bad_record(tmp_path: Path, name: str) -> None:
    (tmp_path / "0.png").write_bytes(noise_image(0))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    pq.write_table(pa.table({"path": ["0.png", name], "label": ["a", "b"]}), tmp_path / "list.parquet")
    source = open_source(str(tmp_path / "list.parquet"), "label", "image-list", images_from=("http://",))
    assert isinstance(source, CheckableSource)
    found: list[BadRecord] = []
    assert [p for batch in source.check(source.parts[0], found.append) for p in batch.to_pylist()] == [1]
    assert "it names no file that can be read; fix its name" in str(found[0])
    with pytest.raises((SourceError, StorageError)) as told:
        source.complete(next(source.drafts(source.parts[0])))
    assert "\n" not in str(told.value)


def test_a_dataset_is_built_from_a_list(tmp_path: Path, write_csv: Write) -> None:
    for i in range(12):
        (tmp_path / f"{i}.png").write_bytes(noise_image(i))
    url = write_csv(["file", "label"], *[[f"{i}.png", "ab"[i % 2]] for i in range(12)])
    dataset = built(url, tmp_path / "out", label="label", source_kind="image-list", shards=2)
    assert dataset.manifest.classes == ("a", "b")
    assert [shard.class_counts for shard in dataset.shards] == [(3, 3), (3, 3)]


def test_a_missing_image_is_named(store: Store) -> None:
    store.write_bytes("x.png", noise_image(1))
    store.write_bytes("list.csv", b"path,y\nx.png,1\nnope.png,1\n")
    with pytest.raises(SourceError, match=r"the file is missing, or was removed .*/nope\.png; check its name"):
        completed(open_source(f"{store.url}/list.csv", "y", "image-list"))


@pytest.mark.parametrize("prepare", [PrepareOptions(), PrepareOptions(steps=(Filter("y != 'c'"),))])
@pytest.mark.parametrize(("ending", "place"), [("csv", "line 4"), ("parquet", "record 2")])
def test_a_record_without_a_path_is_named_or_skipped(
    tmp_path: Path, ending: str, place: str, prepare: PrepareOptions
) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(noise_image(i))
    table = pa.table({"path": ["0.png", "1.png", "" if ending == "csv" else None, "3.png"], "y": ["c", "a", "a", "a"]})
    (csv.write_csv if ending == "csv" else pq.write_table)(table, tmp_path / f"list.{ending}")
    how: dict[str, Any] = {"source_kind": "image-list", "shards": 1, "prepare": prepare}
    with pytest.raises(SourceError, match=rf"list\.{ending}: {place}.*: a record names no image"):
        built(str(tmp_path / f"list.{ending}"), tmp_path / "out", **how)
    built(str(tmp_path / f"list.{ending}"), tmp_path / "out", on_bad_record="skip:1", **how)
    assert f'"position": "{place}"' in (tmp_path / "out" / "_ringfeed/rejected.jsonl").read_text()
