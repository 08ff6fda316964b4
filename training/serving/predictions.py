"""Predictions for the records of a dataset: a Parquet file for each rank, of the records' numbers, classes and scores.

Each rank reads a part of the split of its own, in the order of the dataset. `_predictions.json` is written last, and so
says that all files are there.
Tested in tests/training/serving/test_predict.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.pipeline.select.sample_columns import mask_name
from ringfeed.pipeline.transforms.apply import unconverted
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.destination.held_folder import hold_folder
from ringfeed.sharding.destination.leftovers import abort_uploads, remove_files
from ringfeed.sharding.destination.provenance import Provenance, digest_of
from ringfeed.sharding.errors import ConfigError, RingfeedError
from ringfeed.sharding.messages import did_you_mean, listed
from ringfeed.sharding.prepare.expression import filter_complete
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.storage.atomic_files import draft_target
from ringfeed.sharding.storage.lease import is_lease_file
from ringfeed.sharding.storage.storage import Storage
from ringfeed.training.ring.ring import Ring

from .prediction_columns import NAMES, PREDICTED, RECORD, warn_undefined
from .trained import TrainedModel

SUMMARY = "_predictions.json"
_LEASE = "_predicting.json"
_FORMAT = "ringfeed-predictions-1"
_GROUP_ROWS = 1 << 16  # readers of Parquet skip and decode whole row groups


@contextmanager
def hold_predictions(url: str, digest: str) -> Iterator[Storage | None]:
    """Yield a folder to write predictions to, without leftovers; nothing remains in it if the body fails.

    If the folder holds predictions of the same digest (`Predictor.digest`), they stay, and None is yielded. A
    ConfigError says that it holds others, or other files, a DestinationError that another process writes predictions
    there.
    """
    with hold_folder(Storage(url), {"task": "predict"}, _LEASE, "name another folder with --out") as storage:
        if Provenance(record=SUMMARY, digest=digest).made(storage):
            parts = {part["path"] for part in read_summary(storage)["files"]}
            if parts <= {*storage.list()}:
                yield None
                return
        prepare_folder(storage, url)
        try:
            yield storage
        except BaseException:
            with suppress(RingfeedError):  # the error of the body matters
                prepare_folder(storage, url)
            raise


def read_summary(storage: Storage) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(storage.read(SUMMARY))
    return summary


def prepare_folder(storage: Storage, url: str) -> None:
    """Check that a folder, called `url` in errors, holds no predictions or other files, and remove leftovers."""
    files = [name for name in storage.list() if not is_lease_file(name, _LEASE)]
    if SUMMARY in files:
        raise ConfigError(
            f"--out: {url} holds predictions already, but not (or not all) of this model and dataset, with these "
            "options; remove it, or name another folder"
        )
    own = [name for name in files if _is_own(draft_target(name) or name)]
    if others := sorted(set(files) - set(own)):
        raise ConfigError(f"--out: {url} holds other files ({listed(others)}); name an empty folder")
    remove_files(storage, own)
    abort_uploads(storage, _is_own)


def _is_own(name: str) -> bool:
    is_part = re.fullmatch(r"part-\d{5}-of-\d{5}\.parquet", name) is not None
    return is_part or name == SUMMARY or is_lease_file(name, _LEASE)


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Predicts the classes of the records of one split.

    Raises:
        ConfigError: the dataset lacks a column, or has it in another dtype; or two outputs would have one name.
    """

    model: TrainedModel
    url: str  # the dataset, which has the columns that the model takes
    manifest: Manifest
    split: str
    keep: Sequence[str]  # columns to copy to the output
    batch_size: int  # records that a rank scores at once

    def __post_init__(self) -> None:
        schema = self.manifest.schema
        for feature in self.model.columns:
            if feature.name not in schema.names:
                raise ConfigError(f"{self.url} has no column {feature.name!r}, which the model takes")
            own = schema[feature.name]
            if (own.dtype, own.shape) != (feature.dtype, feature.shape):
                raise ConfigError(
                    f"{self.url}: the model takes {_described(feature)} in column {feature.name!r}, which holds "
                    f"{_described(own)}"
                )
            self._check_missing(feature)
        for name in self.keep:
            if name not in schema.names:
                hint = did_you_mean(name, schema.names, f"the columns are: {listed(schema.names)}")
                raise ConfigError(f"--keep: {self.url} has no column {name!r}; {hint}")
            if name in NAMES:
                raise ConfigError(f"--keep: {name!r} is the name of an output; rename the column in the dataset")
        if len(set(self.keep)) != len(self.keep):
            raise ConfigError(f"--keep: each column once, got {', '.join(self.keep)}")

    def _check_missing(self, feature: Feature) -> None:
        """Refuse missing values that the network would take for others: it has no mask for them."""
        nulls = self.manifest.split(self.split).statistics[feature.name].nulls
        has_mask = feature in self.model.masked or self.model.config.model.name in ("tabular", "wide_deep")
        if nulls and not has_mask and feature.elements is not None and not feature.dtype.startswith("float"):
            raise ConfigError(
                f"{self.url}: {nulls} values of column {feature.name!r} are missing in split {self.split!r}, and none "
                f"were in training; drop such records: shard-dataset reshard {filter_complete(feature.name)}"
            )

    @cached_property
    def digest(self) -> str:
        """Digest of all that decides the predictions: the model, the dataset, its split, the columns to keep."""
        return digest_of(_FORMAT, self.model.identity, self.manifest.identity, self.split, self.keep)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the files: record, kept columns, prediction, and scores where the task has them."""
        kept = Schema(features=tuple(self.manifest.schema[name] for name in self.keep)).arrow if self.keep else ()
        fields = [pa.field(RECORD, pa.int64()), *kept, *self.model.predictions.fields]
        return pa.schema(fields, metadata={"classes": json.dumps(self.model.predictions.classes.to_pylist())})

    def run(self, ring: Ring, storage: Storage, show: Callable[[int, int], object] = lambda *_: None) -> dict[str, Any]:
        """Write this rank's file, and on rank 0 the summary at last (a collective); return the summary.

        `show` is called with the records done and to do of this rank.
        """
        name = f"part-{ring.rank:05d}-of-{ring.size:05d}.parquet"
        loader = self._open(ring)
        records = undefined = 0
        with storage.open_output(name) as file, pq.ParquetWriter(file, self.schema) as writer:
            for rows in _grouped(self._tables(loader), self.schema):
                writer.write_table(rows)
                records += rows.num_rows
                undefined += rows.column(PREDICTED).null_count
                show(records, -(-loader.records // ring.size))
        parts = ring.allgather_object({"path": name, "records": records})
        without = sum(ring.allgather_object(undefined))
        if ring.rank == 0:
            warn_undefined(without)
        summary = {
            "format": _FORMAT,
            "made_from": self.digest,
            "dataset": self.manifest.identity,
            "split": self.split,
            "records": sum(part["records"] for part in parts),
            "task": self.model.target.task,
            "classes": self.model.predictions.classes.to_pylist(),
            "step": self.model.step,
            "files": parts,
            **({"undefined": without} if without else {}),
        }
        if ring.rank == 0:
            storage.write(SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())
        return summary

    @cached_property
    def _masks(self) -> list[str]:
        """The columns whose missing values are marked: for the network, or because they are kept."""
        known = self.manifest.split(self.split).statistics
        inputs = [feature for feature in self.model.columns if feature.elements and "float" not in feature.dtype]
        marked = [*(feature.name for feature in inputs), *self.keep]
        return list(dict.fromkeys([f.name for f in self.model.masked] + [name for name in marked if known[name].nulls]))

    def _open(self, ring: Ring) -> Loader:
        records = self.manifest.split(self.split).records
        inputs = [feature.name for feature in self.model.columns]
        return Loader(
            self.url,
            split=self.split,
            batch_size=self.batch_size * ring.size,
            rank=ring.rank,
            world_size=ring.size,
            streams=ring.size if records >= ring.size else 1,
            shuffle=False,
            remainder="pad",
            masks=self._masks,
            columns=list(dict.fromkeys([*inputs, *self.keep])),
        )

    def _tables(self, loader: Loader) -> Iterator[pa.Table]:
        inputs = [feature.name for feature in self.model.columns]
        score = tf.function(self.model.scores_of, reduce_retracing=True, autograph=False)
        masks = [mask_name(name) for name in self._masks]
        taken = [*inputs, *(mask for mask, name in zip(masks, self._masks, strict=True) if name in inputs)]

        @unconverted
        def prepare(element: Mapping[str, Any]) -> Any:
            kept = {name: element[name] for name in [*self.keep, *masks]}
            return self.model.inputs({name: element[name] for name in taken}), kept, element["sample_weight"]

        for step, (tensors, kept, weight) in enumerate(loader.batches(0, transform=prepare)):
            is_real = weight.numpy() > 0
            if is_real.any():
                scores = score(tensors).numpy()[is_real]
                yield self._table(loader, loader.record_numbers(step)[is_real], kept, is_real, scores)

    def _table(self, loader: Loader, numbers: Any, kept: Mapping[str, Any], is_real: Any, scores: Any) -> pa.Table:
        kept_columns = [
            _arrow(self.manifest.schema[name], kept[name], is_real, kept.get(mask_name(name))) for name in self.keep
        ]
        return pa.Table.from_arrays(
            [pa.array(numbers), *kept_columns, *self.model.predictions.arrays(scores)], schema=self.schema
        )


def _grouped(tables: Iterator[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Join tables to ones that are worth a row group."""
    waiting, rows = [], 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows >= _GROUP_ROWS:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting, rows = [], 0
    yield pa.concat_tables([schema.empty_table(), *waiting]).combine_chunks()


def _arrow(feature: Feature, values: Any, is_real: Any, missing: Any) -> pa.Array:
    """Return the column of a batch as it is stored, with missing values where its mask marks them."""
    if isinstance(values, tf.RaggedTensor):
        rows = [row for row, real in zip(values.to_list(), is_real.tolist(), strict=True) if real]
        column = pa.array(rows, feature.arrow_type)
    elif feature.shape:
        flat = pa.array(values.numpy()[is_real].reshape(-1), feature.primitive)
        column = pa.FixedSizeListArray.from_arrays(flat, feature.elements)
    else:
        array = values.numpy()[is_real]
        column = pa.array(array, pa.binary()).cast(pa.string()) if feature.dtype == "string" else pa.array(array)
        column = column.cast(feature.arrow_type)
    if missing is None:
        return column
    return pc.if_else(pa.array(missing.numpy()[is_real]), pa.scalar(None, column.type), column)


def _described(feature: Feature) -> str:
    return f"{feature.dtype} of shape {list(feature.shape)}" if feature.shape else feature.dtype
