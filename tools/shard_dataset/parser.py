"""The command line of `shard-dataset`: its commands, flags, and the help that teaches them."""

from __future__ import annotations

import argparse
from importlib.metadata import version

from ...sharding.exporting.export import EXPORT_FORMATS
from ...sharding.sources import KINDS
from ..argument_types import CommandParser, EventParser, at_least, check_persistent, checked_text, checked_type
from .common_arguments import EXIT_CODES, add_command, add_json, add_memory, add_workers, cores, make_parser
from .write_arguments import add_append, add_build, add_reshard

__all__ = ["build_parser"]

_EPILOG = f"""\
examples:
  shard-dataset build flights.csv shards/ --label late --split train=0.9,test=0.1
  shard-dataset inspect shards/
  shard-dataset verify s3://bucket/flights
  shard-dataset repair shards/ --dry-run
  shard-dataset cat shards/ --split train --limit 5
  shard-dataset append more.csv shards/
  shard-dataset reshard shards/ parquet/ --format parquet --split train=0.8,test=0.2

URLs are paths of this machine, s3://bucket/path, hdfs://namenode:port/path, or whatever else fsspec opens.
Credentials come from the environment, as for other programs: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_PROFILE, AWS_ENDPOINT_URL; HADOOP_USER_NAME. For a public bucket set FSSPEC_S3_ANON=true.

{EXIT_CODES}"""
_INSPECT_EPILOG = """\
examples:
  shard-dataset inspect shards/
  shard-dataset inspect s3://bucket/flights --json | jq .splits.train.records
"""
_VERIFY_EPILOG = """\
Reads every file, and reports each one that is damaged or missing, how, and where: records and offsets in TFRecord
shards; row group, column and offset in Parquet shards; the first wrong byte elsewhere. Files that do not belong to the
dataset are listed, but are no damage. With --deep, every record is also parsed and compared with index and counts.

examples:
  shard-dataset verify shards/ && train
  shard-dataset verify s3://bucket/flights --workers 16
  shard-dataset verify shards/ --deep
  shard-dataset verify s3://bucket/flights --json | jq '.damages[] | {path, kind, record, offset}'
"""
_REPAIR_EPILOG = f"""\
First, every file that can be restored bit by bit is: dataset.json from its copy in shards.parquet, and shards.parquet
from the shards; shards that changed places; an index from its shard; a shard to which bytes were added, or in which
single bits flipped. Each is proven by the checksum that it was written with.

With --source, shards that cannot be restored so are made again from the source that the dataset was built from, or from
a copy of it, with the options of the build, which dataset.json holds. Names, sizes and times of the source's files do
not matter, but if one byte of the shards differs from what was written, the source is another one, and nothing is
changed. Records that functions prepared (--map) need the same modules in this folder. In a dataset that was appended
to, each generation came from its own source (see inspect): give --source once for each generation that lost shards;
generations whose source is not given are left for a later repair. If the table was lost as well, all those sources are
needed at once. With --group-by or --dedup, what was appended depends on the records before it, so the sources of all
earlier generations that lost shards are needed too.

Of each shard that cannot be restored, the intact records are written as a new shard beside it, and a new dataset.json
takes it in and lists what was lost (see inspect). Only then are the damaged files removed. Readers see the dataset as
it was before, or after. An interrupted repair can be run again. No build can write to the dataset while a repair does.

examples:
  # what is damaged, what can be brought back, and how many records of which class would be lost
  shard-dataset repair shards/ --dry-run

  # do it
  shard-dataset repair s3://bucket/flights

  # every record, of which the source is still there
  shard-dataset repair s3://bucket/flights --source flights.csv

  # of a dataset that was appended to
  shard-dataset repair s3://bucket/flights --source flights.csv --source flights-2026-12.csv

  # records lost by split and class, for a script
  shard-dataset repair shards/ --json | jq .lost_by_class

{EXIT_CODES}"""
_CAT_EPILOG = """\
One record a line; bytes are shown as their number and their head in base64, null is a missing value.

examples:
  shard-dataset cat shards/ --split train --limit 5
  shard-dataset cat s3://bucket/flights --limit 1000 | jq .late
"""
_CLEAN_EPILOG = """\
Removes finished shards that belong to no dataset, journals, drafts, and what the last build spilled, on this machine or
to its --spill; also tables that an append has replaced, which are only needed by readers who opened the dataset before
it. A finished dataset is not touched, nor is a build that is running.

examples:
  shard-dataset clean s3://bucket/flights --dry-run
  shard-dataset clean shards/
"""
_EXPORT_EPILOG = f"""\
A file for each shard, in the order of its records; every shard is checked before it is read. The same dataset gives
the same bytes, whatever --workers is. DST appears at once, when all of it is written (an object store fills in place).

examples:
  # tar files for WebDataset: KEY.jpg, KEY.cls (the class id), KEY.json (the other features)
  shard-dataset export shards/ tars/ --to webdataset

  # a folder for datasets.load_dataset, with Image and ClassLabel features
  shard-dataset export s3://bucket/photos s3://bucket/photos-hf --to hf --split train,test

{EXIT_CODES}"""


def build_parser(*, python_source: bool = False, events: bool = False) -> argparse.ArgumentParser:
    """The parser of all commands and flags.

    Args:
        python_source: whether --source is given, so that there is no SRC. argparse knows no positional argument that
            depends on a flag, and fills one that may be missing before it has seen all that are there.
        events: whether mistakes are told to a machine.
    """
    parser = make_parser(
        EventParser if events else CommandParser,
        prog="shard-dataset",
        description="Turn datasets into balanced shards that TensorFlow, Arrow and ringfeed read fast.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ringfeed {version('ringfeed')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    add_build(commands, python_source=python_source)
    add_append(commands)
    add_reshard(commands)
    _add_inspect(commands)
    _add_verify(commands)
    _add_repair(commands)
    _add_cat(commands)
    _add_clean(commands)
    _add_export(commands)
    return parser


def _add_inspect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(
        commands, "inspect", "what a dataset holds, how balanced, where it came from", _INSPECT_EPILOG
    )
    _add_url(command)
    add_json(command)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "verify", "hold every byte of a dataset against its checksum", _VERIFY_EPILOG)
    _add_url(command)
    add_json(command)
    _add_readers(command)
    command.add_argument("--deep", action="store_true", help="parse every record, check index and class counts, too")


def _add_repair(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "repair", "mend a damaged dataset from what is left of it", _REPAIR_EPILOG)
    _add_url(command)
    add_json(command)
    _add_readers(command, "; processes that read SRC")
    command.add_argument(
        "--source", metavar="SRC", action="append",
        help="what the dataset was built from, to make lost shards again; once for each generation that lost some",
    )  # fmt: skip
    command.add_argument(
        "--source-kind", choices=("auto", *KINDS), help="what SRC is (default: as it was when the dataset was built)"
    )
    add_memory(command, "; for reading SRC")
    command.add_argument("--spill", metavar="URL", help="folder for intermediate files")
    command.add_argument("--dry-run", action="store_true", help="show what would be done, and write nothing")


def _add_cat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "cat", "print records as lines of JSON", _CAT_EPILOG)
    _add_url(command)
    command.set_defaults(json=False)
    command.add_argument("--split", help="split to read (default: the first)")
    command.add_argument("--limit", type=checked_type(at_least(0)), default=5, help="number of records (default: 5)")


def _add_clean(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "clean", "remove what killed builds and exports left", _CLEAN_EPILOG)
    command.add_argument("--spill", metavar="URL", help="--spill folder of the builds (default: that of the last)")
    command.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    _add_url(command)
    add_json(command)


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "export", "write a dataset as the files of another program", _EXPORT_EPILOG)
    _add_url(command)
    command.add_argument(
        "dst", metavar="DST", type=checked_text(check_persistent), help="folder to write; new or empty"
    )
    command.add_argument(
        "--to", choices=tuple(EXPORT_FORMATS), required=True,
        help="webdataset: tar shards; hf: a folder of Parquet files that datasets.load_dataset opens",
    )  # fmt: skip
    command.add_argument(
        "--split", type=lambda text: text.split(","), metavar="NAME,...", help="splits to export (default: all)"
    )
    add_workers(command)
    add_json(command)


def _add_url(command: argparse.ArgumentParser) -> None:
    command.add_argument("url", metavar="URL", help="folder of the dataset")


def _add_readers(command: argparse.ArgumentParser, more: str = "") -> None:
    command.add_argument(
        "--workers", type=checked_type(at_least(1)), metavar="N",
        help=f"files to read side by side (default: the cores, here {cores()}; at least 8 for remote files){more}",
    )  # fmt: skip
