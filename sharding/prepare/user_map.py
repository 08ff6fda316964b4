"""`--map module:function`: a user's function on record batches, imported by name wherever it runs."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import pyarrow as pa

from ..errors import ConfigError, SourceError
from ..messages import brief
from ..schema import Feature, Schema
from ..sources.user_code import code_hash, describe_error

__all__ = ["MapBatches"]


@dataclass(frozen=True, slots=True)
class MapBatches:
    """Apply a function to each batch: a `pa.RecordBatch` in the schema's types in, one out, with any rows and columns.

    Attributes:
        function: ``module:function``.
        folder: put on `sys.path` where the function is imported.
        taken: the schema of the batches it gets, and
        given: of those that it returned for a sample; every other must be alike. None until `bind`.
    """

    function: str
    folder: str
    taken: Schema | None = None
    given: Schema | None = None
    changes_rows: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        """As it stands on the command line."""
        return f"--map {self.function}"

    @property
    def code_hash(self) -> str:
        """See `code_hash`: other code is another preparation."""
        _load(self.folder, self.function)
        return code_hash(self.function.partition(":")[0])

    def bind(self, schema: Schema, sample: pa.RecordBatch) -> MapBatches:
        """Learn the schema of what comes out from a sample of what goes in.

        Raises:
            ConfigError: there is no such function.
            SourceError: it fails, or returns no batch of columns that features can hold.
        """
        result = replace(self, taken=schema)._call(sample)
        features = tuple(_feature(field, schema) for field in result.schema)
        if not features:
            raise SourceError(f"{self.spec}: the function returned a batch without columns; return at least one")
        return replace(self, taken=schema, given=Schema(features=features))

    def schema(self, schema: Schema) -> Schema:
        """What the function returns."""
        assert self.given is not None, "bind comes first"
        return self.given

    def needs(self, names: Collection[str], schema: Schema) -> frozenset[str]:
        """All columns."""
        return frozenset(schema.names)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the function returns, held to the schema of the sample."""
        assert self.given is not None, "bind comes first"
        if not batch.num_rows:  # a batch that a filter emptied is none of the user's
            return self.given.empty
        result = self._call(batch)
        if sorted(result.schema.names) != sorted(self.given.names):
            raise SourceError(
                f"{self.spec}: the function returned the columns {', '.join(result.schema.names)}, but "
                f"{', '.join(self.given.names)} for the first records; return the same for every batch"
            )
        columns = [self._held(result, feature) for feature in self.given.features]
        return pa.RecordBatch.from_arrays(columns, schema=self.given.arrow)

    def _held(self, result: pa.RecordBatch, feature: Feature) -> pa.Array:
        assert self.taken is not None
        column = result.column(feature.name)
        if _is_untyped(column.type) and feature.shape in ((), (None,)):
            return column.cast(feature.arrow_type)
        found = _feature(result.schema.field(feature.name), self.taken)
        if (found.arrow_type, found.logical) != (feature.arrow_type, feature.logical):
            raise SourceError(
                f"{self.spec}: the function returned column {feature.name!r} as {column.type}, but as "
                f"{feature.logical or feature.arrow_type} for the first records; give the type: "
                "pa.array(values, type=...)"
            )
        return feature.conform(column)

    def _call(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self.taken is not None
        function = _load(self.folder, self.function)
        columns = [batch.column(name) for name in self.taken.names]
        given = pa.RecordBatch.from_arrays(columns, schema=self.taken.arrow)
        folder = os.getcwd()
        try:
            result = function(given)
        except (Exception, SystemExit) as error:
            file = getattr(getattr(function, "__code__", None), "co_filename", None)
            told = describe_error(error, self.function, file)
            raise SourceError(f"{told} (in {self.spec}); mend the function") from error
        finally:
            os.chdir(folder)  # by which relative paths go
        if not isinstance(result, pa.RecordBatch):
            raise SourceError(
                f"{self.spec}: the function must return a pyarrow.RecordBatch, it returned a {type(result).__name__}"
            )
        try:
            result.validate(full=True)  # arrays made of buffers, or of bytes cast unchecked, are taken on trust
        except pa.ArrowInvalid as error:
            raise SourceError(
                f"{self.spec}: the function returned a batch that is not sound: {brief(error)}"
            ) from error
        return result


@lru_cache(maxsize=64)
def _load(folder: str, name: str) -> Callable[[pa.RecordBatch], Any]:
    """Import a function.

    Raises:
        ConfigError: there is none of that name, or its module fails.
    """
    module_name, colon, function_name = name.partition(":")
    if not (module_name and colon and function_name):
        raise ConfigError(f"--map takes module:function, such as prepare_flights:add_hour, got {name!r}")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(f"--map {name}: {describe_error(error, name)}; install it") from error
        raise ConfigError(
            f"--map {name}: there is no module {error.name!r}; it is looked for in {folder} and among what is installed"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"--map {name}: {describe_error(error, name)}; mend the module") from error
    function: Callable[[pa.RecordBatch], Any] | None = getattr(module, function_name, None)
    if function is None or not callable(function):
        raise ConfigError(f"--map {name}: {module.__file__} has no function {function_name!r}")
    return function


def _is_untyped(kind: pa.DataType) -> bool:
    """Of a batch whose values are all missing, or empty lists."""
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return bool(kind == pa.null())


def _feature(field: pa.Field, taken: Schema) -> Feature:
    """Of a returned column; one that went in and came out keeps shape, encoding and meaning, whatever its metadata."""
    if field.name in taken.names and taken[field.name].arrow_type == field.type:
        return taken[field.name]
    if _is_untyped(field.type):
        raise SourceError(
            f"column {field.name!r} has no value in the first records, so that its type is unknown; "
            "give it: pa.array(values, type=...)"
        )
    return Feature.from_arrow(field)
