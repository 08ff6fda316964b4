"""Sources on web servers give the same builds as local files (`http_listing.py`, `open.py`, `find.py`)."""

import gc
import gzip
import hashlib
import html
import io
import os
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import BuildOptions, SourceError, StorageError, build, open_dataset
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources.base import ReadSizes
from ringfeed.sharding.sources.files.find import check_unchanged, list_files
from ringfeed.sharding.sources.files.open import stat_files
from ringfeed.sharding.sources.files.snapshot import record_listings
from ringfeed.sharding.storage import storage
from ringfeed.sharding.storage.retry import RetryPolicy
from tests.servers.web import Behaviour, served

ROWS = 60_000
Serve = Callable[..., AbstractContextManager[str]]
Here = Callable[[str], dict[str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same rows as files of several kinds, some larger than what is read at once; and a folder of images."""
    root = tmp_path_factory.mktemp("web")
    rng = np.random.default_rng(0)
    columns = {f"x{number}": rng.normal(size=ROWS) for number in range(6)}
    table = pa.table({**columns, "label": np.arange(ROWS) % 3})
    pyarrow.csv.write_csv(table, root / "rows.csv")
    (root / "rows.csv.gz").write_bytes(gzip.compress((root / "rows.csv").read_bytes(), 1))
    pq.write_table(table, root / "rows.parquet", row_group_size=ROWS // 4)
    pyarrow.orc.write_table(table, root / "rows.orc")
    with pa.ipc.new_file(root / "rows.arrow", table.schema) as writer:
        writer.write_table(table, 10_000)
    (root / "rows.jsonl").write_text("".join(f'{{"x": {i}, "label": {i % 3}}}\n' for i in range(ROWS)))
    values, labels = rng.normal(size=(ROWS, 6)), np.arange(ROWS) % 3
    np.save(root / "rows.npy", values)
    np.savez(root / "rows.npz", x=values, label=labels)
    with h5py.File(root / "rows.h5", "w") as file:
        file["x"], file["label"] = values, labels
    with tarfile.open(root / "rows.tar", "w") as archive:
        for number in range(3):
            for ending, content in ((".bin", rng.bytes(3 << 20)), (".cls", b"%d" % number)):
                member = tarfile.TarInfo(f"{number}{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    for number in range(8):
        path = root / "images" / f"class #{number % 2}, 50%" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (9, 7, 3), np.uint8)).save(path)
    return root


@pytest.fixture
def serve(folder: Path) -> Serve:
    return partial(served, folder)


def built(source: str, destination: Path) -> dict[str, str]:
    """The checksums of the shards and indexes of a dataset that is built from a source."""
    label = None if "images" in source else "cls" if "rows.tar" in source else "label"
    label = None if "rows.npy" in source else label
    build(BuildOptions(source=source, destination=str(destination), label=label, shards=2, min_class_records=1))
    paths = sorted(path for path in destination.iterdir() if path.name.startswith("train"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def here(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Here:
    """`built` from a file on this machine; once for each file."""
    return cache(lambda name: built(str(folder / name), tmp_path_factory.mktemp("here") / "out"))


@pytest.mark.parametrize("ranges", [True, False], ids=["with ranges", "without"])
def test_a_folder_of_images(here: Here, serve: Serve, tmp_path: Path, ranges: bool) -> None:
    with serve(ranges=ranges) as url:
        for name in ("images", "images/"):
            assert built(f"{url}/{name}", tmp_path / "there") == here(name)
            shutil.rmtree(tmp_path / "there")


def test_a_file_served_for_all_names_below_it_is_no_dataset(tmp_path: Path) -> None:
    content = b"x,label\n" + b"".join(b"%d,%d\n" % (number, number % 2) for number in range(20))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def do_HEAD(self) -> None:
            self.do_GET()

    (tmp_path / "rows.csv").write_bytes(content)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        try:
            there = built(f"http://127.0.0.1:{server.server_port}/rows.csv", tmp_path / "there")
        finally:
            server.shutdown()
    assert there == built(str(tmp_path / "rows.csv"), tmp_path / "here")


def test_folders_that_name_partition_keys(folder: Path, here: Here, serve: Serve, tmp_path: Path) -> None:
    for number, key in enumerate(("place=a b", "place=50%25", "place=c%2Fd")):
        (folder / "parts" / key).mkdir(parents=True)
        pq.write_table(pa.table({"label": [number, 0, 1]}), folder / "parts" / key / "rows.parquet")
    with serve(ranges=True) as url:
        assert built(f"{url}/parts", tmp_path / "there") == here("parts")
    assert open_dataset(str(tmp_path / "there")).manifest.schema.names == ("label", "place")


def test_a_folder_of_files_whose_names_end_in_numbers(folder: Path, here: Here, serve: Serve, tmp_path: Path) -> None:
    built(str(folder / "rows.parquet"), tmp_path / "source")
    (folder / "records").mkdir()
    for number, path in enumerate(sorted((tmp_path / "source").glob("*.tfrecord"))):
        shutil.copy(path, folder / "records" / f"train.tfrecord-{number:05d}-of-00002")
    with serve(ranges=True) as url:
        assert built(f"{url}/records", tmp_path / "there") == here("records")


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.parquet", "rows.orc"])
def test_large_files_are_read_from_servers_with_ranges(
    here: Here, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(storage, "_READ_AHEAD_BYTES", 1 << 20)
    with serve(ranges=True) as url:
        assert built(f"{url}/{name}", tmp_path / "there") == here(name)
    if "csv" in name:  # it is read from start to end
        with serve(ranges=False) as url:
            assert built(f"{url}/{name}", tmp_path / "whole") == here(name)
        return
    with (
        serve(ranges=False) as url,
        pytest.raises(OSError, match=rf"^{url}/{name}: the server ignores range requests .*; copy the file to"),
    ):
        built(f"{url}/{name}", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_archives_are_read_from_servers_with_ranges(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        archive.writestr("a.csv", "x,label\n" + "".join(f"{number},{number % 2}\n" for number in range(9)))
    here = built(f"zip://a.csv::{tmp_path}/rows.zip", tmp_path / "here")
    with served(tmp_path, ranges=True) as url:
        assert built(f"zip://a.csv::{url}/rows.zip", tmp_path / "there") == here
    with (
        served(tmp_path, ranges=False) as url,
        pytest.raises(OSError, match=rf"^zip://a.csv::{url}/rows.zip: the server ignores range requests"),
    ):
        built(f"zip://a.csv::{url}/rows.zip", tmp_path / "other")


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_file_by_a_signed_link(here: Here, serve: Serve, tmp_path: Path, name: str) -> None:
    with serve(ranges=True) as url:
        assert built(f"{url}/{name}?Expires=1&Sig=a%2Fb#", tmp_path / "a") == here(name)
        again = open_source(f"{url}/{name}?Expires=2&Sig=c", "label").fingerprint
        assert open_dataset(str(tmp_path / "a")).manifest.source == {"url": f"{url}/{name}", "fingerprint": again}


def test_a_scheme_in_capitals(here: Here, serve: Serve, tmp_path: Path) -> None:
    with serve(ranges=True) as url:
        there = url.replace("http", "HTTP") + "/rows.parquet"
        assert built(there, tmp_path / "a") == here("rows.parquet")
        images = tmp_path / "list.txt"
        images.write_text(there.replace("rows.parquet", "images/class%20%230%2C%2050%25/0.png\n") * 4)
        allowed = PrepareOptions(images_from=(url,))
        how: dict[str, Any] = {"source_kind": "image-list", "prepare": allowed}
        build(BuildOptions(source=str(images), destination=str(tmp_path / "c"), **how))
    assert open_dataset(str(tmp_path / "a")).manifest.source["url"] == f"{url}/rows.parquet"
    assert open_dataset(str(tmp_path / "c")).manifest.splits["train"].records == 4


def test_a_missing_file(serve: Serve, tmp_path: Path) -> None:
    with serve(ranges=True) as url, pytest.raises(SourceError, match=f"there is nothing at {url}/row.csv; .*check the"):
        built(f"{url}/row.csv", tmp_path / "there")


@pytest.mark.usefixtures("at_once")
def test_a_missing_server(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="ClientConnectorError: Cannot connect to host"):
        built("http://localhost:1/rows.csv", tmp_path / "there")


def misbehaving(folder: Path, **what: Any) -> AbstractContextManager[str]:
    return served(folder, behaviour=Behaviour(**what))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without pauses."""
    monkeypatch.setattr(RetryPolicy, "pause_seconds", lambda *_: 0.0)


SEEKING = ["rows.parquet", "rows.orc", "rows.arrow", "rows.npy", "rows.npz", "rows.h5"]
FORWARD = ["rows.csv", "rows.csv.gz", "rows.jsonl", "rows.tar"]


@pytest.mark.parametrize("name", [*SEEKING, "rows.csv", "rows.tar"])
def test_a_server_that_sends_less_at_a_time(folder: Path, here: Here, tmp_path: Path, name: str) -> None:
    with misbehaving(folder, most_bytes=300_000) as url:
        assert built(f"{url}/{name}", tmp_path / "there") == here(name)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", [*SEEKING, "rows.csv", "rows.tar"])  # others come in one piece
@pytest.mark.parametrize("wrong", [{"lost": 0.4}, {"lost": 0.4, "ranges": False}, {"shifted": 100}], ids=repr)
def test_a_server_that_sends_other_bytes(folder: Path, tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    with misbehaving(folder, **wrong) as url, pytest.raises(StorageError, match=re.escape(f"{url}/{name}: ")):
        built(f"{url}/{name}", tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("name", SEEKING)
@pytest.mark.parametrize("wrong", [{"ranges": False}, {"ranges": False, "sized": False}], ids=repr)
def test_random_access_needs_ranges(folder: Path, here: Here, tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    with misbehaving(folder, **wrong) as url:
        if wrong.get("sized", True):  # small enough to come at once
            assert built(f"{url}/{name}", tmp_path / "there") == here(name)
            return
        with pytest.raises(OSError, match=rf"^{url}/{name}: the server ignores range requests .*; copy the file to"):
            built(f"{url}/{name}", tmp_path / "there")


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.parametrize("wrong", [{"ranges": False}, {"ranges": False, "sized": False}, {"sized": False}], ids=repr)
def test_sequential_reads_need_no_ranges(
    folder: Path, here: Here, tmp_path: Path, name: str, wrong: dict[str, Any]
) -> None:
    with misbehaving(folder, **wrong) as url:
        assert built(f"{url}/{name}", tmp_path / "there") == here(name)


def test_sizes_unknown_to_a_server(folder: Path) -> None:
    told = "/rows.csv: the server ignores range requests"
    with misbehaving(folder, sized=False, ranges=False) as url, pytest.raises(StorageError, match=told):
        stat_files([f"{url}/rows.csv", f"{url}/rows.npy"])


def test_a_folder_of_images_of_sizes_unknown_to_a_server(folder: Path, tmp_path: Path) -> None:
    told = r"/0.png: the server ignores range requests .*; copy the file to"
    with misbehaving(folder, sized=False, ranges=False) as url, pytest.raises(StorageError, match=told):
        built(f"{url}/images", tmp_path / "there")


def test_large_text_from_a_server_without_ranges_is_one_part(folder: Path) -> None:
    sizes = ReadSizes(block_bytes=1 << 20, part_bytes=1 << 20)
    for ranges in (True, False):
        with misbehaving(folder, ranges=ranges) as url:
            assert (len(open_source(f"{url}/rows.csv", "label", sizes=sizes).parts) > 1) == ranges


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("ranges", [True, False], ids=["with ranges", "without"])
@pytest.mark.parametrize("name", ["rows.csv", "rows.tar", "images"])
def test_a_server_that_fails_now_and_then(folder: Path, here: Here, tmp_path: Path, name: str, ranges: bool) -> None:
    ends = ("rows.csv", "rows.tar", "images/", "50%25/", "0.png", "_ringfeed/dataset.json")
    behaviour = Behaviour(
        ranges=ranges, refusals={end: [503, 429] * 3 for end in ends}, cut={"rows.csv": 2, "rows.tar": 2, "1.png": 2}
    )
    with served(folder, behaviour=behaviour) as url:
        assert built(f"{url}/{name}", tmp_path / "there") == here(name)


@pytest.mark.usefixtures("at_once")
def test_a_server_that_refuses_a_third_of_all_requests(folder: Path, here: Here, tmp_path: Path) -> None:
    with misbehaving(folder, busy=1 / 3) as url:
        assert built(f"{url}/images", tmp_path / "there") == here("images")


@pytest.mark.usefixtures("at_once")
def test_a_request_that_failed_leaves_nothing_of_hdf5_to_the_garbage_collector(folder: Path) -> None:
    """If the thread that makes the requests ran it, it would wait for h5py's lock, and h5py for that thread."""
    gc.collect()
    gc.disable()
    try:
        with misbehaving(folder, cut={"rows.h5": 3}) as url:
            source = open_source(f"{url}/rows.h5", "label")
            assert sum(batch.num_rows for part in source.parts for batch in source.drafts(part)) == ROWS
        assert not [found for found in gc.get_objects() if isinstance(found, h5py.File)]
    finally:
        gc.enable()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("source", "path", "status", "told"),
    [
        ("rows.csv", "rows.csv", 503, r"rows.csv: HTTPError: 503 Service Unavailable \(40 attempts"),
        ("rows.csv", "rows.csv", 500, r"rows.csv: HTTPError: 500 Internal Server Error \(8 attempts"),
        ("rows.csv", "rows.csv", 403, r"rows.csv: permission denied; a signed link may have expired"),
        ("rows.csv?Signature=old", "rows.csv", 403, r"rows.csv: permission denied; a signed link may have expired"),
        ("images", "1.png", 503, r"images: HTTPError: 503 Service Unavailable \(40 attempts"),
        ("images", "50%25/", 403, "images: permission denied"),
        ("images", "1.png", 404, "there is nothing at .*/1.png; "),
        ("images", "images/dataset.json", 503, "dataset.json: HTTPError: 503"),
    ],
)
def test_a_refused_file_is_not_skipped(
    folder: Path, tmp_path: Path, source: str, path: str, status: int, told: str
) -> None:
    behaviour = Behaviour(refusals={path: [status, None]})
    with served(folder, behaviour=behaviour) as url, pytest.raises((StorageError, SourceError), match=told):
        built(f"{url}/{source}", tmp_path / "there")


def test_secrets_are_left_out_of_errors(folder: Path, tmp_path: Path) -> None:
    behaviour = Behaviour(refusals={"rows.csv": [403, None]})
    with (
        served(folder, behaviour=behaviour) as url,
        pytest.raises(StorageError, match=r"rows\.csv: permission") as caught,
    ):
        built(f"{url.replace('//', '//me:s3cret@')}/rows.csv?Signature=s3cret", tmp_path / "a")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "kind", "told"),
    [
        ("none.csv?k=s3cret", "auto", "there is nothing at zip://a.csv::http://127.*/none.csv; check"),
        ("none*.csv", "auto", "no file matches http://127.*/none.*; check"),
        ("rows.csv?k=s3cret", "hdf5", "^http://127.*/rows.csv: Unable to"),
        ("rows.csv?k=s3cret", "idx", "there is no IDX file of images .* at http://127.*/rows.csv$"),
    ],
)
def test_secrets_are_left_out_of_descriptions_of_a_source(
    serve: Serve, tmp_path: Path, path: str, kind: str, told: str
) -> None:
    with serve() as url:
        source = f"{'zip://a.csv::' * path.startswith('none.')}{url.replace('//', '//me:s3cret@')}/{path}"
        options = BuildOptions(source=source, destination=str(tmp_path / "a"), source_kind=kind)
        with pytest.raises(SourceError, match=told) as caught:
            build(options)
    assert "s3cret" not in str(caught.value)


NAMES = [
    "2024-01-01T10:00.parquet", "https-2024.parquet", "it's.parquet", "a&b.parquet", "a b.parquet", "a!.parquet",
    "b.parquet", "é.parquet", "50%25.parquet", "x;y.parquet", "q?z.parquet", "c+d.parquet", "[b].parquet", "=k.parquet",
]  # fmt: skip
PAGES = {
    "python": quote,
    "apache": lambda name: html.escape("./" * (":" in name) + quote(name, safe="$-_.+!*'(),:@&=/~"), quote=False),
    "go": lambda name: html.escape("./" * (":" in name) + quote(name, safe="$&+,/:=@-_.~")),
    "caddy": lambda name: f"./{quote(name)}",
    "absolute": lambda name: f"/odd%20names/{quote(name)}?sort=name#top",
}


@pytest.mark.parametrize("links", PAGES)
def test_pages_of_all_servers(tmp_path: Path, links: str) -> None:
    folder = tmp_path / "odd names"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        pq.write_table(pa.table({"x": [number] * 5, "label": [0, 1, 2, 0, 1]}), folder / name)
    here = built(str(folder), tmp_path / "here")
    with misbehaving(tmp_path, links=PAGES[links]) as url:
        for number, there in enumerate(("odd%20names", "odd names/", "odd%20names/*.parquet")):
            assert built(f"{url}/{there}", tmp_path / str(number)) == here
        assert len(list_files(f"{url}/odd%20names/a%26*.parquet", (".parquet",))) == 1


def test_a_page_without_links(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with misbehaving(tmp_path) as url, pytest.raises(SourceError, match=f"^{url}/empty holds no records"):
        built(f"{url}/empty", tmp_path / "there")


@pytest.mark.parametrize("ranges", [True, False], ids=["with ranges", "without"])
@pytest.mark.parametrize("name", SEEKING + FORWARD)
def test_a_page_in_place_of_a_file(folder: Path, name: str, ranges: bool) -> None:
    page = "\n<!DOCTYPE html><title>Log in</title>"
    with (
        misbehaving(folder, page=page, ranges=ranges) as url,
        pytest.raises(StorageError, match=rf"^{url}/{name}: the server sends a page \(text/html\) instead of the"),
    ):
        open_source(f"{url}/{name}", "label")


def test_a_page_in_place_of_a_dataset(folder: Path, tmp_path: Path) -> None:
    built(str(folder / "rows.parquet"), tmp_path / "shards")
    told = r"/dataset\.json: the server sends a page \(text/html\) instead of the file"
    with misbehaving(tmp_path, page="<html>Log in</html>") as url:
        with pytest.raises(StorageError, match=told):
            open_dataset(f"{url}/shards")
        with pytest.raises(StorageError, match=told):
            open_source(f"{url}/shards", None)


def test_a_file_served_as_html(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("<p>,label\n" + "".join(f"{number},{number % 2}\n" for number in range(9)))
    with misbehaving(folder, page=(tmp_path / "rows.csv").read_text()) as url:
        assert built(f"{url}/rows.csv", tmp_path / "there") == built(str(tmp_path / "rows.csv"), tmp_path / "here")


def test_a_changed_file_is_noticed_by_its_time(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    with misbehaving(tmp_path) as url, record_listings() as noted:
        file.write_text("a,label\n1,2\n")
        os.utime(file, (1, 1_600_000_000))
        before = open_source(f"{url}/rows.csv", "label").fingerprint
        listings = list(noted.values())
        file.write_text("a,label\n3,4\n")
        assert open_source(f"{url}/rows.csv", "label").fingerprint != before
        with pytest.raises(SourceError, match="changed while the source was read"):
            check_unchanged(listings)


def test_a_file_served_compressed(folder: Path, here: Here, tmp_path: Path) -> None:
    behaviour = Behaviour(encoding="gzip")
    with served(folder, behaviour=behaviour) as url:
        there = f"{url}/rows.csv.gz"  # as Apache says of such files
        assert built(there, tmp_path / "there") == here("rows.csv.gz")
        with pytest.raises(StorageError, match=r"rows\.csv: the server sends it compressed \(Content-Encoding: gzip\)"):
            built(f"{url}/rows.csv", tmp_path / "other")
    assert {headers["Accept-Encoding"] for _, _, headers in behaviour.asked} == {"identity"}
