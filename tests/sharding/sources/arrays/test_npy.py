"""NumPy files (`npy.py`), and what array files share (`array_columns.py`, `url_selection.py`)."""

import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ringfeed.sharding import BuildOptions, ConfigError, SourceError, build
from ringfeed.sharding.prepare import PrepareOptions
from ringfeed.sharding.prepare.open import open_prepared
from ringfeed.sharding.prepare.steps import Drop, Rename, Select, Step
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.arrays import array_columns as arrays
from ringfeed.sharding.sources.arrays.npy import NpySource
from ringfeed.sharding.sources.base import ReadSizes
from tests.helpers.builds import built
from tests.helpers.contents import labels
from tests.servers.store import Store


def read(source: Source) -> dict[str, Any]:
    """All records: an array of each column, of the schema's shape."""
    batches = [batch for part in source.parts for batch in source.drafts(part)]
    table = pa.Table.from_batches(batches, source.schema.arrow)
    return {f.name: np.array(table.column(f.name).to_pylist()).reshape(-1, *f.shape) for f in source.schema.features}


def saved(array: Any, save: Callable[..., None] = np.save, **arguments: Any) -> bytes:
    out = BytesIO()
    save(out, array, **arguments) if array is not None else save(out, **arguments)
    return out.getvalue()


X = np.arange(60, dtype=np.float32).reshape(10, 2, 3)
Y = np.array([f"c{i % 3}é" for i in range(10)])


def test_files_of_a_folder_are_columns_on_every_store(store: Store) -> None:
    store.write_bytes("x.npy", saved(X))
    store.write_bytes("y.npy", saved(Y))
    source = open_source(store.url, "y")
    assert source.schema["x"].shape == (2, 3)
    found = read(pickle.loads(pickle.dumps(source)))
    assert np.array_equal(found["x"], X)
    assert found["y"].tolist() == Y.tolist()
    assert labels(source) == Y.tolist()
    assert source.sample(source.parts[0], 4).num_rows == 4


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_members_of_an_archive_are_columns_on_every_store(store: Store, save: Any) -> None:
    store.write_bytes("a.npz", saved(None, save, x=X, y=Y, version=np.array(3)))
    source = open_source(f"{store.url}/a.npz", "y")
    found = read(source)
    assert list(found) == ["x", "y"]
    assert np.array_equal(found["x"], X)
    assert found["y"].tolist() == Y.tolist()
    assert source.sample(source.parts[0], 4).num_rows == 4


def test_unsupported_members_can_be_left_out(tmp_path: Path) -> None:
    members = {"x": X, "y": Y, "names": np.array([{}] * len(X), object), "z": np.zeros(len(X), complex), "few": Y[:4]}
    np.savez(tmp_path / "a.npz", **members)
    for step in (Drop(("names", "z", "few")), Select(("x", "y"))):
        source = open_prepared(str(tmp_path / "a.npz"), "y", "auto", PrepareOptions(steps=(step,)))
        assert list(read(source)) == ["x", "y"]
    with pytest.raises(SourceError, match=r"few \(4\); choose .*, or leave 'few' out by the first --drop-columns"):
        open_prepared(str(tmp_path / "a.npz"), "y", "auto", PrepareOptions(steps=(Drop(("names", "z")),)))


@pytest.mark.parametrize("steps", [[Drop(("s",))], [Rename((("s", "t"),)), Select(("x",))]])
def test_unwanted_text_need_not_be_utf8(tmp_path: Path, steps: list[Step]) -> None:
    np.savez(tmp_path / "a.npz", x=X, s=np.array([b"\xff"] * len(X)))
    source = open_prepared(str(tmp_path / "a.npz"), None, "auto", PrepareOptions(steps=tuple(steps)))
    assert list(read(source)) == ["x"]


def test_members_are_picked_by_name(tmp_path: Path) -> None:
    members = {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4], "notes": np.array([{}], object)}
    np.savez(tmp_path / "mnist.npz", **members)
    path = str(tmp_path / "mnist.npz")
    assert list(read(open_source(f"{path}::x_test,y_test", "y_test"))) == ["x_test", "y_test"]
    with pytest.raises(SourceError, match=r"x_train \(10\), y_train \(10\), x_test \(4\).*mnist\.npz::x_train,y_train"):
        open_source(path, None)
    with pytest.raises(SourceError, match=r"no array 'y_tets'; did you mean 'y_test'\?"):
        open_source(f"{path}::x_test,y_tets", None)
    with pytest.raises(SourceError, match=r"'notes' holds Python objects \(pickle\), which are never loaded"):
        open_source(f"{path}::notes", None)


RECORDS = np.array(
    [(1, [1.5, 2.5], ("a", True)), (2, [3.5, 4.5], ("b", False))],
    [("id", ">i2"), ("v", ">f8", (2,)), ("in", [("name", "S3"), ("flag", "?")])],
)


def test_fields_of_a_structured_array_are_columns(tmp_path: Path) -> None:
    np.save(tmp_path / "records.npy", RECORDS)
    source = open_source(str(tmp_path / "records.npy"), "in/name")
    found = read(source)
    assert {name: values.tolist() for name, values in found.items()} == {
        "id": [1, 2],
        "v": [[1.5, 2.5], [3.5, 4.5]],
        "in/name": ["a", "b"],
        "in/flag": [True, False],
    }
    assert [f.dtype for f in source.schema.features] == ["int16", "float64", "string", "bool"]
    assert list(read(open_source(f"{tmp_path / 'records.npy'}::in", None))) == ["name", "flag"]


def test_files_of_a_glob_are_read_in_turn(tmp_path: Path) -> None:
    for i in range(3):
        np.save(tmp_path / f"part-{i}.npy", X + 100 * i)
    source = open_source(str(tmp_path / "part-*.npy"), None)
    assert np.array_equal(read(source)["data"], np.concatenate([X, X + 100, X + 200]))
    np.save(tmp_path / "part-3.npy", X.astype(np.int8))
    with pytest.raises(
        SourceError, match=r"part-3\.npy: .*: 'data' is int8\[.*\] here and .* in .*part-0\.npy; write both alike"
    ):
        open_source(str(tmp_path / "part-*.npy"), None)


def test_columns_of_several_files_may_be_in_any_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", y=Y[::-1], x=X + 1)
    source = open_source(str(tmp_path / "*.npz"), "y")
    found = read(source)
    assert list(found) == ["x", "y"]
    assert np.array_equal(found["x"], np.concatenate([X, X + 1]))
    assert [name for part in source.parts for batch in source.labels(part) for name in batch.to_pylist()] == [
        *Y.tolist(),
        *Y[::-1].tolist(),
    ]
    np.savez(tmp_path / "c.npz", y=Y, z=X)
    with pytest.raises(SourceError, match=r"c\.npz: its columns differ: it has no 'x', as .*a\.npz has"):
        open_source(str(tmp_path / "*.npz"), None)


def test_fields_of_several_files_may_be_in_any_order(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([(1, 2.5)], [("id", "<i4"), ("v", "<f8")]))
    np.save(tmp_path / "b.npy", np.array([(4.5, 3)], [("v", ">f8"), ("id", "<i4")]))
    found = read(open_source(str(tmp_path / "*.npy"), None))
    assert {name: values.tolist() for name, values in found.items()} == {"id": [1, 3], "v": [2.5, 4.5]}


@given(
    array=hnp.arrays(
        st.sampled_from(["?", ">i2", "<i8", ">u4", "u1", "<f2", ">f4", "<f8", "<U3", ">U2", "S3", "<M8[s]", "<M8[D]"]),
        hnp.array_shapes(min_dims=1, max_dims=3, max_side=4),
    )
)
def test_every_type_and_byte_order_round_trips(tmp_path_factory: pytest.TempPathFactory, array: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("npy") / "x.npy"
    if array.dtype.kind in "SU":
        array = np.array([str(i) for i in range(array.size)]).reshape(array.shape).astype(array.dtype)
    if array.dtype.kind == "M":
        array = np.where(np.isnat(array), np.datetime64(5, np.datetime_data(array.dtype)[0]), array)
        array = (array.astype(np.int64) % 10_000).astype(array.dtype)
    np.save(path, array)
    source = open_source(str(path), None)
    column = pa.Table.from_batches([b for p in source.parts for b in source.drafts(p)], source.schema.arrow)["data"]
    values = column.to_pylist()
    feature = source.schema["data"]
    if array.dtype.kind == "S":
        array = np.char.decode(array)
    elif array.dtype.kind == "M":
        assert feature.logical == ("date32[day]" if "D" in str(array.dtype) else "timestamp[s]")
        array = array.astype(np.int64)
    wanted = array.reshape(len(array), -1)[:, 0] if array.ndim == 1 else array.reshape(len(array), -1)
    assert feature.shape == array.shape[1:]
    np.testing.assert_array_equal(np.array(values, dtype=wanted.dtype), wanted)


@pytest.mark.parametrize("day", [1 << 31, -(1 << 31) - 1, 1 << 40])
@pytest.mark.parametrize("order", "<>")
def test_days_beyond_32_bits_are_refused(tmp_path: Path, day: int, order: str) -> None:
    np.save(tmp_path / "x.npy", np.array([[0, 1], [2, day]]).astype("datetime64[D]").astype(f"{order}M8[D]"))
    source = open_source(str(tmp_path / "x.npy"), None)
    with pytest.raises(SourceError, match=rf"x\.npy: record 1 .* of 'data' is day {day} since 1970"):
        read(source)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", [("a", "<i4"), ("b", "S2")]])
def test_fortran_order_is_read_in_place(tmp_path: Path, dtype: Any) -> None:
    array = np.asfortranarray(np.arange(24).reshape(6, 4).astype("<i4").astype(np.dtype(dtype)))
    np.save(tmp_path / "f.npy", array)
    assert np.load(tmp_path / "f.npy").flags.f_contiguous
    found = read(open_source(str(tmp_path / "f.npy"), None))
    wanted = array["a"] if array.dtype.names else array
    assert np.array_equal(found["a" if array.dtype.names else "data"], wanted)


@pytest.mark.parametrize("name", ["memory://fortran/f.npy", "f.npz"])
def test_fortran_order_that_cannot_be_streamed_is_refused(tmp_path: Path, name: str) -> None:
    url = name if "://" in name else str(tmp_path / name)
    with fsspec.open(url, "wb") as file:
        file.write(saved(X.T) if "://" in name else saved(None, np.savez, x=X.T))
    source = open_source(url, None)
    with pytest.raises(SourceError, match=r"in Fortran order.*copy it to this machine, or save it as numpy\.asc"):
        read(source)


def test_parts_and_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "BATCH_BYTES", 7 * 24)
    many = np.arange(600, dtype=np.float32).reshape(100, 2, 3)
    np.save(tmp_path / "x.npy", many)
    source = open_source(str(tmp_path / "x.npy"), None, sizes=ReadSizes(part_bytes=30 * 24))
    assert [part.pieces[:2] for part in source.parts] == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert [batch.num_rows for batch in source.drafts(source.parts[1])] == [7, 7, 7, 7, 2]
    assert np.array_equal(read(source)["data"], many)


GOOD = saved(X)
ZIPPED = saved(None, np.savez, x=X)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.npy", GOOD[:-1], "it is cut short: 367 bytes for 368"),
        ("x.npy", GOOD + b"x", "it goes on after its last element"),
        ("x.npy", GOOD[:40], "its? ends inside its header"),
        ("x.npy", b"", "no .npy file of version 1 to 3"),
        ("x.npy", b"\x93NUMPY\x09\x00" + GOOD[8:], "no .npy file of version 1 to 3"),
        ("x.npy", GOOD.replace(b"'descr'", b"'d scr'"), "the header is damaged"),
        ("x.npy", GOOD.replace(b"(10, 2, 3)", b"(-1, 2, 3)"), "the header is damaged"),
        ("x.npy", saved(np.array([{}], object), allow_pickle=True), r"Python objects \(pickle\), which are never"),
        ("x.npy", saved(np.zeros(3, complex)), "holds complex128 values; store it as numbers"),
        ("x.npy", saved(np.zeros((3, 0))), r"has records of shape \(0,\), which are empty"),
        ("x.npy", saved(np.float32(3)), "holds a single value; a source"),
        ("x.npy", saved(np.array([b"ok", b"\xff"])), r"record 1 \(from 0\) of 'data' is not UTF-8"),
        ("x.npz", ZIPPED[:-30], "the archive is damaged"),
        ("x.npz", ZIPPED.replace(X[5].tobytes(), X[6].tobytes()), "Bad CRC-32.*the archive is damaged"),
        ("x.npz", b"PK", "the archive is damaged"),
    ],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=message) as caught:
        read(open_source(str(tmp_path / name), None))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_damaged_header_is_an_error_of_one_line(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(200):
        data = bytearray(GOOD)
        data[rng.integers(0, 128)] = rng.integers(0, 256)
        (tmp_path / "x.npy").write_bytes(data)
        try:
            read(open_source(str(tmp_path / "x.npy"), None))
        except SourceError as error:
            errors.append(str(error))
    assert len(errors) > 20
    assert not any("\n" in error for error in errors)


def test_archives_and_arrays_in_one_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(GOOD)
    (tmp_path / "x.npz").write_bytes(ZIPPED)
    with pytest.raises(SourceError, match=r"both \.npy and \.npz files"):
        open_source(str(tmp_path), None)


def test_a_dataset_is_built_from_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.repeat(X, 5, axis=0), y=np.repeat(Y, 5))
    dataset = built(str(tmp_path / "a.npz"), tmp_path / "out", label="y", shards=2)
    assert dataset.manifest.classes == ("c0é", "c1é", "c2é")
    assert [shard.class_counts for shard in dataset.shards] == [(10, 8, 7), (10, 7, 8)]


def test_a_row_beyond_the_memory_is_refused_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", big=np.zeros((2, 8 << 20)), y=np.array([0, 1]))
    monkeypatch.setattr(NpySource, "_read", None)
    how: dict[str, Any] = {"label": "y", "memory_bytes": 512 << 20, "min_class_records": 1}
    with pytest.raises(
        ConfigError, match=r"a record of .*/a\.npz, with 64 MiB in the column 'big', needs about 622 MiB"
    ):
        build(BuildOptions(source=str(tmp_path / "a.npz"), destination=str(tmp_path / "out"), **how))
    assert not (tmp_path / "out").exists()


def test_more_values_than_a_list_of_arrow_holds(tmp_path: Path) -> None:
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_2_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": (1, 3_000_000_000)}
        )
        file.truncate(file.tell() + 3_000_000_000)
    with pytest.raises(SourceError, match=r"'data' has 3,000,000,000 values in each record, and a list of Arrow holds"):
        open_source(str(tmp_path / "a.npy"), None)
