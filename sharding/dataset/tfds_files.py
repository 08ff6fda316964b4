"""Metadata with which `tfds.builder_from_directory` opens a dataset of TFRecord shards in place.

Written without TensorFlow Datasets (TFDS), as its protocol buffers in JSON
(`tensorflow_datasets/core/proto/*.proto`). Every value is read exactly: raw bytes are a tensor with
``encoding='bytes'``, and a feature that some records lack is a sequence of at most one value. A dataset that cannot be
described exactly gets no metadata.

A TFDS split has a single pattern of shard names with a single number of shards. So after an append, each generation has
splits of its own, ``train_g00000``, ``train_g00001``, to combine with ``split="train_g00000+..."``; none is called
``train``, which would pass for all of it. An append replaces the metadata after its commit: until then TFDS sees the
dataset as it was. In datasets of earlier versions of ringfeed they lie in the folder of the last generation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ringfeed.sharding.schema import Feature

from .file_names import generation_of
from .manifest import Manifest, ShardInfo

_INFO_NAME = "dataset_info.json"
_FEATURES_NAME = "features.json"
TFDS_NAMES = (_INFO_NAME, _FEATURES_NAME)
TFDS_PATHS = re.compile(r"(?:g\d{5,}/)?(?:dataset_info|features)\.json")
_FEATURES = "tensorflow_datasets.core.features"
NO_NAMES: Mapping[str, Sequence[str]] = MappingProxyType({})
_MAX_SHARDS = 99_999  # of a split; with more, TFDS expects more digits in the first of a file name's two numbers
_DECODED = {"jpeg", "png", "bmp"}  # formats that TFDS's Image feature decodes to [height, width, 3]


def tfds_obstacle(manifest: Manifest, shards: Sequence[ShardInfo]) -> str:
    """Say why TFDS cannot open a dataset; empty if it can."""
    if manifest.shard_format != "tfrecord":
        return f"it reads only TFRecord shards, these are {manifest.shard_format}"
    if manifest.compression != "none":
        return f"it reads no compressed shards, these are compressed with {manifest.compression}"
    if "all" in manifest.splits:
        return "a split is named 'all', which it reserves for all splits together"
    for name, split in manifest.splits.items():
        if split.shards > _MAX_SHARDS:
            return f"split {name!r} has {split.shards:,} shards; above {_MAX_SHARDS:,} it expects other names"
    names = [_split_name(manifest, split, number) for number, split, _ in _pieces(manifest)]
    if len(set(names)) < len(names):
        return "two of its splits would have one name: a split is named like a generation of another"
    for feature in manifest.schema.features:
        if feature.elements is None and _nullable(manifest, feature):
            return f"feature {feature.name!r} holds lists of any length, and is missing from some records"
    pieces = ((generation, split, n, count) for generation, split, count in _pieces(manifest) for n in range(count))
    if [shard.path for shard in shards] != [manifest.names.shard(*piece, "tfrecord") for piece in pieces]:
        return "a repair left records out, and it does not expect the names of the shards with the others"
    return ""


def _pieces(manifest: Manifest) -> Iterator[tuple[int, str, int]]:
    """Yield what TFDS sees as a split: generation, split and number of shards."""
    for number, generation in enumerate(manifest.all_generations):
        yield from ((number, split, count) for split, count in generation.shards.items())


def _split_name(manifest: Manifest, split: str, generation: int) -> str:
    return f"{split}_g{generation:05d}" if manifest.generations else split


def _template(manifest: Manifest, split: str, generation: int) -> str:
    if not manifest.generations:
        return "{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}"
    stem, folder = manifest.names.stem(generation, split), _folder(manifest)
    stem = stem.removeprefix(folder) if stem.startswith(folder) else f"../{stem}"
    return f"{stem}{{SHARD_X_OF_Y}}.{{FILEFORMAT}}"


def _folder(manifest: Manifest) -> str:
    """Where the metadata lie: in the dataset's folder, or in its last generation's."""
    return manifest.names.folder(len(manifest.all_generations) - 1)


def is_tfds_file(path: str) -> bool:
    """Whether a path leads to a TFDS metadata file."""
    return TFDS_PATHS.fullmatch(path) is not None


def tfds_paths(manifest: Manifest) -> list[str]:
    """Return all paths at which a dataset has, or had before an append, TFDS metadata."""
    folders = {manifest.names.folder(number): None for number in range(len(manifest.all_generations))}
    return [folder + name for folder in folders for name in TFDS_NAMES]


def tfds_files(
    manifest: Manifest, shards: Sequence[ShardInfo], names: Mapping[str, Sequence[str]] = NO_NAMES
) -> dict[str, bytes]:
    """Return the metadata files by path; empty if there is a `tfds_obstacle`."""
    if tfds_obstacle(manifest, shards):
        return {}
    features = {feature.name: _feature(manifest, feature, names) for feature in manifest.schema.features}
    texts = {f"{name.replace('/', '.')}.labels.txt": "\n".join([*of, ""]).encode() for name, of in names.items()}
    folder = _folder(manifest)
    return {
        folder + _INFO_NAME: _dump(_info(manifest, shards)),
        folder + _FEATURES_NAME: _dump(_typed("features_dict.FeaturesDict", {"featuresDict": {"features": features}})),
        **{folder + path: text for path, text in texts.items()},
    }


def _dump(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def _info(manifest: Manifest, shards: Sequence[ShardInfo]) -> dict[str, Any]:
    info: dict[str, Any] = {
        "name": _name(manifest.source.get("url", "")),
        "version": "1.0.0",
        "description": f"Sharded by {manifest.writer}.",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": _split_name(manifest, split, number),
                "filepathTemplate": _template(manifest, split, number),
                "numBytes": str(sum(shard.bytes for shard in own)),
                "shardLengths": [str(shard.records) for shard in own],
            }
            for number, split, _ in _pieces(manifest)
            for own in [[s for s in shards if s.split == split and generation_of(s.path) == number]]
        ],
    }
    return info | _supervised(manifest)


def _name(url: str) -> str:
    """Make a name of letters, digits and _ from the last usable part of a URL.

    >>> _name("s3://bucket/flights-2013.csv"), _name("mnist/train-*"), _name("photos/"), _name("*/*")
    ('flights_2013', 'mnist', 'photos', 'dataset')
    """
    parts = [part for part in url.rpartition("://")[2].split("/") if part and not re.search(r"[*?\[]", part)]
    name = re.sub(r"\W+", "_", re.sub(r"(?<=.)\.\w+$", "", parts[-1] if parts else ""), flags=re.ASCII).strip("_")
    return name.lower() or "dataset"


def _supervised(manifest: Manifest) -> dict[str, Any]:
    """Describe ``as_supervised=True``: the other features (the image alone if there is exactly one) and the label."""
    others = [feature for feature in manifest.schema.features if feature.name != manifest.schema.label]
    if manifest.schema.label is None or not others:
        return {}
    images = [feature for feature in others if feature.encoding == "image"]
    inputs = images if len(images) == 1 else others
    if len(inputs) == 1:
        given: dict[str, Any] = {"featureKey": inputs[0].name}
    else:
        given = {"dict": {"dict": {feature.name: {"featureKey": feature.name} for feature in inputs}}}
    return {"supervisedKeys": {"tuple": {"items": [given, {"featureKey": manifest.schema.label}]}}}


def _feature(manifest: Manifest, feature: Feature, names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    nullable = _nullable(manifest, feature)
    if feature.name in names:
        content = {"classLabel": {"numClasses": str(len(names[feature.name]))}}
        label = _typed("class_label_feature.ClassLabel", content)
        return _sequence(label) if nullable else label
    if feature.is_image and not nullable and _image_formats(manifest, feature) <= _DECODED:
        return _typed("image_feature.Image", {"image": {"shape": _shape((None, None, 3)), "dtype": "uint8"}})
    if feature.dtype == "string" and feature.shape == () and not nullable:
        return _typed("text_feature.Text", {"text": {}})
    if feature.example_kind != "raw":
        return _tensor(feature, (None, *feature.shape) if nullable else feature.shape, "none")
    tensor = _tensor(feature, feature.shape, "bytes")
    return _sequence(tensor) if nullable else tensor


def _sequence(feature: Mapping[str, Any]) -> dict[str, Any]:
    return _typed("sequence_feature.Sequence", {"sequence": {"feature": feature, "length": "-1"}})


def _nullable(manifest: Manifest, feature: Feature) -> bool:
    return any(split.statistics[feature.name].nulls for split in manifest.splits.values())


def _image_formats(manifest: Manifest, feature: Feature) -> set[str]:
    vocabularies = (split.statistics[feature.name].vocabulary for split in manifest.splits.values())
    return {name for names in vocabularies for name in (names or ("",))}


def _tensor(feature: Feature, shape: Sequence[int | None], encoding: str) -> dict[str, Any]:
    dtype = "string" if feature.dtype == "binary" else feature.dtype
    content = {"shape": _shape(shape), "dtype": dtype, "encoding": encoding}
    return _typed("tensor_feature.Tensor", {"tensor": content})


def _shape(shape: Sequence[int | None]) -> dict[str, list[str]]:
    return {"dimensions": ["-1" if size is None else str(size) for size in shape]}


def _typed(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{_FEATURES}.{name}", **content}
