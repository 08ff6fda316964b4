"""The command line of `shard-dataset`: its commands, flags, and the help that teaches them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import TypeVar

from ..sharding.export import EXPORT_FORMATS
from ..sharding.formats.encode import COMPRESSIONS
from ..sharding.sources import KINDS
from .arguments import parse_bytes, parse_splits

__all__ = ["build_parser"]

_EXIT_CODES = """\
exit status:
  0  all is well
  1  an error, told in one line on standard error, or damage found by verify
  2  wrong usage
  130  interrupted; a build leaves nothing behind
"""
_EPILOG = f"""\
examples:
  shard-dataset build flights.csv shards/ --label late --split train=0.9,test=0.1
  shard-dataset inspect shards/
  shard-dataset verify s3://bucket/flights
  shard-dataset cat shards/ --split train --limit 5

URLs are paths of this machine, s3://bucket/path, hdfs://namenode:port/path, or whatever else fsspec opens.
Credentials come from the environment, as for other programs: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_PROFILE, AWS_ENDPOINT_URL; HADOOP_USER_NAME.

{_EXIT_CODES}"""
_BUILD_EPILOG = f"""\
Each shard's number of records, and each class's number of records per shard, differ by at most one between the
shards of a split. The same source, options and seed give the same bytes, whatever --workers is. The dataset
appears at once, when all of it is written; a build that fails or is interrupted leaves nothing behind.

examples:
  # a table with a label, 16 shards or more, split by 9 to 1, every class alike
  shard-dataset build flights.parquet s3://bucket/flights --label late --split train=0.9,test=0.1

  # what would be written: schema, classes, splits, shards, sizes
  shard-dataset build flights.csv shards/ --label late --dry-run

  # a folder of images for each class; the label is the folder's name
  shard-dataset build photos/ hdfs://namenode:8020/photos --shard-size 128MiB

  # MNIST as it is distributed
  shard-dataset build 'mnist/train-*' shards/mnist --source-kind idx --shards 8

{_EXIT_CODES}"""
_EXPORT_EPILOG = f"""\
A file for each shard, in the order of its records; every shard is checked before it is read. The same dataset gives
the same bytes, whatever --workers is. DST appears at once, when all of it is written (an object store fills in place).

examples:
  # tar files for WebDataset: KEY.jpg, KEY.cls (the class id), KEY.json (the other features)
  shard-dataset export shards/ tars/ --to webdataset

  # a folder for datasets.load_dataset, with Image and ClassLabel features
  shard-dataset export s3://bucket/photos s3://bucket/photos-hf --to hf --split train,test

{_EXIT_CODES}"""
T = TypeVar("T")


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands and flags."""
    parser = _parser_with(
        argparse.ArgumentParser,
        prog="shard-dataset",
        description="Turn datasets into balanced shards that TensorFlow, Arrow and ringfeed read fast.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ringfeed {version('ringfeed')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_build(commands)
    inspect = _command(
        commands,
        "inspect",
        "what a dataset holds, how balanced, where it came from",
        """\
examples:
  shard-dataset inspect shards/
  shard-dataset inspect s3://bucket/flights --json | jq .splits.train.records
""",
    )
    verify_ = _command(
        commands,
        "verify",
        "hold every byte of a dataset against its checksum",
        """\
Reads every file. Names each one that is damaged or missing and, in TFRecord shards, the first damaged record.

examples:
  shard-dataset verify shards/ && train
  shard-dataset verify s3://bucket/flights --json | jq .damages
""",
    )
    cat = _command(
        commands,
        "cat",
        "print records as lines of JSON",
        """\
One record a line; bytes are shown as their number and their head in base64, null is a missing value.

examples:
  shard-dataset cat shards/ --split train --limit 5
  shard-dataset cat s3://bucket/flights --limit 1000 | jq .late
""",
    )
    for command in (inspect, verify_, cat):
        command.add_argument("url", metavar="URL", help="folder of the dataset")
    for command in (inspect, verify_):
        command.add_argument("--json", action="store_true", help="one JSON document on standard output, no progress")
    cat.add_argument("--split", help="split to read (default: the first)")
    _add_export(commands)
    cat.add_argument("--limit", type=_checked(_at_least(0)), default=5, help="number of records (default: 5)")
    return parser


def _add_build(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "build", "write a dataset as balanced shards", _BUILD_EPILOG)
    command.add_argument(
        "src", metavar="SRC", help="Parquet or CSV (file, folder or glob), folder of image folders, IDX"
    )
    command.add_argument("dst", metavar="DST", help="folder to write; new or empty, unless --overwrite")
    command.add_argument("--label", metavar="COL", help="column that makes the classes; without it there is one class")
    command.add_argument(
        "--source-kind", choices=("auto", *KINDS), default="auto", help="what SRC is (default: by its names)"
    )
    command.add_argument(
        "--format", choices=tuple(COMPRESSIONS), default="tfrecord", help="of the shards (default: tfrecord)"
    )
    size = command.add_mutually_exclusive_group()
    size.add_argument("--shards", type=_checked(_at_least(1)), metavar="N", help="shards of the largest split")
    size.add_argument(
        "--shard-size", type=_checked(parse_bytes), metavar="SIZE",
        help="about how large each shard should be, such as 256MiB (the default, but at least 16 shards)",
    )  # fmt: skip
    command.add_argument(
        "--split", type=_checked(parse_splits), default="train=1", metavar="NAME=SHARE,...",
        help="splits and their shares, stratified by class, such as train=0.9,test=0.1 (default: train=1)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, default=0, help="of splits, shards and order (default: 0)")
    _add_workers(command)
    codecs = "; ".join(f"{name}: {', '.join(names)}" for name, names in COMPRESSIONS.items())
    command.add_argument("--compression", metavar="CODEC", help=f"of the shards ({codecs})")
    command.add_argument(
        "--min-class-records", type=_checked(_at_least(1)), default=2, metavar="N",
        help="refuse a class with fewer records (default: 2)",
    )  # fmt: skip
    command.add_argument(
        "--dali-index", action="store_true", help="write an index for NVIDIA DALI (.idx) beside each TFRecord shard"
    )
    command.add_argument("--overwrite", action="store_true", help="replace a dataset that is at DST")
    command.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    command.add_argument("--json", action="store_true", help="one JSON document on standard output, no progress")


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "export", "write a dataset as the files of another program", _EXPORT_EPILOG)
    command.add_argument("url", metavar="URL", help="folder of the dataset")
    command.add_argument("dst", metavar="DST", help="folder to write; new or empty")
    command.add_argument(
        "--to", choices=tuple(EXPORT_FORMATS), required=True,
        help="webdataset: tar shards; hf: a folder of Parquet files that datasets.load_dataset opens",
    )  # fmt: skip
    command.add_argument(
        "--split", type=lambda text: text.split(","), metavar="NAME,...", help="splits to export (default: all)"
    )
    _add_workers(command)
    command.add_argument("--json", action="store_true", help="one JSON document on standard output, no progress")


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--workers", type=_checked(_at_least(1)), default=_cores(), metavar="N",
        help="processes; the result does not depend on it (default: the cores, here %(default)s)",
    )  # fmt: skip


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    epilog: str,
) -> argparse.ArgumentParser:
    description = summary[0].upper() + summary[1:] + "."
    tail = "" if _EXIT_CODES in epilog else "\n" + _EXIT_CODES
    command = _parser_with(commands.add_parser, name, help=summary, description=description, epilog=epilog + tail)
    command.add_argument("--debug", action="store_true", help="show where in the program an error arose")
    return command


def _parser_with(make: Callable[..., argparse.ArgumentParser], *names: str, **words: str) -> argparse.ArgumentParser:
    """argparse reads ``%`` in help texts, and knows no common type for its two ways to make a parser."""
    return make(*names, formatter_class=argparse.RawDescriptionHelpFormatter, **words)


def _checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """For argparse, which shows the text of no other error."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ValueError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)

    return parse


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
