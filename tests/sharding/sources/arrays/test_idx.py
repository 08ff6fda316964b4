"""IDX files, the format of MNIST."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfeed.sharding import SourceError
from ringfeed.sharding.sources import open_source
from tests.helpers.builds import built

CODES = {"uint8": 0x08, "int16": 0x0B, "float32": 0x0D}


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, CODES[str(values.dtype)], values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return head + values.astype(values.dtype.newbyteorder(">")).tobytes()


def write(folder: Path, images: bytes, labels: bytes, ending: str = "") -> str:
    pack = gzip.compress if ending else bytes
    (folder / f"train-labels-idx1-ubyte{ending}").write_bytes(pack(labels))
    path = folder / f"train-images-idx3-ubyte{ending}"
    path.write_bytes(pack(images))
    return str(path)


@pytest.mark.parametrize("dtype", list(CODES))
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_images_and_labels_are_read_in_step(tmp_path: Path, dtype: str, ending: str) -> None:
    images = np.arange(5000 * 6).reshape(5000, 2, 3).astype(dtype)
    labels = (np.arange(5000) % 7).astype(np.uint8)
    source = open_source(write(tmp_path, idx(images), idx(labels), ending), "digit")
    batches = [batch for part in source.parts for batch in source.drafts(part)]
    found = np.concatenate([np.array(batch.column("image").to_pylist(), dtype) for batch in batches])
    assert np.array_equal(found.reshape(5000, 2, 3), images)
    assert [v for batch in batches for v in batch.column("digit").to_pylist()] == labels.tolist()
    assert source.schema["image"].shape == (2, 3)
    assert source.sample(source.parts[0], 3).num_rows == 3
    assert open_source(str(tmp_path), None).fingerprint == source.fingerprint


def test_the_names_of_pairs_may_hold_any_dimensions(tmp_path: Path) -> None:
    images = np.arange(8 * 12, dtype=np.uint8).reshape(8, 2, 2, 3)
    (tmp_path / "train-images.idx4-ubyte").write_bytes(idx(images))
    (tmp_path / "train-labels.idx1-ubyte").write_bytes(idx(np.arange(8, dtype=np.uint8)))
    source = open_source(str(tmp_path), None)
    assert source.schema["image"].shape == (2, 2, 3)
    assert np.array_equal(next(source.drafts(source.parts[0])).column("image").flatten(), images.ravel())


def test_batches_of_large_images_are_small(tmp_path: Path) -> None:
    images = np.zeros((40, 1024, 1024), np.uint8)
    source = open_source(write(tmp_path, idx(images), idx(np.arange(40, dtype=np.uint8))), None)
    batches = [batch for part in source.parts for batch in source.drafts(part)]
    assert [batch.num_rows for batch in batches] == [16, 16, 8]
    assert [v for batch in batches for v in batch.column("label").to_pylist()] == list(range(40))


def test_a_pair_may_be_empty(tmp_path: Path) -> None:
    folder = tmp_path / "pairs"
    folder.mkdir()
    for name, records in (("a", 0), ("b", 2)):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(np.ones((records, 2, 2), np.uint8)))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(np.ones(records, np.uint8)))
    assert built(str(folder), tmp_path / "out", source_kind="idx", label="label").manifest.records == 2


IMAGES, LABELS = idx(np.zeros((4, 2, 2), np.uint8)), idx(np.zeros(4, np.uint8))


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[:-1], LABELS, "the file ends at record 3 of 4"),
        (IMAGES + b"x", LABELS, "goes on after its 4 records"),
        (IMAGES[:9], LABELS, "ends inside its header"),
        (b"hello world", LABELS, "no IDX file"),
        (b"", LABELS, "no IDX file"),
        (IMAGES, idx(np.zeros(3, np.uint8)), r"holds 4 images, .* has shape \(3,\)"),
        (idx(np.zeros(4, np.uint8)), LABELS, "each image needs at least one"),
        (idx(np.zeros((4, 0, 2), np.uint8)), LABELS, r"images of shape \(0, 2\) are empty"),
        (
            IMAGES[:8] + b"\xff" * 8,
            LABELS,
            r"images of shape \(4294967295, 4294967295\) are empty, or hold more than 2\^31",
        ),
    ],
)
def test_a_bad_pair_is_named_with_its_fault(tmp_path: Path, images: bytes, labels: bytes, message: str) -> None:
    url = write(tmp_path, images, labels)
    with pytest.raises(SourceError, match=message):
        read(url)


def read(url: str) -> None:
    source = open_source(url, None)
    list(source.drafts(source.parts[0]))


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    url = write(tmp_path, IMAGES, LABELS)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(SourceError, match=r"has no labels: expected them in .*train-labels-idx1-ubyte"):
        open_source(url, None)


def test_pairs_of_different_shapes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, IMAGES, LABELS)
    other: Any = idx(np.zeros((4, 3, 3), np.uint8))
    (tmp_path / "zz-images-idx3-ubyte").write_bytes(other)
    (tmp_path / "zz-labels-idx1-ubyte").write_bytes(LABELS)
    with pytest.raises(SourceError, match="different types or shapes"):
        open_source(str(tmp_path), None)


def test_a_file_beside_its_compressed_copy_is_refused(tmp_path: Path) -> None:
    write(tmp_path, IMAGES, LABELS)
    for path in list(tmp_path.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(
        SourceError, match=r"images-idx3-ubyte\.gz and its decompressed copy .* are both there; remove one"
    ):
        open_source(str(tmp_path), None)
