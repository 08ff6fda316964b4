"""`--map module:function`: a user's function on record batches, imported by name in each process that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa

from ringfeed.sharding.compute.batches import copy_batch
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import brief
from ringfeed.sharding.schema import Feature, Schema, categories_of
from ringfeed.sharding.sources.user_code import code_hash, describe_error, import_function


@dataclass(frozen=True, slots=True)
class MapBatches:
    """Apply a function to each batch: it takes a `pa.RecordBatch` and returns one with any rows and columns.

    Attributes:
        function: ``module:function``.
        folder: folder to put on `sys.path` before the import.
        input_schema: schema of the batches that the function takes; None before `bind`.
        output_schema: schema of the batch that it returned for a sample, which all others must match; None before
            `bind`.

    >>> from ringfeed.sharding.prepare import parse_step
    >>> parse_step("--map", "mine:double", folder="code").function
    'mine:double'
    """

    function: str
    folder: str
    input_schema: Schema | None = None
    output_schema: Schema | None = None
    changes_rows: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        return f"--map {self.function}"

    @property
    def code_hash(self) -> str:
        """A hash of the function's code, since other code is another preparation; see `user_code.code_hash`."""
        _load(self.folder, self.function)
        return code_hash(self.function.partition(":")[0])

    def bind(self, schema: Schema, sample: pa.RecordBatch) -> MapBatches:
        """The step with its schemas, learnt by calling the function on a sample.

        Raises:
            ConfigError: the function does not exist.
            SourceError: the function fails, or does not return a batch of supported columns.
        """
        result = replace(self, input_schema=schema)._call(sample)
        features = tuple(_feature(field, schema) for field in result.schema)
        if not features:
            raise SourceError(f"{self.spec}: the function returned a batch without columns; return at least one")
        return replace(self, input_schema=schema, output_schema=Schema(features=features))

    def schema(self, schema: Schema) -> Schema:
        """The schema of the function's batches."""
        assert self.output_schema is not None, "bind comes first"
        return self.output_schema

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """All columns, since the function may read any."""
        return frozenset(schema.names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The function's batch, which must match the schema of the sample."""
        assert self.output_schema is not None, "bind comes first"
        if not batch.num_rows:  # a filter emptied the batch, and the function need not handle that
            return self.output_schema.empty
        result = self._call(batch)
        if sorted(result.schema.names) != sorted(self.output_schema.names):
            raise SourceError(
                f"{self.spec}: the function returned the columns {', '.join(result.schema.names)}, but "
                f"{', '.join(self.output_schema.names)} for the first records; return the same columns for every batch"
            )
        columns = [self._conformed(result, feature) for feature in self.output_schema.features]
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema.arrow)

    def _conformed(self, result: pa.RecordBatch, feature: Feature) -> pa.Array:
        assert self.input_schema is not None
        column = result.column(feature.name)
        if _is_untyped(column.type) and feature.shape in ((), (None,)):
            return column.cast(feature.arrow_type)
        own = _feature(result.schema.field(feature.name), self.input_schema)
        if (own.arrow_type, own.logical) != (feature.arrow_type, feature.logical):
            raise SourceError(
                f"{self.spec}: the function returned column {feature.name!r} as {column.type}, but as "
                f"{feature.logical or feature.arrow_type} for the first records; give the type: "
                "pa.array(values, type=...)"
            )
        return feature.conform(column)

    def _call(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self.input_schema is not None
        function = _load(self.folder, self.function)
        columns = [batch.column(name) for name in self.input_schema.names]
        argument = pa.RecordBatch.from_arrays(columns, schema=self.input_schema.arrow)
        folder = os.getcwd()
        try:
            result = function(argument)
        except (Exception, SystemExit) as error:
            file = getattr(getattr(function, "__code__", None), "co_filename", None)
            reason = describe_error(error, self.function, file)
            raise SourceError(f"{reason} (in {self.spec}); fix the function") from error
        finally:
            os.chdir(folder)  # relative paths depend on it
        if not isinstance(result, pa.RecordBatch):
            raise SourceError(
                f"{self.spec}: the function must return a pyarrow.RecordBatch, it returned a {type(result).__name__}"
            )
        try:
            result.validate(full=True)  # Arrow does not check arrays built from buffers or by unchecked casts
        except pa.ArrowInvalid as error:
            raise SourceError(f"{self.spec}: the function returned an invalid batch: {brief(error)}") from error
        return copy_batch(result)


def check_trusted(steps: Iterable[object], dataset: str, otherwise: str = "") -> None:
    """Refuse steps from `dataset.json` that call functions: whoever wrote the file chose the modules to import.

    Args:
        steps: the steps.
        dataset: URL of the dataset, for the error.
        otherwise: what would help instead of `--trust-code`, to follow "or".

    Raises:
        ConfigError: a step calls a function.

    >>> check_trusted([], "flights")
    """
    if functions := ", ".join(step.function for step in steps if isinstance(step, MapBatches)):
        raise ConfigError(
            f"the dataset.json of {dataset} names code to prepare the records with ({functions}), which was not "
            f"imported; if you trust that file, add --trust-code{otherwise and f', or {otherwise}'}"
        )


@lru_cache(maxsize=64)
def _load(folder: str, name: str) -> Callable[[pa.RecordBatch], Any]:
    return import_function("--map", name, folder, example="prepare_flights:add_hour")


def _is_untyped(kind: pa.DataType) -> bool:
    """Whether a column of this type holds nothing but nulls or empty lists."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return bool(kind == pa.null())


def _feature(field: pa.Field, inputs: Schema) -> Feature:
    """The feature of a returned column; an input column of the same type keeps its shape, encoding and meaning.

    A column whose field lacks the metadata of the input's may hold new values, and has no categories.
    """
    if field.name in inputs.names and inputs[field.name].arrow_type == field.type:
        return replace(inputs[field.name], categories=categories_of(field))
    if _is_untyped(field.type):
        raise SourceError(
            f"column {field.name!r} has only nulls in the first records, so its type is unknown; give the type: "
            "pa.array(values, type=...)"
        )
    return Feature.from_arrow(field)
