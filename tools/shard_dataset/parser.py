"""The parser of `shard-dataset`: its commands, flags and help.

The commands that write shards are in `write_arguments`.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version

from ringfeed.sharding.exporting.export import EXPORT_FORMATS
from ringfeed.tools.argument_types import (
    CommandParser,
    EventParser,
    at_least,
    check_persistent,
    checked_text,
    checked_type,
)

from .common_arguments import (
    EXIT_CODES,
    add_command,
    add_images_from,
    add_json,
    add_memory,
    add_source_kind,
    add_trust_code,
    add_workers,
    cores,
    make_parser,
)
from .write_arguments import add_append, add_build, add_reshard

_EPILOG = f"""\
examples:
  shard-dataset build flights.csv shards/ --label late --split train=0.9,test=0.1
  shard-dataset inspect shards/
  shard-dataset verify s3://bucket/flights
  shard-dataset repair shards/ --dry-run
  shard-dataset cat shards/ --split train --limit 5
  shard-dataset append more.csv shards/
  shard-dataset reshard shards/ parquet/ --format parquet

URLs are local paths, s3://bucket/path, hdfs://namenode:port/path, or whatever else fsspec opens. Credentials come from
the environment, as for other programs: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_ENDPOINT_URL;
HADOOP_USER_NAME. For a public bucket set FSSPEC_S3_ANON=true.

{EXIT_CODES}"""
_INSPECT_EPILOG = """\
examples:
  shard-dataset inspect shards/
  shard-dataset inspect s3://bucket/flights --json | jq .splits.train.records
"""
_VERIFY_EPILOG = """\
Reads every file, and reports each damaged or missing one, with kind and place of the damage: records and offsets in
TFRecord shards; row group, column and offset in Parquet shards; the first wrong byte elsewhere. Files that do not
belong to the dataset are listed, but are not damage. With --deep, every record is also parsed and compared with index
and counts.

examples:
  shard-dataset verify shards/ && train
  shard-dataset verify s3://bucket/flights --workers 16
  shard-dataset verify shards/ --deep
  shard-dataset verify s3://bucket/flights --json | jq '.damages[] | {path, kind, record, offset}'
"""
_REPAIR_EPILOG = f"""\
First, files are restored where possible: dataset.json from its copy in the shard table, and the table from the
shards; shards that changed places; an index from its shard; a shard whose records are all intact. Each restored file
is checked against its original checksum.

With --source, all other shards are rebuilt byte for byte from the source that the dataset was built from, or a copy of
it, with the options of the build, which dataset.json holds. Names, sizes and times of the source's files do not matter,
but if one byte of the shards differs from what was written, the source is a different one, and nothing is changed.
Records prepared by functions (--map) need the same modules in this folder, and --trust-code. In a dataset that was
appended to, each generation has its own source (see inspect): give --source once for each generation that lost shards;
generations whose source is not given are left for a later repair. If the table was lost as well, all those sources are
needed at once. With --group-by or --dedup, appended records depend on earlier ones, so the sources of all earlier
generations that lost shards are needed too.

The intact records of a shard that can be neither restored nor rebuilt are written as a new shard beside it, and a new
dataset.json refers to that shard and lists what was lost (see inspect). Only then are the damaged files removed.
Readers see the dataset either as it was before the repair, or as it is after. An interrupted repair can be run again.
No build can write to the dataset during a repair.

examples:
  # show what is damaged, what can be restored, and how many records each class would lose
  shard-dataset repair shards/ --dry-run

  # repair
  shard-dataset repair s3://bucket/flights

  # restore every record, from the original source
  shard-dataset repair s3://bucket/flights --source flights.csv

  # restore every record of a dataset that was appended to
  shard-dataset repair s3://bucket/flights --source flights.csv --source flights-2026-12.csv

  # records lost by split and class, for a script
  shard-dataset repair shards/ --json | jq .lost_by_class

{EXIT_CODES}"""
_CAT_EPILOG = """\
One record per line; bytes are shown as their length and first bytes in base64, a missing value as null.

examples:
  shard-dataset cat shards/ --split train --limit 5
  shard-dataset cat s3://bucket/flights --limit 1000 | jq .late
"""
_CLEAN_EPILOG = """\
Removes finished shards that belong to no dataset, journals, drafts, and the spill files of the last build, on this
machine or in its --spill; also tables that an append has replaced, which only readers that opened the dataset before
the append still need. Finished datasets and running builds are not touched.

examples:
  shard-dataset clean s3://bucket/flights --dry-run
  shard-dataset clean shards/
"""
_EXPORT_EPILOG = f"""\
Writes one file for each shard, in the order of its records; every shard is checked before it is read. The same dataset
gives the same bytes, whatever --workers is. DST appears in one step, when all of it is written (on an object store,
file by file).

examples:
  # tar files for WebDataset: KEY.jpg, KEY.cls (the class id), KEY.json (the other features)
  shard-dataset export shards/ tars/ --to webdataset

  # a folder for datasets.load_dataset, with Image and ClassLabel features
  shard-dataset export s3://bucket/photos s3://bucket/photos-hf --to hf --split train,test

{EXIT_CODES}"""


def build_parser(*, python_source: bool = False, events: bool = False) -> argparse.ArgumentParser:
    """Make the parser of all commands and flags.

    Args:
        python_source: whether --source is given, so that `build` takes no SRC. argparse has no positional argument that
            depends on a flag, and fills an optional one before it has seen all arguments.
        events: whether to report mistakes as events, for machines.
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
    command = add_command(commands, "inspect", "show contents, balance and origin of a dataset", _INSPECT_EPILOG)
    _add_url(command)
    add_json(command)


def _add_verify(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "verify", "check every byte of a dataset against its checksums", _VERIFY_EPILOG)
    _add_url(command)
    add_json(command)
    _add_readers(command)
    command.add_argument(
        "--deep", action="store_true", help="also parse every record, and check index and class counts"
    )


def _add_repair(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "repair", "restore a damaged dataset, or the intact part of it", _REPAIR_EPILOG)
    _add_url(command)
    add_json(command)
    _add_readers(command, "; also the processes that read SRC")
    command.add_argument(
        "--source", metavar="SRC", action="append",
        help="source of the dataset, to rebuild lost shards from; once for each generation that lost some",
    )  # fmt: skip
    add_source_kind(command, None, "as in the build")
    add_trust_code(command)
    add_images_from(command)
    add_memory(command, "; for reading SRC")
    command.add_argument("--spill", metavar="URL", help="folder for intermediate files")
    command.add_argument("--dry-run", action="store_true", help="show what would be done, and write nothing")


def _add_cat(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "cat", "print records as lines of JSON", _CAT_EPILOG)
    _add_url(command)
    command.set_defaults(json=False)
    command.add_argument("--split", help="split to read (default: the first)")
    command.add_argument("--limit", type=checked_type(at_least(0)), help="number of records (default: 5)")


def _add_clean(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "clean", "remove leftovers of killed builds and exports", _CLEAN_EPILOG)
    command.add_argument("--spill", metavar="URL", help="--spill folder of the builds (default: as in the last)")
    command.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    _add_url(command)
    add_json(command)


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "export", "write a dataset as files for another program", _EXPORT_EPILOG)
    _add_url(command)
    command.add_argument(
        "destination", metavar="DST", type=checked_text(check_persistent), help="folder to write; new or empty"
    )
    command.add_argument(
        "--to", choices=tuple(EXPORT_FORMATS), required=True,
        help="webdataset: tar shards; hf: a folder of Parquet files for datasets.load_dataset; tfds: "
        "TFRecord files for TensorFlow Datasets, with ClassLabel features",
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
        help=f"files to read at once (default: the number of cores, here {cores()}; at least 8 for remote files){more}",
    )  # fmt: skip
