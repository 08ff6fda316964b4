"""The file of `--schema`: what it may hold, and the errors for anything else."""

import gzip
from pathlib import Path

import pytest

from ringfeed.sharding import ConfigError, Feature, SourceError, StorageError
from ringfeed.sharding.prepare import read_features
from ringfeed.sharding.sources import open_source
from tests.helpers.contents import completed


def test_types_shapes_and_encodings_are_read(tmp_path: Path) -> None:
    text = """
features:
  zip: string  # with its zeros
  pixels: {dtype: uint8, shape: [28, 28]}
  tags: {dtype: string, shape: [null]}
  photo: {dtype: binary, encoding: image}
  "größe, y": float32
"""
    (tmp_path / "types.yaml").write_text(text, encoding="utf-8")
    assert read_features((tmp_path / "types.yaml").as_uri()) == {
        "zip": Feature(name="zip", dtype="string"),
        "pixels": Feature(name="pixels", dtype="uint8", shape=(28, 28)),
        "tags": Feature(name="tags", dtype="string", shape=(None,)),
        "photo": Feature(name="photo", dtype="binary", encoding="image"),
        "größe, y": Feature(name="größe, y", dtype="float32"),
    }


NAMES = ("1", "01", "1.0", "yes", "no", "null", "~", "2020-01-01", "1e3", "12:30:45", "True", "0x1f", "a b")


def test_names_of_columns_are_read_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"{','.join(NAMES)}\n{','.join('7' * len(NAMES))}\n")
    (tmp_path / "types.yaml").write_text("features:\n" + "".join(f"  {name}: string\n" for name in NAMES))
    (tmp_path / "flow.yaml").write_text("{features: {" + ", ".join(f"{name}: string" for name in NAMES) + "}}")
    features = read_features(str(tmp_path / "types.yaml"))
    assert features == {name: Feature(name=name, dtype="string") for name in NAMES}
    assert read_features(str(tmp_path / "flow.yaml")) == features
    assert completed(open_source(str(tmp_path / "x.csv"), None, features=features)) == [dict.fromkeys(NAMES, "7")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"must be a group of keys \(features\), got None"),
        ("[]", r"must be a group of keys \(features\)"),
        ("features:", "features must be a mapping, got None"),
        ("features: {}", "features must hold NAME: DTYPE, ...; got nothing"),
        ("feature: {a: string}", "unknown key 'feature'; did you mean 'features'"),
        ("features: {a: string}\nlabel: a", "unknown key 'label'"),
        ("features: {a: text}", "features.a: there is no dtype 'text'"),
        ("features: {a: int}", "there is no dtype 'int'; did you mean 'int8'"),
        ("features: {a: {shape: [2]}}", "features.a.dtype is missing"),
        ("features: {a: {dtype: int8, shapes: [2]}}", "unknown key 'features.a.shapes'; did you mean 'shape'"),
        ("features: {a: {dtype: int8, shape: 2}}", "features.a.shape must be a list of integers or nulls, got 2"),
        ("features: {a: {dtype: int8, shape: [2, null]}}", "a variable-length shape has one dimension"),
        ("features: {a: {dtype: int8, shape: [0]}}", "a shape has no sizes below 1"),
        ("features: {a: {dtype: int8, shape: [true]}}", r"features.a.shape\[0\] must be an integer or null, got True"),
        ("features: {a: {dtype: string, encoding: image}}", "the only encoding is image"),
        ("features: {a: {dtype: binary, encoding: jpeg}}", "the only encoding is image"),
        ("features: {a: 3}", r"features.a must be text or a group of keys \(dtype, shape, encoding\), got 3"),
        ("features: {a: {yes: string}}", "unknown key 'features.a.True'; the keys are: dtype"),
        ("features: {1: string, '1': int8}", "the key '1' appears twice"),
        ("features: {a: string, a: int8}", "the key 'a' appears twice"),
        ("features: {a: !!python/name:os.system x}", "is not YAML"),
        ("features: {a", "is not YAML"),
        ("a: \x00", "is not YAML"),
    ],
)
def test_anything_else_is_an_error_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "types.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told) as error:
        read_features(str(path))
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_compressed_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "types.yaml.gz"
    path.write_bytes(gzip.compress(b"features: {zip: string}")[:-9])
    with pytest.raises(SourceError, match=r"types\.yaml\.gz: .*; the compressed file is damaged or cut short"):
        read_features(str(path))


def test_a_missing_schema_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_features(str(tmp_path / "none.yaml"))
    with pytest.raises(StorageError, match=r"cannot read .*: it is a folder, where a file must be; check the path"):
        read_features(str(tmp_path))
