"""WebDataset reads what `export` wrote, every value as it was."""

import gc
import tarfile
import warnings
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.sharding import ExportOptions, Feature, Schema, export
from ringfeed.sharding.exporting.webdataset import webdataset_tar
from tests.helpers.builds import built
from tests.helpers.kinds import ROWS, columns, image, plain, values_of, write_kinds

webdataset = pytest.importorskip("webdataset")


def read(tars: list[str], *decoders: str) -> list[dict[str, Any]]:
    """All samples; the files, which WebDataset leaves open, are closed here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(webdataset.WebDataset(tars, shardshuffle=False).decode(*decoders))
        gc.collect()
    return samples


@pytest.fixture(scope="module", params=["tfrecord", "parquet"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("webdataset")
    source = write_kinds(folder / "x.parquet")
    built(source, folder / "dataset", label="label", shards=3, shard_format=request.param)
    export(ExportOptions(url=str(folder / "dataset"), destination=str(folder / "out"), to="webdataset"))
    return folder / "out"


@pytest.fixture(scope="module")
def samples(exported: Path) -> dict[int, dict[str, Any]]:
    tars = [str(path) for path in sorted(exported.glob("*.tar"))]
    assert len(tars) == 3
    return {sample["json"]["id"]: sample for sample in read(tars)}


def member_name(column: str) -> str:
    return column.replace(" ", "_").replace("/", "_")


@pytest.mark.parametrize("name", columns())
def test_every_value_is_read_exactly(samples: dict[int, dict[str, Any]], name: str) -> None:
    assert len(samples) == ROWS
    for i, value in enumerate(values_of(name)):
        sample, ending = samples[i], {"binary": "bin", "string": "json"}.get(name.split()[-1], "npy")
        if ending == "npy" and name.startswith(("tensor", "missing v", "missing c")):
            found = sample.get(f"{member_name(name)}.npy")
        elif ending == "bin":
            found = sample[f"{member_name(name)}.bin"]
        else:
            found = sample["json"][name]
        assert repr(plain(found)) == repr(plain(value))


def test_tensors_keep_their_type_and_shape(samples: dict[int, dict[str, Any]]) -> None:
    for name, shape in {"tensor uint8": (3, 2), "tensor float32": (2, 2), "tensor float64": (2, 3)}.items():
        tensor = samples[3][f"{member_name(name)}.npy"]
        assert (tensor.dtype, tensor.shape) == (np.dtype(name.split()[1]), shape)


def test_images_keep_their_format_and_classes_are_ids(samples: dict[int, dict[str, Any]]) -> None:
    for i, sample in samples.items():
        assert sample[("png", "jpg", "bmp")[i % 3]] == image(i)
        assert sample["json"]["label"] == ("odd", "even")[i % 2]
        assert sample["cls"] == ("even", "odd").index(sample["json"]["label"])


def test_webdataset_decodes_images(exported: Path) -> None:
    tars = [str(path) for path in sorted(exported.glob("*.tar"))]
    for sample in read(tars, "rgb8"):
        i = sample["json"]["id"]
        assert sample[("png", "jpg", "bmp")[i % 3]].shape == (2 + i % 3, 4, 3)


def test_keys_are_unique_and_members_of_a_record_adjacent(exported: Path) -> None:
    keys = []
    for path in sorted(exported.glob("*.tar")):
        with tarfile.open(path) as tar:
            members = tar.getmembers()
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}
        keys += list(dict.fromkeys(member.name.partition(".")[0] for member in members))
        assert len([m.name for m in members]) == len({m.name for m in members})
    assert len(keys) == len(set(keys)) == ROWS


def test_features_whose_names_look_alike_have_members_of_their_own() -> None:
    names = ("a.b", "A/B", "a_b", "é")
    schema = Schema(features=tuple(Feature(name=name, dtype="binary") for name in names))
    batch = pa.record_batch([pa.array([name.encode()]) for name in names], schema=schema.arrow)
    with tarfile.open(fileobj=BytesIO(webdataset_tar([batch], schema, (None,), "k"))) as tar:
        content = {member.name: tar.extractfile(member).read().decode() for member in tar}  # type: ignore[union-attr]
    assert content == {f"k-0000000.{m}.bin": n for m, n in zip(("a_b", "a_b_2", "a_b_3", "_"), names, strict=True)}


def test_each_of_several_images_has_its_name_and_a_missing_one_no_member() -> None:
    schema = Schema(features=tuple(Feature(name=name, dtype="binary", encoding="image") for name in ("left", "right")))
    batch = pa.record_batch([pa.array([image(0), None], pa.binary()), [b"?", image(1)]], schema=schema.arrow)
    with tarfile.open(fileobj=BytesIO(webdataset_tar([batch], schema, (None,), "k"))) as tar:
        assert tar.getnames() == ["k-0000000.left.png", "k-0000000.right.img", "k-0000001.right.jpg"]


@pytest.mark.parametrize("length", [1, 77, 78, 300])
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513])
def test_the_tar_is_valid_for_names_and_contents_of_any_length(length: int, size: int) -> None:
    schema = Schema(features=(Feature(name="x" * length, dtype="binary"),))
    batch = pa.record_batch([pa.array([b"a" * size, b"b"])], schema=schema.arrow)
    with tarfile.open(fileobj=BytesIO(webdataset_tar([batch], schema, (None,), "train-00000"))) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert found == {f"train-00000-000000{i}.{'x' * length}.bin": b for i, b in enumerate([b"a" * size, b"b"])}


def test_bytes_in_lists_are_base64() -> None:
    schema = Schema(features=(Feature(name="x", dtype="binary", shape=(None,)),))
    batch = pa.record_batch([pa.array([[b"\xff", b""]], pa.list_(pa.binary()))], schema=schema.arrow)
    with tarfile.open(fileobj=BytesIO(webdataset_tar([batch], schema, (None,), "k"))) as tar:
        assert tar.extractfile("k-0000000.json").read() == b'{"x": ["/w==", ""]}'  # type: ignore[union-attr]
