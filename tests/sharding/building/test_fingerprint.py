"""The fingerprint of a source covers all that decides its records, and not its location."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding.sources import open_source

h5py = pytest.importorskip("h5py")
ROWS = np.arange(8)


def fingerprint(source: str | Path) -> str:
    return open_source(str(source), None).fingerprint


def hdf5(folder: Path) -> list[str]:
    with h5py.File(folder / "a.h5", "w") as file:
        file["train/x"], file["test/x"] = ROWS, ROWS + 1
        file["pairs"] = np.zeros(8, [("x", "<i8"), ("y", "<i8")])
    return [f"{folder}/a.h5::/{name}" for name in ("train", "test", "pairs/x", "pairs/y")]


def npz(folder: Path) -> list[str]:
    np.savez(folder / "a.npz", **{"train/x": ROWS, "test/x": ROWS + 1})
    return [f"{folder}/a.npz::{name}" for name in ("train", "test")]


def npy(folder: Path) -> list[str]:
    for name in ("train", "test"):
        (folder / name).mkdir()
        np.save(folder / name / "x.npy", ROWS)
        os.utime(folder / name / "x.npy", (1, 1))
    return [f"{folder}::{name}" for name in ("train", "test")]


def members(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for name, value in (("jan", 1), ("feb", 2)):
            archive.writestr(zipfile.ZipInfo(f"{name}/a.csv"), f"x\n{value}\n{value}\n")
    return [f"zip://{name}/a.csv::{folder}/a.zip" for name in ("jan", "feb")]


def hive(folder: Path) -> list[str]:
    for year in (2020, 2021):
        (folder / f"{year}" / f"y={year}").mkdir(parents=True)
        file = folder / f"{year}" / f"y={year}" / "a.parquet"
        pq.write_table(pa.table({"x": ROWS}), file)
        os.utime(file, (1, 1))
    return [f"{folder}/{year}" for year in (2020, 2021)]


def images(folder: Path) -> list[str]:
    for name in ("cat", "dog"):
        (folder / f"of-{name}" / name).mkdir(parents=True)
        file = folder / f"of-{name}" / name / "a.png"
        file.write_bytes(b"\x89PNG")
        os.utime(file, (1, 1))
    return [f"{folder}/of-{name}" for name in ("cat", "dog")]


@pytest.mark.parametrize("make", [hdf5, npz, npy, members, hive, images])
def test_the_fingerprint_covers_all_that_decides_the_records(make: Callable[[Path], list[str]], tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    sources = make(tmp_path / "here")
    prints = [fingerprint(source) for source in sources]
    assert len(set(prints)) == len(prints)
    shutil.move(tmp_path / "here", tmp_path / "there" / "moved")
    assert [fingerprint(source.replace("/here", "/there/moved")) for source in sources] == prints


def test_replacing_a_member_by_one_of_the_same_size_changes_the_fingerprint(tmp_path: Path) -> None:
    prints = []
    for value in (1, 2):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr(zipfile.ZipInfo("a.csv"), f"x\n{value}\n")
        prints.append(fingerprint(f"zip://a.csv::{tmp_path}/a.zip"))
    assert prints[0] != prints[1]
