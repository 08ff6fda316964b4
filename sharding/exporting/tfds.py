"""A folder for TensorFlow Datasets: class ids, with their names, stand for the label and for ordered categories.

The shards of a dataset hold the values themselves, and TFDS reads a `ClassLabel` only from integers. So the export
writes TFRecord shards of its own, whatever the dataset's format, with the metadata of `dataset/tfds_files.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.dataset.file_names import NAMES
from ringfeed.sharding.dataset.manifest import Manifest, ShardInfo
from ringfeed.sharding.dataset.tfds_files import tfds_files, tfds_obstacle
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.formats import ShardEncoding, open_encoder
from ringfeed.sharding.schema import Schema, class_names

Names = Mapping[str, Sequence[str]]


def named_columns(schema: Schema, classes: Sequence[Any]) -> dict[str, list[str]]:
    """The names of the values of the label and of ordered categories, by column.

    TFDS reads the names from lines without the blanks around them, so columns with names that this changes have none.
    """
    named = {feature.name: list(feature.categories) for feature in schema.features if feature.categories}
    if schema.label is not None:
        named[schema.label] = class_names(schema, classes)
    return {
        column: names
        for column, names in named.items()
        if len(set(names)) == len(names) and all(name and [name] == name.strip().split("\n") for name in names)
    }


def tfds_shard(batches: Iterable[pa.RecordBatch], schema: Schema, classes: Sequence[Any]) -> pa.Buffer:
    """Return the rows of one shard as a TFRecord file."""
    names = named_columns(schema, classes)
    target, sink = _with_ids(schema, names), pa.BufferOutputStream()
    encoder = open_encoder(
        sink, ShardEncoding(schema=target, stored=target.arrow, shard_format="tfrecord", compression="none")
    )
    for batch in batches:
        columns = [
            _ids(column, classes if name == schema.label else names[name]) if name in names else column
            for name, column in zip(schema.names, batch.columns, strict=True)
        ]
        encoder.write(pa.RecordBatch.from_arrays(columns, schema=target.arrow), np.zeros(batch.num_rows, np.int32))
    encoder.finish(lambda: b"")
    return sink.getvalue()


def tfds_metadata(manifest: Manifest, splits: Sequence[str], shards: Sequence[ShardInfo]) -> dict[str, bytes]:
    """Return the metadata of an export by path; a ConfigError if TFDS cannot read it exactly."""
    names = named_columns(manifest.schema, manifest.classes)
    exported = replace(
        manifest,
        shard_format="tfrecord",
        compression="none",
        schema=_with_ids(manifest.schema, names),
        splits={name: manifest.splits[name] for name in splits},
        shards_path=NAMES.table(0),
        generations=(),
        lost=(),
    )
    if obstacle := tfds_obstacle(exported, shards):
        raise ConfigError(f"TensorFlow Datasets cannot open this export: {obstacle}; use another --to")
    return tfds_files(exported, shards, names)


def _with_ids(schema: Schema, names: Names) -> Schema:
    return replace(
        schema,
        features=tuple(
            replace(feature, dtype="int64", logical="", categories=()) if feature.name in names else feature
            for feature in schema.features
        ),
    )


def _ids(column: pa.Array, values: Sequence[Any]) -> pa.Array:
    return pc.index_in(column, value_set=pa.array(values, column.type)).cast(pa.int64())
