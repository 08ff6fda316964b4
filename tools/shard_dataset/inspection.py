"""The report of `shard-dataset inspect`: contents, balance, origin, statistics, and how to read without ringfeed."""

from __future__ import annotations

import glob
from dataclasses import asdict
from typing import Any

from ringfeed.sharding import Dataset, Feature, FeatureStatistics, ImageStatistics, Manifest, RingfeedError
from ringfeed.sharding.dataset.tfds_files import is_tfds_file, tfds_obstacle
from ringfeed.sharding.messages import counted, one_line
from ringfeed.tools.console import align, human_bytes

from .balance_report import balance_json, balance_of_dataset, balance_text, shares_json, shares_text
from .repair_report import lost_json, lost_lines

FEATURE_HEADER = ("feature", "dtype", "shape", "role")

_SPEC_DTYPES = {"int64": "tf.int64", "float": "tf.float32", "bytes": "tf.string", "raw": "tf.string"}
_VOCABULARY_SHOWN = 6
_GENERATIONS_SHOWN = 4


def inspection_json(dataset: Dataset) -> dict[str, Any]:
    """The whole report, for `--json`."""
    manifest = dataset.manifest
    nullable = _nullable(manifest)
    return {
        "url": dataset.storage.locate(),
        "format": manifest.shard_format,
        "compression": manifest.compression,
        "records": manifest.records,
        "bytes": sum(shard.bytes for shard in dataset.shards),
        "fixed_layout": manifest.layout is not None,
        "seed": manifest.seed,
        "writer": manifest.writer,
        "source": dict(manifest.source),
        "options": dict(manifest.options),
        "label": manifest.schema.label,
        "classes": list(manifest.classes),
        "features": [
            feature.to_json()
            | {
                "spec": feature_spec(feature, nullable=feature.name in nullable),
                "statistics": {
                    name: _statistics_json(split.statistics[feature.name]) for name, split in manifest.splits.items()
                },
            }
            for feature in manifest.schema.features
        ],
        "splits": balance_json(balance_of_dataset(dataset), manifest.classes),
        "tfds_obstacle": _tfds_obstacle(dataset) or None,
        "groups": shares_json(balance_of_dataset(dataset), manifest.options, {}),
        "generations": [generation.to_json() for generation in manifest.all_generations],
        "lost": lost_json(manifest),
        "skipped": skipped_json(dataset),
        "reading": reading_example(dataset),
    }


def inspection_text(dataset: Dataset) -> str:
    """The report for people."""
    manifest = dataset.manifest
    data_bytes = sum(shard.bytes for shard in dataset.shards)
    layout = f", fixed layout of {counted(manifest.layout.example_bytes, 'byte')}" if manifest.layout else ""
    codec = "" if manifest.compression == "none" else f" ({manifest.compression})"
    reason = _tfds_obstacle(dataset)
    lines = [
        f"{dataset.storage.locate()}",
        f"  holds    {counted(manifest.records, 'record')} in {counted(len(dataset.shards), 'shard')} of "
        f"{manifest.shard_format}{codec}, {human_bytes(data_bytes)}{layout}",
        f"  from     {one_line(manifest.source.get('url', 'unknown'))} "
        f"(fingerprint {manifest.source.get('fingerprint', 'unknown')})",
        f"  written  by {manifest.writer}, seed {manifest.seed}",
        f"  label    {one_line(manifest.schema.label) if manifest.schema.label is not None else '(none)'}",
        f"  tfds     {f'cannot open it: {reason}' if reason else f'opens it{_tfds_place(manifest)}'}",
        *lost_lines(manifest),
        *_skipped_lines(dataset),
        *_generation_lines(manifest),
        "",
        *balance_text(balance_of_dataset(dataset), manifest.classes),
        *shares_text(balance_of_dataset(dataset), manifest.options, {}),
        "",
        *_feature_table(manifest),
        "",
        "To read it without ringfeed:",
        "",
        *("  " + line if line else "" for line in reading_example(dataset).splitlines()),
    ]
    return "\n".join(lines)


def skipped_json(dataset: Dataset, generation: int | None = None) -> dict[str, int | None]:
    """Count the skipped bad records by the path of the file that lists them; None for a file that cannot be read.

    Args:
        dataset: the dataset.
        generation: the only generation to count; None: all.
    """
    generations = range(len(dataset.manifest.all_generations)) if generation is None else [generation]
    return {
        path: _count_lines(dataset, path)
        for path in map(dataset.manifest.names.rejected, generations)
        if path in dataset.manifest.files
    }


def _count_lines(dataset: Dataset, path: str) -> int | None:
    try:
        return dataset.storage.read(path).count(b"\n")
    except (RingfeedError, FileNotFoundError):  # `verify` reports it
        return None


def _skipped_lines(dataset: Dataset) -> list[str]:
    skipped = skipped_json(dataset)
    if not skipped:
        return []
    first = next(iter(skipped))
    files = f"{counted(len(skipped), 'file')} from {first} on" if len(skipped) > 1 else first
    if None in skipped.values():
        return [f"  skipped  bad records, listed in {files}, which cannot be read; see: shard-dataset verify"]
    return [f"  skipped  {counted(sum(filter(None, skipped.values())), 'bad record')}, listed in {files}"]


def _generation_lines(manifest: Manifest) -> list[str]:
    """A table of what the build and each append wrote; no line if nothing was appended."""
    if not manifest.generations:
        return []
    rows = [
        [
            str(number),
            f"{sum(generation.records.values()):,}",
            f"{sum(generation.shards.values()):,}",
            f"{generation.classes:,}",
            str(generation.seed),
            one_line(generation.source.get("url", "unknown")),
        ]
        for number, generation in enumerate(manifest.generations)
    ]
    table = align(["generation", "records", "shards", "classes", "seed", "from"], rows)
    return ["", *table, "each generation's shards are balanced with each other"]


def feature_spec(feature: Feature, *, nullable: bool) -> str:
    """The specification with which `tf.io.parse_example` parses the feature, as Python source.

    >>> feature_spec(Feature(name="x", dtype="float32", shape=(32,)), nullable=False)
    'tf.io.FixedLenFeature([32], tf.float32)'
    """
    dtype = _SPEC_DTYPES[feature.example_kind]
    if feature.example_kind == "raw":
        return f"tf.io.{'VarLenFeature(' if nullable else 'FixedLenFeature([], '}{dtype})"
    if nullable:
        return f"tf.io.VarLenFeature({dtype})"
    if feature.fixed_shape is None:
        return f"tf.io.RaggedFeature({dtype})"
    return f"tf.io.FixedLenFeature({list(feature.fixed_shape)}, {dtype})"


def reading_example(dataset: Dataset) -> str:
    """A few lines of Python that read the first split with TensorFlow or pyarrow alone."""
    manifest = dataset.manifest
    split = next(iter(manifest.splits))
    root = dataset.storage.locate()
    if manifest.shard_format == "parquet":
        return "\n".join(_parquet_lines(dataset, split))
    folders = dict.fromkeys(map(manifest.names.folder, range(len(manifest.all_generations))))
    patterns = [f"{glob.escape(root)}/{folder}{split}-*.tfrecord" for folder in folders]
    nullable = _nullable(manifest)
    compression = "" if manifest.compression == "none" else f", compression_type={manifest.compression.upper()!r}"
    lines = ["import tensorflow as tf", "", "spec = {"]
    lines += [f"    {f.name!r}: {feature_spec(f, nullable=f.name in nullable)}," for f in manifest.schema.features]
    lines += [
        "}",
        f"files = tf.io.gfile.glob({(patterns[0] if len(patterns) == 1 else patterns)!r})",
        f"records = tf.data.TFRecordDataset(files{compression}).batch(1024)",
    ]
    decoding = [_decoding_line(feature, nullable=feature.name in nullable) for feature in manifest.schema.features]
    if not any(decoding):
        return "\n".join([*lines, "dataset = records.map(lambda batch: tf.io.parse_example(batch, spec))"])
    lines += ["", "", "def parse(batch):", "    columns = tf.io.parse_example(batch, spec)"]
    lines += [f"    {line}" for line in decoding if line]
    return "\n".join([*lines, "    return columns", "", "", "dataset = records.map(parse)"])


def _parquet_lines(dataset: Dataset, split: str) -> list[str]:
    root = dataset.storage.locate()
    if dataset.storage.local_path is None:
        file = f"{root}/{dataset.split_shards(split)[0].path}"
        return ["import pyarrow.parquet as pq", "", f"table = pq.read_table({file!r})  # one shard of split {split!r}"]
    folders = dict.fromkeys(map(dataset.manifest.names.folder, range(len(dataset.manifest.all_generations))))
    files = " + ".join(f"glob({f'{glob.escape(root)}/{folder}{split}-*.parquet'!r})" for folder in folders)
    lines = ["from glob import glob", "", "import pyarrow.dataset", ""]
    lines.append(f"table = pyarrow.dataset.dataset(sorted({files})).to_table()")
    for feature in dataset.manifest.schema.features if dataset.manifest.declares_tensors else ():
        if feature.fixed_shape and len(feature.shape) > 1:
            shape = ["records", *feature.fixed_shape]
            array = f"table[{feature.name!r}].combine_chunks().to_numpy_ndarray()"
            lines.append(f"# [{', '.join(map(str, shape))}]: {array}")
    return lines


def float64_as_bytes(manifest: Manifest) -> list[str]:
    """The features of float64 that TFRecord shards hold as raw bytes, since `tf.train.Example` has only float32."""
    if manifest.shard_format != "tfrecord":
        return []
    return [feature.name for feature in manifest.schema.features if feature.dtype == "float64"]


def _decoding_line(feature: Feature, *, nullable: bool) -> str:
    """The line that decodes a parsed feature, or a comment that says how; empty if it needs no decoding."""
    column = f"columns[{feature.name!r}]"
    if feature.encoding == "image":
        return f"# {column} holds image files, to decode one at a time: tf.io.decode_image(value)"
    if feature.example_kind == "raw":
        if feature.fixed_shape is None or nullable:
            decode = f"tf.io.decode_raw(value, tf.{feature.dtype})"
            return f"# {column} holds raw bytes of several lengths, to decode one at a time: {decode}"
        decode = f"tf.io.decode_raw({column}, tf.{feature.dtype})"
        return f"{column} = tf.reshape({decode}, {[-1, *feature.fixed_shape]})"
    if feature.logical:
        return f"# {column} is a {feature.logical} stored as {feature.dtype}"
    stored = {"int64": "int64", "float": "float32", "bytes": feature.dtype}[feature.example_kind]
    return "" if feature.dtype == stored else f"{column} = tf.cast({column}, tf.{feature.dtype})"


def _tfds_place(manifest: Manifest) -> str:
    last = len(manifest.all_generations) - 1
    if not last:
        return ": tfds.builder_from_directory"
    split = next(iter(manifest.splits))
    names = [f"{split}_g{generation:05d}" for generation in range(last + 1)]
    whole = "+".join(names if last < _GENERATIONS_SHOWN else [*names[:2], "...", names[-1]])
    folder = manifest.names.folder(last)
    return f": tfds.builder_from_directory{f' of {folder}' if folder else ''}; a whole split is {whole}"


def _tfds_obstacle(dataset: Dataset) -> str:
    if any(map(is_tfds_file, dataset.manifest.files)):
        return ""
    return (
        tfds_obstacle(dataset.manifest, dataset.shards)
        or "an earlier version of ringfeed wrote it, without the metadata"
    )


def _nullable(manifest: Manifest) -> set[str]:
    return {
        name for split in manifest.splits.values() for name, statistics in split.statistics.items() if statistics.nulls
    }


def _feature_table(manifest: Manifest) -> list[str]:
    split = next(iter(manifest.splits))
    statistics = manifest.splits[split].statistics
    rows = [
        [*feature_cells(feature, manifest.schema.label), _statistics_words(statistics[feature.name])]
        for feature in manifest.schema.features
    ]
    return align([*FEATURE_HEADER, f"in split {split!r}"], rows, left=5)


def feature_cells(feature: Feature, label: str | None) -> list[str]:
    """A feature's cells below `FEATURE_HEADER`."""
    shape = "x".join("?" if size is None else str(size) for size in feature.shape) or "-"
    role = "label" if feature.name == label else feature.encoding or feature.logical
    return [one_line(feature.name), feature.dtype, shape, role]


def _statistics_words(statistics: FeatureStatistics) -> str:
    words = []
    if statistics.min is not None and statistics.max is not None:
        words.append(f"{statistics.min:.6g} to {statistics.max:.6g}")
    if statistics.mean is not None and statistics.std is not None:
        words.append(f"mean {statistics.mean:.6g}, std {statistics.std:.6g}")
    if statistics.vocabulary is not None:
        shown = ", ".join(map(one_line, statistics.vocabulary[:_VOCABULARY_SHOWN]))
        more = ", ..." if len(statistics.vocabulary) > _VOCABULARY_SHOWN else ""
        words.append(f"{counted(len(statistics.vocabulary), 'value')}: {shown}{more}")
    words += [] if statistics.image is None else [_image_words(statistics.image)]
    words += [f"{statistics.nulls:,} without a value"] if statistics.nulls else []
    words += [f"{statistics.nonfinite:,} NaN or infinite"] if statistics.nonfinite else []
    return "; ".join(words)


def _image_words(image: ImageStatistics) -> str:
    words = []
    if image.images:
        heights, widths = _bounds(image.min_height, image.max_height), _bounds(image.min_width, image.max_width)
        words.append(f"{heights} high, {widths} wide")
    if image.rotated:
        words.append(f"{image.rotated:,} turned by EXIF")
    if image.mean is not None and image.std is not None:
        mean, std = ("/".join(f"{value:.1f}" for value in values) for values in (image.mean, image.std))
        words.append(f"RGB mean {mean}, std {std} (of {image.sampled:,} images)")
    return "; ".join(words)


def _bounds(low: int | None, high: int | None) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _statistics_json(statistics: FeatureStatistics) -> dict[str, Any]:
    return {name: value for name, value in asdict(statistics).items() if name != "mean_rest"}
