"""HDF5 files (`hdf5.py`, `hdf5_files.py`), and `array_columns.py`, `url_selection.py`."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pytest

from ringfeed.sharding import ConfigError, SourceError
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.prepare.open import open_prepared
from ringfeed.sharding.prepare.steps import Drop, Select, Step
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.arrays import array_columns as arrays
from ringfeed.sharding.sources.base import ReadSizes
from tests.helpers.builds import built
from tests.helpers.contents import labels
from tests.servers.store import Store

Write = Callable[[h5py.File], Any]


def written(path: Path, write: Write) -> str:
    with h5py.File(path, "w") as file:
        write(file)
    return str(path)


def table(source: Source) -> pa.Table:
    batches = [batch for part in source.parts for batch in source.drafts(part)]
    return pa.Table.from_batches(batches, source.schema.arrow)


X = np.arange(600, dtype=np.float32).reshape(100, 2, 3)
Y = [f"c{i % 3}é" for i in range(100)]


def plain(file: h5py.File) -> None:
    file.create_dataset("x", data=X, chunks=(7, 1, 3), compression="gzip")
    file.create_dataset("meta/y", data=Y, chunks=(10,))
    file["version"] = 3


def test_datasets_are_columns_on_every_store(store: Store, tmp_path: Path) -> None:
    written(tmp_path / "a.h5", plain)
    store.write_bytes("a.h5", (tmp_path / "a.h5").read_bytes())
    source = pickle.loads(pickle.dumps(open_source(f"{store.url}/a.h5", "meta/y")))
    found = table(source)
    assert found.column_names == ["x", "meta/y"]
    assert found["meta/y"].to_pylist() == Y
    assert np.array_equal(np.array(found["x"].to_pylist()).reshape(X.shape), X)
    assert source.schema["x"].shape == (2, 3)
    assert labels(source) == Y
    assert source.sample(source.parts[0], 4).num_rows == 4


@pytest.mark.parametrize("kind", ["i1", "i2", ">i4", "i8", "u1", ">u2", "u4", "u8", "f2", "f4", ">f8", "?"])
@pytest.mark.parametrize("chunks", [None, (3, 2)])
def test_numbers_round_trip(tmp_path: Path, kind: str, chunks: Any) -> None:
    values = np.arange(20).reshape(10, 2).astype(kind)
    url = written(tmp_path / "a.hdf5", lambda file: file.create_dataset("x", data=values, chunks=chunks))
    source = open_source(url, None)
    assert source.schema["x"].dtype == values.dtype.newbyteorder("=").name
    assert table(source)["x"].to_pylist() == values.tolist()


def test_strings_bytes_lists_and_enums_round_trip(tmp_path: Path) -> None:
    ragged = [np.arange(i % 4, dtype="<i2") for i in range(6)]
    texts = ["", "a", "é" * 500, "d", "e", "f"]

    def write(file: h5py.File) -> None:
        file["fixed"] = np.array([text.encode()[:4] for text in texts], "S5")
        file.create_dataset("text", data=texts, dtype=h5py.string_dtype())
        file.create_dataset("pairs", data=np.array([["a", "b"]] * 6, object), dtype=h5py.string_dtype())
        file["opaque"] = np.array([b"\xff\x01"] * 6, "V2")
        file.create_dataset("level", data=[0, 1, 2, 0, 1, 2], dtype=h5py.enum_dtype({"LOW": 0, "MID": 1, "HIGH": 2}))
        lists = file.create_dataset("lists", (6,), dtype=h5py.vlen_dtype("<i2"))
        for i, values in enumerate(ragged):
            lists[i] = values

    source = open_source(written(tmp_path / "a.h5", write), "text")
    found = table(source)
    assert found["fixed"].to_pylist() == ["", "a", "éé", "d", "e", "f"]
    assert found["text"].to_pylist() == texts
    assert found["pairs"].to_pylist() == [["a", "b"]] * 6
    assert found["opaque"].to_pylist() == [b"\xff\x01"] * 6
    assert found["level"].to_pylist() == [0, 1, 2, 0, 1, 2]
    assert found["lists"].to_pylist() == [values.tolist() for values in ragged]
    assert (source.schema["lists"].shape, source.schema["lists"].dtype) == ((None,), "int16")


def test_lists_of_text_round_trip(tmp_path: Path) -> None:
    tags: list[list[str]] = [[], ["a"], ["é" * 300, "", "b"], ["c"]]

    def write(file: h5py.File) -> None:
        lists = file.create_dataset("tags", (4,), dtype=h5py.vlen_dtype(h5py.string_dtype()))
        for i, texts in enumerate(tags):
            lists[i] = np.array([text.encode() for text in texts], object)

    source = open_source(written(tmp_path / "a.h5", write), None)
    assert (source.schema["tags"].shape, source.schema["tags"].dtype) == ((None,), "string")
    assert table(source)["tags"].to_pylist() == tags


def test_fields_of_compound_datasets_are_columns(tmp_path: Path) -> None:
    kind = np.dtype([("id", "<i8"), ("box", "<f4", (4,)), ("name", h5py.string_dtype())])
    rows = np.array([(1, [1, 2, 3, 4], "a"), (2, [5, 6, 7, 8], "b")], kind)
    url = written(tmp_path / "a.h5", lambda file: file.create_dataset("rows", data=rows))
    assert table(open_source(f"{url}::rows", "name")).to_pylist() == [
        {"id": 1, "box": [1, 2, 3, 4], "name": "a"},
        {"id": 2, "box": [5, 6, 7, 8], "name": "b"},
    ]
    assert table(open_source(url, None)).column_names == ["rows/id", "rows/box", "rows/name"]


def two_groups(file: h5py.File) -> None:
    for group, rows in (("train", 6), ("test", 2)):
        file[f"{group}/x"] = np.arange(rows)
        file[f"{group}/deep/y"] = np.arange(rows) % 2


def test_groups_and_datasets_are_picked_by_name(tmp_path: Path) -> None:
    url = written(tmp_path / "a.h5", two_groups)
    with pytest.raises(
        SourceError,
        match=r"a\.h5: the arrays differ .*: test/x \(2\), test/deep/y \(2\), train/x \(6\), .*; choose .*a\.h5::",
    ):
        open_source(url, None)
    assert table(open_source(f"{url}::/train", "deep/y")).column_names == ["x", "deep/y"]
    assert table(open_source(f"{url}::/test/x,/test/deep/y", None)).column_names == ["test/x", "test/deep/y"]
    assert table(open_source(f"{url}::test/x", None))["test/x"].to_pylist() == [0, 1]
    with pytest.raises(SourceError, match=r"no array 'trian'; did you mean 'train/x'\? There are: test/x, test/deep/y"):
        open_source(f"{url}::/trian", None)


def test_files_of_one_schema_are_read_in_turn(tmp_path: Path) -> None:
    for i in range(3):
        written(tmp_path / f"{i}.h5", lambda file, i=i: file.create_dataset("x", data=np.arange(i, i + 2)))
    source = open_source(str(tmp_path), None)
    assert table(source)["x"].to_pylist() == [0, 1, 1, 2, 2, 3]
    written(tmp_path / "3.h5", lambda file: file.create_dataset("x", data=np.arange(2.0)))
    with pytest.raises(
        SourceError,
        match=r"3\.h5: its columns differ: 'x' is float64 here and int64 in .*0\.h5; write both alike; or name",
    ):
        open_source(str(tmp_path), None)


def test_rows_are_read_in_whole_chunks_and_bounded_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BATCH_BYTES", 16 * 24)
    url = written(tmp_path / "a.h5", lambda file: file.create_dataset("x", data=X, chunks=(7, 2, 3)))
    source = open_source(url, None, sizes=ReadSizes(part_bytes=30 * 24))
    assert [part.pieces for part in source.parts] == [(0, 35), (35, 70), (70, 100)]
    assert [batch.num_rows for batch in source.drafts(source.parts[0])] == [14, 14, 7]
    assert np.array_equal(np.array(table(source)["x"].to_pylist()).reshape(X.shape), X)


def test_batches_of_long_texts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["x" * 10_000] * 2000
    url = written(tmp_path / "a.h5", lambda file: file.create_dataset("t", data=texts))
    monkeypatch.setattr(arrays, "BATCH_BYTES", 1 << 20)
    source = open_source(url, None)
    sizes = [batch.nbytes for batch in source.drafts(source.parts[0])]
    assert max(sizes) <= 1 << 20
    assert len(sizes) < 30
    assert table(source)["t"].to_pylist() == texts


def external_link(file: h5py.File) -> None:
    file["x"] = h5py.ExternalLink("other.h5", "/x")


def external_storage(file: h5py.File) -> None:
    file.create_dataset("x", (5,), "u1", external=[("/etc/hostname", 0, 5)])


def virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((5,), "i4")
    layout[:] = h5py.VirtualSource("other.h5", "x", (5,))
    file.create_virtual_dataset("x", layout)


def odd_integers(file: h5py.File) -> None:
    """Of 3 bytes, which NumPy has not."""
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    kind.set_size(3)
    h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3,)))


def old_times(file: h5py.File) -> None:
    h5py.h5d.create(file.id, b"x", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))


def odd_bools(file: h5py.File) -> None:
    file.create_dataset("x", data=np.array([[0, 1], [1, 2]], np.uint8).view(bool))


def lists_of_odd_bools(file: h5py.File) -> None:
    lists = file.create_dataset("x", (2,), h5py.vlen_dtype(bool))
    lists[0], lists[1] = np.array([True, False]), np.array([1, 2], np.uint8).view(bool)


def lists_of_bytes(file: h5py.File) -> None:
    lists = file.create_dataset("x", (2,), h5py.vlen_dtype(h5py.string_dtype()))
    lists[0], lists[1] = np.array([b"a", b"b"], object), np.array([b"\xff"], object)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda file: None, "holds no array with a dimension of records"),
        (lambda file: file.create_dataset("x", data=np.zeros(3, complex)), "'x' holds complex128 values"),
        (lambda file: file.create_dataset("x", (3,), h5py.ref_dtype), "'x' holds .*; store it as numbers"),
        (lambda file: file.create_dataset("x", (3,), h5py.ref_dtype), "'x' holds references"),
        (lambda file: file.create_dataset("x", (3, 0)), r"records of shape \(0,\)"),
        (lambda file: file.create_dataset("x", (3, 2), h5py.vlen_dtype("i4")), "'x' holds .*; store it as numbers"),
        (lambda file: file.create_dataset("x", (3, 2), h5py.vlen_dtype("i4")), "lists of int32 in records of"),
        (lambda file: file.create_dataset("x", (3,), h5py.vlen_dtype("S4")), r"'x' holds lists of \|S4"),
        (lambda file: file.create_dataset("x", (3,), h5py.vlen_dtype(h5py.vlen_dtype("i4"))), "lists of texts or"),
        (odd_bools, r"record 1 \(from 0\) of 'x' is 2, which is neither false \(0\) nor true \(1\)"),
        (lists_of_odd_bools, r"record 1 \(from 0\) of 'x' is 2"),
        (lists_of_bytes, r"record 1 \(from 0\) of 'x' is not UTF-8"),
        (lambda file: file.create_dataset("x", (3,), h5py.vlen_dtype(">i4")), "'x' holds lists of big-endian numbers"),
        (lambda file: file.create_dataset("x", data=[b"a", b"\xff"]), r"record 1 \(from 0\) of 'x' is not UTF-8"),
        (odd_integers, "'x' holds values of a type that NumPy lacks"),
        (old_times, "'x' holds values of a type that NumPy lacks"),
        (lambda file: file.create_dataset(b"x\xff", (3,)), r"the name 'x\\\\xff' is not UTF-8; rename it"),
        (external_link, "'x' is a link to another file"),
        (external_storage, "the data of 'x' lie in other files"),
        (virtual, "the data of 'x' lie in other files"),
    ],
)
def test_unsupported_datasets_are_named(tmp_path: Path, write: Write, message: str) -> None:
    url = written(tmp_path / "a.h5", write)
    with pytest.raises(SourceError, match=message) as caught:
        table(open_source(url, None))
    assert "a.h5" in str(caught.value)


@pytest.mark.parametrize(
    "write",
    [
        lambda file: file.create_dataset("x", data=np.zeros(3, complex)),
        lambda file: file.create_dataset("x", (3,), h5py.ref_dtype),
        lambda file: file.create_dataset("x", (3, 0)),
        lambda file: file.create_dataset("x", (7, 2)),
        lambda file: file.create_dataset("x", data=np.zeros(3, [("a", "i4"), ("b", complex)])),
        lambda file: file.create_dataset("x/a/b", data=np.zeros(3, complex)),
        lambda file: file.create_dataset(b"x/\xff", (3,)),
        odd_integers,
        old_times,
        external_link,
        external_storage,
        virtual,
    ],
)
def test_unsupported_datasets_can_be_left_out(tmp_path: Path, write: Write) -> None:
    def with_others(file: h5py.File) -> None:
        file["id"], file["y"] = range(3), [b"a", b"b", b"c"]
        write(file)

    url = written(tmp_path / "a.h5", with_others)
    with pytest.raises(SourceError, match=r"or leave 'x.*' out by the first --drop-columns or --select"):
        open_source(url, "y")
    for step in (Drop(("x",)), Select(("id", "y"))):
        source = open_prepared(url, "y", "auto", PrepareOptions(steps=(step,)))
        assert table(source).to_pylist() == [{"id": i, "y": letter} for i, letter in enumerate("abc")]
        assert sum(len(batch) for part in source.parts for batch in source.labels(part)) == 3
    with pytest.raises(ConfigError, match="no column is left"):
        open_prepared(url, None, "auto", PrepareOptions(steps=(Drop(("x", "y", "id")),)))


def test_fields_and_groups_can_be_left_out(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        file["c"] = np.zeros(3, [("a", "i4"), ("b", complex)])
        file["g/x"], file["g/y"], file["h/odd"] = np.zeros(3), np.ones(3), np.zeros(3, complex)

    url = written(tmp_path / "a.h5", write)
    source = open_prepared(url, None, "auto", PrepareOptions(steps=(Drop(("c/b", "g", "h/odd")),)))
    assert source.schema.names == ("c/a",)
    source = open_prepared(f"{url}::/g", None, "auto", PrepareOptions(steps=(Select(("y",)),)))
    assert table(source).to_pylist() == [{"y": 1.0}] * 3


@pytest.mark.parametrize("step", [Drop(("s",)), Select(("x",))])
def test_unwanted_text_need_not_be_utf8(tmp_path: Path, step: Step) -> None:
    def write(file: h5py.File) -> None:
        file["x"], file["s"] = range(3), np.array([b"\xff", b"b", b"c"])

    source = open_prepared(written(tmp_path / "a.h5", write), None, "auto", PrepareOptions(steps=(step,)))
    assert table(source).to_pylist() == [{"x": x} for x in range(3)]


def test_links_are_skipped_and_loops_end(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        file["x"] = np.arange(3)
        file["soft"] = h5py.SoftLink("/x")
        file["g/loop"] = file.create_group("other")
        file["other/back"] = file["g"]

    assert table(open_source(written(tmp_path / "a.h5", write), None)).column_names == ["x"]


@pytest.mark.parametrize("store_url", ["{}/a.h5", "memory://hdf5/a.h5"])
@pytest.mark.parametrize(
    "damage", [lambda d: d[:-100], lambda d: b"no HDF5", lambda d: b"", lambda d: d[:600] + d[900:]]
)
def test_a_damaged_file_is_named(tmp_path: Path, store_url: str, damage: Callable[[bytes], bytes]) -> None:
    written(tmp_path / "whole.hdf5", plain)
    url = store_url.format(tmp_path)
    with fsspec.open(url, "wb") as file:
        file.write(damage((tmp_path / "whole.hdf5").read_bytes()))
    with pytest.raises(SourceError, match=r"a\.h5: .*the file is damaged, is not HDF5") as caught:
        table(open_source(url, None))
    assert "\n" not in str(caught.value)


def test_a_damaged_chunk_is_named(tmp_path: Path) -> None:
    url = written(tmp_path / "a.h5", lambda file: file.create_dataset("x", data=X, chunks=(50, 2, 3), fletcher32=True))
    data = Path(url).read_bytes()
    Path(url).write_bytes(data.replace(X[60].tobytes(), X[61].tobytes()))
    with pytest.raises(SourceError, match=r"a\.h5: .*the file is damaged"):
        table(open_source(url, None))


def test_without_h5py_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = written(tmp_path / "a.h5", plain)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(SourceError, match=r"pip install 'ringfeed\[hdf5\]'"):
        open_source(url, None)


def test_a_dataset_is_built_from_a_picked_group(tmp_path: Path) -> None:
    url = written(tmp_path / "a.h5", two_groups)
    dataset = built(f"{url}::/train", tmp_path / "out", label="deep/y", shards=2)
    assert dataset.manifest.classes == (0, 1)
    assert dataset.manifest.schema.names == ("x", "deep/y")
