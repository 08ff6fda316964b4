"""The flags of `shard-dataset build` that prepare records, and the options they make."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from typing import TypeVar

from ..sharding.prepare import (
    Cast,
    Drop,
    DropNulls,
    FillNulls,
    Filter,
    ImageOptions,
    MapBatches,
    PrepareOptions,
    Rename,
    Select,
    parse_encoding,
    parse_size,
    read_features,
)

__all__ = ["PREPARE_EPILOG", "add_prepare_flags", "prepare_options"]

PREPARE_EPILOG = """\
Records can be prepared on their way. Steps on columns and rows are done in the order in which they stand on the
command line, each as often as it is given; --schema comes before them, --dedup after them, --resize and --encode
last. --label names a column as it is called in the end. A NAME or NAME=VALUE that holds a comma is put in double
quotes, as in CSV. An expression of --filter is made of comparisons, and, or, not, in (...), is null,
+ - * /, numbers, 'text', true, false, and the names of columns (col('a name') for any name); a record for which it is
unknown, since a value is missing, goes.
"""
_ALL = "*"
T = TypeVar("T")


def add_prepare_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = command.add_argument_group("preparing records")
    group.add_argument(
        "--schema", metavar="FILE", dest="schema_file",
        help="types and shapes of columns, in YAML: features: {zip: string, pixels: {dtype: uint8, shape: [28, 28]}}",
    )  # fmt: skip

    def step(flag: str, metavar: str, parse: Callable[[str], object], text: str, const: str | None = None) -> None:
        """All steps end in one list, so that their order is that of the command line."""
        group.add_argument(
            flag, dest="steps", action="append", metavar=metavar, type=_checked(parse), help=text,
            nargs=None if const is None else "?", const=const if const is None else parse(const),
        )  # fmt: skip

    step("--map", "MODULE:FUNCTION", _parse_map,
         "apply a function of yours: a pyarrow.RecordBatch in, one out (looked for in this folder first)")  # fmt: skip
    step("--select", "COL,...", lambda text: Select(_names(text)), "keep these columns, in this order")
    step("--drop-columns", "COL,...", lambda text: Drop(_names(text)), "leave these columns out")
    step("--rename", "OLD=NEW,...", lambda text: Rename(_pairs(text)), "give columns new names")
    step("--cast", "COL=DTYPE,...", lambda text: Cast(_pairs(text)), "change types: float32, int64, string, ...")
    step(
        "--filter",
        "EXPR",
        Filter,
        "keep the records for which this is true, such as: hours > 0.5 and carrier in ('AA', 'UA')",
    )
    step("--fill-nulls", "COL=VALUE,...", lambda text: FillNulls(_pairs(text)), "put a value where a column lacks one")
    step("--drop-nulls", "COL,...", _parse_drop_nulls,
         "leave out records that lack a value in these columns (default: any; '*' before SRC)", _ALL)  # fmt: skip
    group.add_argument(
        "--dedup", metavar="COL,...", nargs="?", const=(), type=_checked(_columns),
        help="leave out records whose values in these columns (default: all; '*' before SRC) came before",
    )  # fmt: skip
    group.add_argument(
        "--resize", metavar="SIZE", type=_checked(parse_size),
        help="images to this shorter side, as in 256, or to exactly WIDTHxHEIGHT",
    )  # fmt: skip
    group.add_argument(
        "--encode", metavar="FORMAT", type=_checked(parse_encoding), help="images as jpeg:QUALITY, webp:QUALITY or png"
    )


def prepare_options(args: argparse.Namespace) -> PrepareOptions:
    """What the flags ask for.

    Raises:
        ConfigError: the file of --schema cannot be read.
    """
    images = None
    if args.resize is not None or args.encode is not None:
        images = ImageOptions(size=args.resize, encoding=args.encode)
    return PrepareOptions(
        features={} if args.schema_file is None else read_features(args.schema_file),
        steps=tuple(args.steps or ()),
        dedup=args.dedup,
        images=images,
    )


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse, which shows the text of no other error."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _parse_map(text: str) -> MapBatches:
    return MapBatches(function=text, folder=os.getcwd())


def _parse_drop_nulls(text: str) -> DropNulls:
    return DropNulls(_columns(text))


def _columns(text: str) -> tuple[str, ...]:
    """Names of columns; ``*`` stands for all, which is none named."""
    return () if text == _ALL else _names(text)


def _names(text: str) -> tuple[str, ...]:
    """Names between commas.

    Raises:
        ValueError: one is empty.

    >>> _names('a, b,"c,d"')
    ('a', 'b', 'c,d')
    """
    names = _items(text)
    if not names or not all(names):
        raise ValueError(f"columns are NAME,NAME,..., got {text!r}")
    return names


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Names and values between commas.

    Raises:
        ValueError: one is not NAME=VALUE.

    >>> _pairs('a=1,"b,c=x=y"')
    (('a', '1'), ('b,c', 'x=y'))
    """
    pairs = [item.partition("=") for item in _items(text)]
    for name, equals, _ in pairs:
        if not name.strip() or not equals:
            raise ValueError(f"expected NAME=VALUE,NAME=VALUE,..., got {text!r}")
    return tuple((name.strip(), value.strip()) for name, _, value in pairs)


def _items(text: str) -> tuple[str, ...]:
    """What stands between commas; in double quotes, a comma is a letter like others.

    Raises:
        ValueError: a quote is not closed.
    """
    try:
        return tuple(item.strip() for item in next(csv.reader([text], strict=True, skipinitialspace=True), []))
    except csv.Error as error:
        raise ValueError(f"{text!r}: {error}; put double quotes around a whole NAME or NAME=VALUE") from error
