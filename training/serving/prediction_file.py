"""Writes predictions to one file: CSV, JSON lines or Parquet, whole or not at all; or JSON lines to standard output.

Tested in tests/training/serving/test_score.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.reports.tracker import finite
from ringfeed.training.run.state.outputs import locate_file

from .prediction_columns import PREDICTED, SCORES

STDOUT = "-"
_LABELS_APART = ";"

_Write = Callable[[pa.Table], None]


def is_file(out: str) -> bool:
    """Whether a place to write to is one file; others are folders.

    >>> is_file("scored.csv"), is_file("s3://bucket/scores")
    (True, False)
    """
    return out == STDOUT or out.endswith(tuple(_WRITERS))


def write_predictions(out: str, schema: pa.Schema, tables: Iterable[pa.Table], classes: list[Any]) -> tuple[int, int]:
    """Write predictions, and return the number of records and of those without a prediction.

    `out` is the path or URL of a file, or `STDOUT`. A ConfigError says that its format cannot hold a column.
    """
    records = undefined = 0
    make_writer = _json_lines if out == STDOUT else next(_WRITERS[end] for end in _WRITERS if out.endswith(end))
    with _output(out) as file, make_writer(file, schema, classes) as write:
        for table in tables:
            write(table)
            records += table.num_rows
            undefined += table.column(PREDICTED).null_count
    return records, undefined


def _output(out: str) -> AbstractContextManager[IO[bytes]]:
    if out == STDOUT:
        return nullcontext(sys.stdout.buffer)
    storage, name = locate_file(out)
    return storage.open_output(name)


@contextmanager
def _csv(file: IO[bytes], schema: pa.Schema, classes: list[Any]) -> Iterator[_Write]:
    names = [f"score_{name}" for name in classes]
    for field in schema:
        if field.name not in (PREDICTED, SCORES) and (pa.types.is_nested(field.type) or pa.types.is_binary(field.type)):
            raise ConfigError(f"--keep: CSV cannot hold column {field.name!r} ({field.type}); write .jsonl or .parquet")

    def flat(table: pa.Table) -> pa.Table:
        table = table.combine_chunks()
        if pa.types.is_list(table.field(PREDICTED).type):
            joined = pc.binary_join(table.column(PREDICTED), _LABELS_APART)
            table = table.set_column(table.schema.get_field_index(PREDICTED), PREDICTED, joined)
        if SCORES in table.column_names:
            scores = table.column(SCORES)
            table = table.drop_columns([SCORES])
            for place, name in enumerate(names):
                table = table.append_column(name, pc.list_element(scores, place))
        return table

    with pyarrow.csv.CSVWriter(file, flat(schema.empty_table()).schema) as writer:
        yield lambda table: writer.write_table(flat(table))


@contextmanager
def _parquet(file: IO[bytes], schema: pa.Schema, classes: list[Any]) -> Iterator[_Write]:
    named = schema.with_metadata({"classes": json.dumps(classes)})
    with pyarrow.parquet.ParquetWriter(file, named) as writer:
        yield lambda table: writer.write_table(table.cast(named))


@contextmanager
def _json_lines(file: IO[bytes], schema: pa.Schema, classes: list[Any]) -> Iterator[_Write]:
    def write(table: pa.Table) -> None:
        for row in table.to_pylist():
            if SCORES in row:
                row[SCORES] = dict(zip(map(str, classes), row[SCORES], strict=True))
            file.write(json.dumps(finite(row), ensure_ascii=False, default=_text).encode() + b"\n")
        file.flush()

    yield write


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_WRITERS: dict[str, Callable[..., AbstractContextManager[_Write]]] = {
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
