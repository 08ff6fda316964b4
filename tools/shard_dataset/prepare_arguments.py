"""The flags of `shard-dataset` that prepare records, and the options that they make."""

from __future__ import annotations

import argparse
import os
from functools import partial

from ringfeed.sharding.prepare import (
    CsvDialect,
    ImageOptions,
    PrepareOptions,
    parse_encoding,
    parse_size,
    parse_step,
    read_features,
    split_columns,
    split_texts,
)
from ringfeed.sharding.sources.text.csv_dialect import DECIMALS, DELIMITERS, HEADERS, encoding_name, parse_delimiter
from ringfeed.tools.argument_types import checked_type

from .common_arguments import add_images_from

PREPARE_EPILOG = """\
Records can be prepared before they are written. Steps on columns and rows are applied in the order of the command line,
and can be repeated; --schema comes before them, --dedup after them, --resize and --encode last. --label is the name of
the column after all steps. Put a NAME or NAME=VALUE that contains a comma in double quotes, as in CSV. A --filter
expression has comparisons, and, or, not, in (...), is null, + - * /, numbers, 'text', true, false, and names of columns
(col('a name') for any name). It drops records for which it is false, or unknown because a value is missing.
"""


def add_prepare_flags(command: argparse.ArgumentParser) -> None:
    """Add the flags that prepare records."""
    group = command.add_argument_group("preparing records")
    group.add_argument(
        "--schema", metavar="FILE", dest="schema_file",
        help="YAML file of column types and shapes: features: {zip: string, pixels: {dtype: uint8, shape: [28, 28]}}",
    )  # fmt: skip

    group.add_argument(
        "--null-values", metavar="TEXT,...", type=checked_type(split_texts), default=(),
        help='texts of CSV that mean a missing value in columns of every type, such as NA,"" (default: in columns '
        "that are not text, an empty one, NA, null, nan and the like)",
    )  # fmt: skip

    _add_csv_flags(group)
    add_images_from(group)

    def step(flag: str, metavar: str, text: str, const: str | None = None) -> None:
        """Add a flag to the one list of steps, which keeps the order of the command line."""
        parse = partial(parse_step, flag, folder=os.getcwd())
        group.add_argument(
            flag, dest="steps", action="append", metavar=metavar, type=checked_type(parse), help=text,
            nargs=None if const is None else "?", const=const if const is None else parse(const),
        )  # fmt: skip

    step("--map", "MODULE:FUNCTION",
         "apply your function from a pyarrow.RecordBatch to another (this folder is searched first)")  # fmt: skip
    step("--select", "COL,...", "keep these columns, in this order")
    step("--drop-columns", "COL,...", "drop these columns")
    step("--rename", "OLD=NEW,...", "give columns new names")
    step("--cast", "COL=DTYPE,...", "change types: float32, int64, string, ...")
    step("--filter", "EXPR",
         "keep the records for which this is true, such as: hours > 0.5 and carrier in ('AA', 'UA')")  # fmt: skip
    step("--fill-nulls", "COL=VALUE,...", "replace missing values")
    step("--mask-nulls", "COL,...", "mark missing elements of lists, for each column in another called COL.missing")
    step("--drop-nulls", "COL,...",
         "drop records with a missing value in these columns (default: in any; write '*' before SRC)", "*")  # fmt: skip
    group.add_argument(
        "--float32", action="store_true",
        help="round numbers of 64 bits with a fraction to 32 bits, about 7 digits, which tf.train.Example stores as "
        "they are; not the label",
    )  # fmt: skip
    group.add_argument(
        "--dedup", metavar="COL,...", nargs="?", const=(), type=checked_type(split_columns),
        help="keep the first of the records that are equal in these columns (default: in all; write '*' before SRC)",
    )  # fmt: skip
    _add_image_flags(group)


def _add_image_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--resize", metavar="SIZE", type=checked_type(parse_size),
        help="resize images to this shorter side, such as 256, or to exactly WIDTHxHEIGHT",
    )  # fmt: skip
    group.add_argument(
        "--encode", metavar="FORMAT", type=checked_type(parse_encoding),
        help="encode images as jpeg:QUALITY, webp:QUALITY or png",
    )  # fmt: skip


def _add_csv_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--header", choices=HEADERS, default="auto",
        help="whether the first line of CSV names the columns (first) or is a record (none) (default: auto, it names "
        "them, but one of numbers alone is refused)",
    )  # fmt: skip
    group.add_argument(
        "--columns", dest="csv_columns", metavar="NAME,...", type=checked_type(split_texts), default=(),
        help="names of the columns of CSV, in place of the header's (default without a header: f0, f1, ...)",
    )  # fmt: skip
    group.add_argument(
        "--delimiter", metavar="CHAR", type=checked_type(parse_delimiter),
        help=f"character between the fields of CSV, or {', '.join(DELIMITERS)}, where spaces means one or more spaces "
        "or tabs (default: tab in .tsv files, else comma)",
    )  # fmt: skip
    group.add_argument(
        "--encoding", metavar="NAME", type=checked_type(encoding_name), default="utf-8",
        help="encoding of CSV, such as utf-16, windows-1252 or latin-1 (default: utf-8)",
    )  # fmt: skip
    group.add_argument(
        "--decimal",
        choices=DECIMALS,
        default=".",
        help="what begins the fraction of a number in CSV (default: .)",
    )


def prepare_options(args: argparse.Namespace) -> PrepareOptions:
    """Make the options from the parsed flags.

    Raises:
        ConfigError: the file of --schema cannot be read.
    """
    images = None
    if args.resize is not None or args.encode is not None:
        images = ImageOptions(size=args.resize, encoding=args.encode)
    return PrepareOptions(
        features={} if args.schema_file is None else read_features(args.schema_file),
        null_values=args.null_values,
        csv=CsvDialect(
            header=args.header,
            columns=args.csv_columns,
            delimiter=args.delimiter or "",
            encoding=args.encoding,
            decimal=args.decimal,
        ),
        images_from=tuple(args.images_from or ()),
        steps=tuple(args.steps or ()),
        float32=args.float32,
        dedup=args.dedup,
        images=images,
    )
