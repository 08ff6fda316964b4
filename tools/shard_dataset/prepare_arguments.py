"""The flags of `shard-dataset build` that prepare records, and the options they make."""

from __future__ import annotations

import argparse
import os
from functools import partial

from ...sharding.prepare import (
    ImageOptions,
    PrepareOptions,
    parse_encoding,
    parse_size,
    parse_step,
    read_features,
    split_columns,
)
from ..argument_types import checked_type

__all__ = ["PREPARE_EPILOG", "add_prepare_flags", "prepare_options"]

PREPARE_EPILOG = """\
Records can be prepared on their way. Steps on columns and rows are applied in the order of the command line, and each
can be given several times; --schema comes before them, --dedup after them, --resize and --encode last. --label is the
name of the column after all steps. A NAME or NAME=VALUE that contains a comma is put in double quotes, as in CSV. A
--filter expression has comparisons, and, or, not, in (...), is null, + - * /, numbers, 'text', true, false, and names
of columns (col('a name') for any name). A record for which it is unknown, because a value is missing, is left out.
"""


def add_prepare_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = command.add_argument_group("preparing records")
    group.add_argument(
        "--schema", metavar="FILE", dest="schema_file",
        help="types and shapes of columns, in YAML: features: {zip: string, pixels: {dtype: uint8, shape: [28, 28]}}",
    )  # fmt: skip

    def step(flag: str, metavar: str, text: str, const: str | None = None) -> None:
        """All steps end in one list, so that their order is that of the command line."""
        parse = partial(parse_step, flag, folder=os.getcwd())
        group.add_argument(
            flag, dest="steps", action="append", metavar=metavar, type=checked_type(parse), help=text,
            nargs=None if const is None else "?", const=const if const is None else parse(const),
        )  # fmt: skip

    step("--map", "MODULE:FUNCTION",
         "apply a function of yours: a pyarrow.RecordBatch in, one out (looked for in this folder first)")  # fmt: skip
    step("--select", "COL,...", "keep these columns, in this order")
    step("--drop-columns", "COL,...", "leave these columns out")
    step("--rename", "OLD=NEW,...", "give columns new names")
    step("--cast", "COL=DTYPE,...", "change types: float32, int64, string, ...")
    step("--filter", "EXPR",
         "keep the records for which this is true, such as: hours > 0.5 and carrier in ('AA', 'UA')")  # fmt: skip
    step("--fill-nulls", "COL=VALUE,...", "replace missing values")
    step("--drop-nulls", "COL,...",
         "leave out records with a missing value in these columns (default: in any; '*' before SRC)", "*")  # fmt: skip
    group.add_argument(
        "--dedup", metavar="COL,...", nargs="?", const=(), type=checked_type(split_columns),
        help="keep the first of records that are equal in these columns (default: in all; write '*' before SRC)",
    )  # fmt: skip
    group.add_argument(
        "--resize", metavar="SIZE", type=checked_type(parse_size),
        help="resize images to this shorter side, such as 256, or to exactly WIDTHxHEIGHT",
    )  # fmt: skip
    group.add_argument(
        "--encode",
        metavar="FORMAT",
        type=checked_type(parse_encoding),
        help="encode images as jpeg:QUALITY, webp:QUALITY or png",
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
