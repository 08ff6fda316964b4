"""Sources of every kind (`detect.py`) in zip archives hold the same records as in folders (`open.py`, `find.py`)."""

import gzip
import shutil
import tarfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import BuildOptions, RingfeedError, build
from ringfeed.sharding.sources import open_source
from tests.helpers.contents import completed

ROWS = 12
TABLE = pa.table({"x": np.arange(ROWS, dtype=np.float32), "label": np.arange(ROWS) % 3})


def write_text(folder: Path) -> None:
    pyarrow.csv.write_csv(TABLE, folder / "rows.csv")


def write_json(folder: Path) -> None:
    lines = (f'{{"x": {row["x"]}, "label": {row["label"]}}}\n' for row in TABLE.to_pylist())
    (folder / "rows.jsonl").write_text("".join(lines))


def write_partitions(folder: Path) -> None:
    for year in (2023, 2024):
        (folder / f"year={year}").mkdir()
        pq.write_table(TABLE, folder / f"year={year}" / "rows.parquet")


def write_ipc(folder: Path) -> None:
    pyarrow.feather.write_feather(TABLE, folder / "rows.arrow", compression="uncompressed")


def write_orc(folder: Path) -> None:
    pyarrow.orc.write_table(TABLE, folder / "rows.orc")


def write_hdf5(folder: Path) -> None:
    with h5py.File(folder / "rows.h5", "w") as file:
        for name in TABLE.column_names:
            file[name] = TABLE[name].to_numpy()


def write_arrays(folder: Path) -> None:
    for name in TABLE.column_names:
        np.save(folder / f"{name}.npy", TABLE[name].to_numpy())


def write_npz(folder: Path) -> None:
    np.savez(folder / "rows.npz", **{name: TABLE[name].to_numpy() for name in TABLE.column_names})


def write_idx(folder: Path) -> None:
    images = np.arange(ROWS * 4, dtype=np.uint8).tobytes()
    (folder / "train-images-idx3-ubyte").write_bytes(
        bytes([0, 0, 8, 3, 0, 0, 0, ROWS, 0, 0, 0, 2, 0, 0, 0, 2]) + images
    )
    (folder / "train-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, ROWS, *(i % 3 for i in range(ROWS))]))


def write_images(folder: Path) -> None:
    for number in range(ROWS):
        path = folder / f"class-{number % 3}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (3, 2 + number)).save(path)


def write_list(folder: Path) -> None:
    write_images(folder)
    names = (f"class-{number % 3}/{number}.png,{number % 3}\n" for number in range(ROWS))
    (folder / "list.csv").write_text("".join(["path,label\n", *names]))


def write_dataset(folder: Path) -> Path:
    write_ipc(folder)
    path = folder / "dataset"
    build(BuildOptions(source=str(folder / "rows.arrow"), destination=str(path), label="label", shards=2))
    (folder / "rows.arrow").unlink()
    return path


def write_records(folder: Path) -> None:
    dataset = write_dataset(folder)
    for path in dataset.glob("*.tfrecord"):
        path.rename(folder / path.name)
    shutil.rmtree(dataset)


def write_tar(folder: Path) -> None:
    with tarfile.open(folder / "rows.tar", "w") as file:
        for number in range(ROWS):
            for suffix, text in (("txt", f"text {number}"), ("cls", str(number % 3))):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(text)
                file.addfile(member, BytesIO(text.encode()))


@pytest.mark.parametrize(
    ("write", "name", "label", "kind"),
    [
        (write_text, "", "label", "auto"),
        (write_text, "rows.csv", "label", "auto"),
        (write_json, "", "label", "auto"),
        (write_partitions, "", "year", "auto"),
        (write_partitions, "year=2*/rows.parquet", "year", "auto"),
        (write_ipc, "rows.arrow", "label", "auto"),
        (write_orc, "*.orc", "label", "auto"),
        (write_hdf5, "", "label", "auto"),
        (write_arrays, "", "label", "auto"),
        (write_npz, "rows.npz", "label", "auto"),
        (write_idx, "", None, "auto"),
        (write_images, "", None, "auto"),
        (write_images, "class-[12]", None, "auto"),
        (write_list, "list.csv", "label", "image-list"),
        (write_records, "", "label", "auto"),
        (write_tar, "", "cls", "auto"),
        (write_dataset, "dataset", None, "auto"),
    ],
)
def test_a_source_in_an_archive(
    tmp_path: Path, write: Callable[[Path], None], name: str, label: str | None, kind: str
) -> None:
    (tmp_path / "plain").mkdir()
    write(tmp_path / "plain")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "plain")
    expected = open_source(f"{tmp_path}/plain/{name}".removesuffix("/"), label, kind)
    found = open_source(f"zip://{name}::{archive}", label, kind)
    assert found.schema == expected.schema
    assert completed(found) == completed(expected)
    assert len(completed(found)) >= ROWS // 2


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("{0}/all.zip", r"is an archive; name the files to read in it, or read all with zip://::{0}/all\.zip"),
        ("zip://rows.csv", r"no archive is named; name one after ::, as in zip://PATH::ARCHIVE"),
        ("zip://rows.csv::hdfs://host:1/all.zip", "such as HDFS; copy it to a local disk"),
    ],
)
def test_an_unreadable_archive_is_reported_with_a_remedy(tmp_path: Path, url: str, message: str) -> None:
    (tmp_path / "plain").mkdir()
    write_text(tmp_path / "plain")
    shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path / "plain")
    with pytest.raises(RingfeedError, match=message.format(tmp_path)):
        open_source(url.format(tmp_path), "label")


@pytest.mark.parametrize(
    ("write", "name", "into", "label"),
    [
        (write_text, "rows.csv", "ROWS.CSV.GZ-00000-of-00001", "label"),
        (write_text, "rows.csv", "rows.tsv-00000-of-00001", "label"),
        (write_text, "rows.csv", "rows.tsv.gz-00000-of-00001", "label"),
        (write_tar, "rows.tar", "rows.tar.gz", "cls"),
        (write_tar, "rows.tar", "rows.tar.gz-00000-of-00001", "cls"),
    ],
)
@pytest.mark.parametrize("place", ["{}/{}", "zip://{1}::{0}.zip"])
def test_the_ending_before_a_shard_number_says_the_kind(
    tmp_path: Path, write: Callable[[Path], None], name: str, into: str, label: str, place: str
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "numbered").mkdir()
    write(tmp_path / "plain")
    data = (tmp_path / "plain" / name).read_bytes()
    data = data.replace(b",", b"\t") if "tsv" in into else data
    (tmp_path / "numbered" / into).write_bytes(gzip.compress(data) if ".gz" in into.lower() else data)
    shutil.make_archive(str(tmp_path / "numbered"), "zip", tmp_path / "numbered")
    expected = open_source(str(tmp_path / "plain" / name), label)
    assert completed(open_source(place.format(tmp_path / "numbered", into), label)) == completed(expected)
