"""Folders of images on every store (`class_folders.py`, `image_files.py`)."""

import os
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hdfs_native import Client, WriteOptions

from ringfeed.sharding import ConfigError, SourceError
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import BadRecord, CheckableSource, fail_on_bad
from ringfeed.sharding.sources.images import image_files
from tests.helpers.contents import completed
from tests.helpers.pictures import noise_image
from tests.servers.hdfs import HdfsServer
from tests.servers.store import Store

pytestmark = pytest.mark.usefixtures("implementation")


def test_images_are_stored_as_they_are_and_labelled_by_folder(store: Store) -> None:
    files = {
        "cat/1.png": noise_image(1),
        "cat/2.jpg": noise_image(2, "JPEG"),
        "dog [x]/a*b?.png": noise_image(3, width=5),
    }
    if store.name == "hdfs":
        files = {name.replace("*", "+").replace("?", "!"): data for name, data in files.items()}
    for name, data in {**files, "cat/.hidden.png": b"", "_tmp/x.png": b"", "cat/notes.txt": b""}.items():
        store.write_bytes(name, data)
    source = open_source(store.url, None)
    rows = completed(source)
    assert {row["path"]: row["image"] for row in rows} == files
    assert [row["label"] for row in rows] == ["cat", "cat", "dog [x]"]
    assert [(row["height"], row["width"]) for row in rows] == [(7, 9), (7, 9), (7, 5)]
    assert [value for batch in source.labels(source.parts[0]) for value in batch.to_pylist()] == [
        "cat",
        "cat",
        "dog [x]",
    ]


@pytest.mark.parametrize("name", ["1.png?w=9#2.png", "1.png;2.png", "1.png\n2.png"])
def test_names_on_hdfs_may_hold_url_syntax(hdfs_server: HdfsServer, name: str) -> None:
    folder, files = f"/tests/{uuid.uuid4().hex}", {"cat #1/1.png": noise_image(1), f"cat #1/{name}": noise_image(2)}
    client = Client(hdfs_server.url)
    client.mkdirs(f"{folder}/cat #1", 0o755, True)
    for path, data in files.items():
        with client.create(f"{folder}/{path}", WriteOptions()) as file:
            file.write(data)
    rows = completed(open_source(f"{hdfs_server.url}{folder}", None))
    assert [(row["label"], row["path"], row["image"]) for row in rows] == [("cat #1", *file) for file in files.items()]


@pytest.mark.parametrize(("ending", "form"), [("TIF", "TIFF"), ("jfif", "JPEG"), ("jp2", "JPEG2000"), ("pgm", "PPM")])
def test_images_of_rarer_endings_are_images(tmp_path: Any, ending: str, form: str) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / f"1.{ending}").write_bytes(noise_image(1, form))
    (row,) = completed(open_source(str(tmp_path), None))
    assert (row["path"], row["height"], row["width"]) == (f"cat/1.{ending}", 7, 9)


@pytest.mark.parametrize(
    "damage",
    [
        lambda: noise_image(1)[:-30],
        lambda: noise_image(1)[:20],
        lambda: noise_image(2, "JPEG")[:-40],
        lambda: noise_image(3, "BMP")[:-40],
        lambda: b"",
        lambda: b"not an image",
        lambda: noise_image(1).replace(b"IDAT", b"IDAX"),
    ],
)
def test_a_damaged_image_is_named(tmp_path: Any, damage: Callable[[], bytes]) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(noise_image(1))
    (tmp_path / "cat" / "2.png").write_bytes(damage())
    with pytest.raises(SourceError, match=r"cat/2\.png: the image is (damaged or cut short|empty)"):
        completed(open_source(str(tmp_path), None))


def test_an_image_outside_a_class_folder_is_refused(tmp_path: Any) -> None:
    (tmp_path / "1.png").write_bytes(noise_image(1))
    with pytest.raises(SourceError, match=r"1\.png lies in no class folder; move it to .*/CLASS/1\.png"):
        open_source(str(tmp_path), None)


@pytest.mark.parametrize("url", ["{}/cat/1.png", "{}/cat/*.png", "{}/cat"])
def test_a_url_below_the_class_folders_is_refused(tmp_path: Any, url: str) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(noise_image(1))
    with pytest.raises(SourceError, match=r"1\.png lies in no class folder; .* or name the folder above"):
        open_source(url.format(tmp_path), None)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*", ["cat/1.png", "cow/1.png", "cow/deep/2.png", "dog/1.png"]),
        ("c*", ["cat/1.png", "cow/1.png", "cow/deep/2.png"]),
        ("[cd]*/1.png", ["cat/1.png", "cow/1.png", "dog/1.png"]),
        ("**/2.png", ["cow/deep/2.png"]),
    ],
)
def test_a_glob_names_some_of_the_images(tmp_path: Any, pattern: str, found: list[str]) -> None:
    for name in ("cat/1.png", "cow/1.png", "cow/deep/2.png", "dog/1.png"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_bytes(noise_image(1))
    source = open_source(f"{tmp_path}/a/{pattern}", None)
    assert [(row["label"], row["path"]) for row in completed(source)] == [(name.split("/")[0], name) for name in found]


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("1.heic", b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC, .* decodes: convert it to JPEG or PNG"),
        ("1.jpg", b"\0\0\0\x18ftypmif1\0\0\0\0", "HEIC, .* decodes: convert it to JPEG or PNG"),
        ("1.jxl", b"\xff\n\xfa\x1f", "JPEG XL, .* decodes: convert it to JPEG or PNG"),
        ("1.png", b"", r"empty \(0 bytes\)"),
    ],
)
def test_an_image_of_an_unreadable_format_is_not_left_out(tmp_path: Any, name: str, data: bytes, fault: str) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / name).write_bytes(data)
    with pytest.raises(SourceError, match=rf"cat/{name}: the image is {fault}; fix or remove it, or skip"):
        completed(open_source(str(tmp_path), None))


def test_an_image_that_goes_missing_is_named(tmp_path: Any) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(noise_image(1))
    source = open_source(str(tmp_path), None)
    (tmp_path / "cat" / "1.png").unlink()
    with pytest.raises(SourceError, match=r"is missing, or was removed .*1\.png"):
        completed(source)


def test_a_label_that_is_the_name_of_another_feature_is_refused(tmp_path: Any) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(noise_image(1))
    with pytest.raises(
        SourceError, match=r"'path' is a column that image folders have anyway; .* give it another name"
    ):
        open_source(str(tmp_path), "path")


def test_files_of_several_kinds_are_refused(tmp_path: Any) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(noise_image(1))
    (tmp_path / "labels.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match=r"files of several kinds \(csv, images\); say which with --source-kind"):
        open_source(str(tmp_path), None)
    assert len(completed(open_source(str(tmp_path), None, "images"))) == 1


def test_an_empty_folder_holds_no_records(tmp_path: Any) -> None:
    with pytest.raises(SourceError, match="holds no records"):
        open_source(str(tmp_path), "x")


def test_a_check_finds_the_positions_of_bad_images(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_files, "BATCH_BYTES", 2000)
    (tmp_path / "cat").mkdir()
    for i in range(20):
        (tmp_path / "cat" / f"{i:02d}.png").write_bytes(noise_image(i)[: -30 if i in (3, 17) else None])
    source = open_source(str(tmp_path), None)
    (tmp_path / "cat" / "05.png").unlink()
    assert isinstance(source, CheckableSource)
    found: list[BadRecord] = []
    batches = list(source.check(source.parts[0], found.append))
    assert len(batches) > 1
    assert [p for batch in batches for p in batch.to_pylist()] == [3, 5, 17]
    assert [record.path[-6:] for record in found] == ["03.png", "05.png", "17.png"]
    with pytest.raises(SourceError, match=r"03\.png: the image is damaged or cut short .*; fix or remove it"):
        list(source.check(source.parts[0], fail_on_bad))


def test_an_image_that_changes_while_it_is_read_is_named(store: Store) -> None:
    store.write_bytes("cat/1.png", noise_image(1))
    source = open_source(store.url, None)
    for changed in (noise_image(1)[:-1], noise_image(1) + b"x"):
        store.write_bytes("cat/1.png", changed)
        with pytest.raises(SourceError, match=r"1\.png: the file changed while the source was read"):
            completed(source)


def test_images_beyond_the_size_of_a_column_are_refused(tmp_path: Any) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(noise_image(1))
    os.truncate(tmp_path / "cat" / "1.png", 1 << 31)  # takes no room on the disk
    with pytest.raises(ConfigError, match="more than the 2 GiB that one column can hold; ask for more shards"):
        completed(open_source(str(tmp_path), None))


def test_links_to_images_are_followed(tmp_path: Any) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "blob").write_bytes(noise_image(1))
    (tmp_path / "data" / "cat").mkdir(parents=True)
    (tmp_path / "data" / "cat" / "1.png").symlink_to(tmp_path / "store" / "blob")
    (tmp_path / "data" / "cat" / "loop").symlink_to(tmp_path / "data")
    (row,) = completed(open_source(str(tmp_path / "data"), None))
    assert row["image"] == noise_image(1)


def test_links_to_class_folders_are_followed_without_loops(tmp_path: Any) -> None:
    (tmp_path / "store" / "n01" / "old").mkdir(parents=True)
    (tmp_path / "store" / "n01" / "1.png").write_bytes(noise_image(1))
    (tmp_path / "store" / "n01" / "old" / "self").symlink_to(tmp_path / "store" / "n01")
    (tmp_path / "store" / "n01" / "up").symlink_to(tmp_path / "store")
    (tmp_path / "data" / "dog").mkdir(parents=True)
    (tmp_path / "data" / "dog" / "2.png").write_bytes(noise_image(2))
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "store" / "n01")
    (tmp_path / "data" / "latest").symlink_to("dog")
    rows = completed(open_source(str(tmp_path / "data"), None))
    assert [(row["label"], row["path"]) for row in rows] == [("cat", "cat/1.png"), ("dog", "dog/2.png")]
