"""Sources on web servers: what is built from them is what is built from the same files on a local disk."""

import gzip
import hashlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import BuildOptions, SourceError, StorageError, build, open_dataset
from ringfeed.sharding.sources import open_source
from tests.servers.web import served

ROWS = 60_000
Serve = Callable[..., AbstractContextManager[str]]


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
    label = None if "images" in source else "label"
    build(BuildOptions(source=source, destination=str(destination), label=label, shards=2, min_class_records=1))
    paths = sorted(path for path in destination.iterdir() if path.name.startswith("train"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("ranges", [True, False], ids=["with ranges", "without"])
def test_a_folder_of_images(folder: Path, serve: Serve, tmp_path: Path, ranges: bool) -> None:
    with serve(ranges=ranges) as url:
        for name in ("images", "images/"):
            assert built(f"{url}/{name}", tmp_path / "there") == built(str(folder / name), tmp_path / "here")
            shutil.rmtree(tmp_path / "there")
            shutil.rmtree(tmp_path / "here")


def test_folders_that_name_partition_keys(folder: Path, serve: Serve, tmp_path: Path) -> None:
    for number, key in enumerate(("place=a b", "place=50%25", "place=c%2Fd")):
        (folder / "parts" / key).mkdir(parents=True)
        pq.write_table(pa.table({"label": [number, 0, 1]}), folder / "parts" / key / "rows.parquet")
    with serve(ranges=True) as url:
        assert built(f"{url}/parts", tmp_path / "there") == built(str(folder / "parts"), tmp_path / "here")
    assert open_dataset(str(tmp_path / "there")).manifest.schema.names == ("label", "place")


def test_a_folder_of_files_whose_names_end_in_numbers(folder: Path, serve: Serve, tmp_path: Path) -> None:
    built(str(folder / "rows.parquet"), tmp_path / "source")
    (folder / "records").mkdir()
    for number, path in enumerate(sorted((tmp_path / "source").glob("*.tfrecord"))):
        shutil.copy(path, folder / "records" / f"train.tfrecord-{number:05d}-of-00002")
    with serve(ranges=True) as url:
        assert built(f"{url}/records", tmp_path / "there") == built(str(folder / "records"), tmp_path / "here")


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.parquet", "rows.orc"])
def test_large_files_come_from_servers_that_send_parts(folder: Path, serve: Serve, tmp_path: Path, name: str) -> None:
    with serve(ranges=True) as url:
        assert built(f"{url}/{name}", tmp_path / "there") == built(str(folder / name), tmp_path / "here")
    if name == "rows.csv.gz":  # it comes in one piece
        return
    with (
        serve(ranges=False) as url,
        pytest.raises(OSError, match=rf"^{url}/{name}: the server sends all of a file .*; copy the file to"),
    ):
        built(f"{url}/{name}", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_a_file_by_a_signed_link(folder: Path, serve: Serve, tmp_path: Path, name: str) -> None:
    with serve(ranges=True) as url:
        assert built(f"{url}/{name}?Expires=1&Sig=a%2Fb#", tmp_path / "a") == built(str(folder / name), tmp_path / "b")
        again = open_source(f"{url}/{name}?Expires=2&Sig=c", "label").fingerprint
        assert open_dataset(str(tmp_path / "a")).manifest.source == {"url": f"{url}/{name}", "fingerprint": again}


def test_a_scheme_in_capitals(folder: Path, serve: Serve, tmp_path: Path) -> None:
    with serve(ranges=True) as url:
        there = url.replace("http", "HTTP") + "/rows.parquet"
        assert built(there, tmp_path / "a") == built(str(folder / "rows.parquet"), tmp_path / "b")
        images = tmp_path / "list.txt"
        images.write_text(there.replace("rows.parquet", "images/class%20%230%2C%2050%25/0.png\n") * 4)
        build(BuildOptions(source=str(images), source_kind="image-list", destination=str(tmp_path / "c")))
    assert open_dataset(str(tmp_path / "a")).manifest.source["url"] == f"{url}/rows.parquet"
    assert open_dataset(str(tmp_path / "c")).manifest.splits["train"].records == 4


def test_a_file_that_is_not_there(serve: Serve, tmp_path: Path) -> None:
    with serve(ranges=True) as url, pytest.raises(SourceError, match=f"there is nothing at {url}/row.csv; .*check the"):
        built(f"{url}/row.csv", tmp_path / "there")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="ClientConnectorError: Cannot connect to host"):
        built("http://localhost:1/rows.csv", tmp_path / "there")
