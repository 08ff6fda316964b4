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
from .arguments import CommandParser, parse_bytes, parse_splits
from .prepare_args import PREPARE_EPILOG, add_prepare_flags

__all__ = ["build_parser", "cores", "workers_for"]

_EXIT_CODES = """\
exit status:
  0  all is well
  1  an error, told in one line on standard error, or damage found by verify
  2  wrong usage
  130  interrupted, by SIGTERM 143; a build can be gone on with by the same command
"""
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
AWS_PROFILE, AWS_ENDPOINT_URL; HADOOP_USER_NAME.

{_EXIT_CODES}"""
_BUILD_EPILOG = f"""\
Each shard's number of records, and each class's number of records per shard, differ by at most one between the
shards of a split; with --balance bytes the shards are of one size, too. The same source, options and seed give the
same bytes, whatever --workers is. The dataset appears at once, when all of it is written. A build that was killed or
interrupted is gone on with by the same command, and ends with the same bytes; one that fails for its source's sake
leaves nothing behind.

{PREPARE_EPILOG}
examples:
  # a table with a label, 16 shards or more, split by 9 to 1, every class alike
  shard-dataset build flights.parquet s3://bucket/flights --label late --split train=0.9,test=0.1

  # what would be written: schema, classes, splits, shards, sizes
  shard-dataset build flights.csv shards/ --label late --dry-run

  # the split that the data comes with; or new ones, with all records of a patient on one side
  shard-dataset build cells.parquet shards/ --label kind --split-column fold --drop-columns fold
  shard-dataset build cells.parquet shards/ --label kind --group-by patient --split train=0.8,test=0.2

  # a folder of images for each class; the label is the folder's name
  shard-dataset build photos/ hdfs://namenode:8020/photos --shard-size 128MiB

  # some columns and rows of a table, in types that suit, each record once
  shard-dataset build flights.csv shards/ --filter 'hours is not null and hours < 20' --select hours,carrier,late \\
    --cast hours=float32 --label late --dedup

  # photographs whose shorter side has 256 pixels, all as JPEG, the same picture but once
  shard-dataset build photos/ shards/ --resize 256 --encode jpeg:90 --dedup image

  # MNIST as it is distributed
  shard-dataset build 'mnist/train-*' shards/mnist --source-kind idx --shards 8

  # WebDataset archives; the label is an entry of their JSON members
  shard-dataset build 's3://bucket/laion-{{00000..00099}}.tar' shards/ --label json.language

  # whatever Python can read: the function records in flights.py of this folder gives dicts
  shard-dataset build --source flights:records shards/ --label late

{_EXIT_CODES}"""
_APPEND_EPILOG = f"""\
The new records become shards of their own, a generation, beside those that are there, which are neither read nor
changed. Readers see the dataset as it was, and then, at once, with all that is new. An append that was killed or
interrupted is gone on with by the same command; it never adds its records twice, and neither does a second append of
the same SRC, unless --again says so.

Label, types, format and compression are the dataset's, and SRC must have the same columns; CSV and JSON are read as
these types. Classes keep their ids, new ones come after them. By default splits, seed and the size of shards are those
of the dataset too, and a --split-column or --balance bytes as it was built with. Within a generation the shards of a
split differ by at most one record, and one of any class. In a
dataset built with --group-by, groups stay in the splits that they are in, which is read from its shards, and new groups
are shared out by the same rule.

The records are prepared as those of the dataset were. Any of the flags below that prepare stand in place of all of
these; --as-is leaves the records alone. With --dedup, records that the dataset
holds already are not appended. Those that --on-bad-record passes over are named in the generation's own rejected.jsonl.

TensorFlow Datasets opens the folder of the last generation (DST/g00001), where each generation has splits of its own:
train_g00000+train_g00001. shard-dataset reshard writes all generations as one, and clean removes the table that the
append replaced.

{PREPARE_EPILOG}
examples:
  # the flights of one more month
  shard-dataset append flights-2026-12.csv s3://bucket/flights

  # what would be added
  shard-dataset append flights-2026-12.csv shards/ --dry-run

  # all of it for training
  shard-dataset append more.parquet shards/ --split train=1

  # more photos, resized as those of the dataset were; a few may be broken
  shard-dataset append more-photos/ photos/ --on-bad-record skip:10

{_EXIT_CODES}"""
_REPAIR_EPILOG = f"""\
First every file is brought back as it was, bit by bit, that can be: dataset.json from the copy in shards.parquet and
shards.parquet from the shards; shards that changed places; an index from its shard; a shard to which bytes were added,
or in which single bits flipped. Each is proven by the checksum that it was written with.

With --source, the shards that cannot be brought back so are made again from the source that the dataset was built from,
or a copy of it: with the options of then, which stand in dataset.json, and by the names, sizes and times of no file. If
one byte of them is not as it was written, it is another source, and nothing is changed. Records that functions prepared
(--map) need the modules of then in this folder. Of a dataset that was appended to, each generation came from its own
source (see inspect): give --source once for each generation that lost shards; those of others are left for a repair
with their source. If the table was lost as well, all of them are needed at once.

Else, of each shard that cannot be brought back, the intact records are written as a new shard beside it, and a new
dataset.json takes it in and names what was lost (see inspect). Only then the damaged files are removed. Readers see the
dataset as it was before, or after. A repair that was interrupted can be run again. No build can write to the dataset as
long as a repair does.

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

{_EXIT_CODES}"""
_RESHARD_EPILOG = f"""\
The records, their schema and the label are those of URL; each shard is held against its checksum before it is used.
Of a dataset with several splits, name one as URL#SPLIT, or say with --split how to split all records anew.

examples:
  # the same records in shards of another size and format
  shard-dataset reshard shards/ s3://bucket/flights --format parquet --shard-size 64MiB

  # one split of it, split once more
  shard-dataset reshard shards/#train folds/ --split train=0.8,validation=0.2

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
_SMALL_BYTES = 8 << 20  # written before another process has imported what it needs
T = TypeVar("T")


def build_parser(*, python_source: bool = False) -> argparse.ArgumentParser:
    """The parser of all commands and flags.

    Args:
        python_source: whether --source is given, so that there is no SRC. argparse knows no positional argument that
            depends on a flag, and fills one that may be missing before it has seen all that are there.
    """
    parser = _parser_with(
        CommandParser,
        prog="shard-dataset",
        description="Turn datasets into balanced shards that TensorFlow, Arrow and ringfeed read fast.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"ringfeed {version('ringfeed')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_build(commands, python_source)
    _add_append(commands)
    _add_reshard(commands)
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
Reads every file. Names each one that is damaged or missing, how, and where: records and offset in TFRecord shards, row
group, column and offset in Parquet shards, the first wrong byte elsewhere. Files that the dataset does not know are
noted; they are no damage. With --deep, every record is parsed as well, and held against index and class counts.

examples:
  shard-dataset verify shards/ && train
  shard-dataset verify s3://bucket/flights --workers 16
  shard-dataset verify shards/ --deep
  shard-dataset verify s3://bucket/flights --json | jq '.damages[] | {path, kind, record, offset}'
""",
    )
    repair_ = _command(commands, "repair", "mend a damaged dataset from what is left of it", _REPAIR_EPILOG)
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
    clean_ = _command(
        commands,
        "clean",
        "remove what killed builds left",
        """\
Removes finished shards without a dataset, journals, drafts, and what was spilled for them on this machine; and tables
that an append has replaced, which only who opened the dataset before it still needs. A dataset that is there stays as
it is, and a build that is at work is left alone.

examples:
  shard-dataset clean s3://bucket/flights --dry-run
  shard-dataset clean shards/
""",
    )
    clean_.add_argument("--spill", metavar="URL", help="folder that the builds were told to spill to")
    clean_.add_argument("--dry-run", action="store_true", help="show what would be removed, and remove nothing")
    for command in (inspect, verify_, repair_, cat, clean_):
        command.add_argument("url", metavar="URL", help="folder of the dataset")
    for command in (inspect, verify_, repair_, clean_):
        _add_json(command)
    cat.set_defaults(json=False)
    for command in (verify_, repair_):
        command.add_argument(
            "--workers", type=_checked(_at_least(1)), metavar="N",
            help=f"files to read side by side (default: the cores, here {cores()}; at least 8 of another machine)"
            + ("; processes that read SRC" if command is repair_ else ""),
        )  # fmt: skip
    repair_.add_argument(
        "--source", metavar="SRC", action="append",
        help="what the dataset was built from, to make lost shards again; once for each generation that lost some",
    )  # fmt: skip
    repair_.add_argument(
        "--source-kind", choices=("auto", *KINDS), help="what SRC is (default: as it was when the dataset was built)"
    )
    repair_.add_argument("--spill", metavar="URL", help="folder for what is made of SRC, until it is put back")
    repair_.add_argument("--dry-run", action="store_true", help="show what would be done, and write nothing")
    verify_.add_argument("--deep", action="store_true", help="parse every record, check index and class counts, too")
    cat.add_argument("--split", help="split to read (default: the first)")
    _add_export(commands)
    cat.add_argument("--limit", type=_checked(_at_least(0)), default=5, help="number of records (default: 5)")
    return parser


def _add_build(commands: argparse._SubParsersAction[argparse.ArgumentParser], python_source: bool) -> None:
    command = _command(commands, "build", "write a dataset as balanced shards", _BUILD_EPILOG)
    if not python_source:
        command.add_argument(
            "src", metavar="SRC",
            help="Parquet, Arrow IPC, ORC, CSV, TSV, JSON Lines, HDF5, NumPy, TFRecord or tar files (one, a folder, a "
            "glob), a folder of image folders, a list of images, IDX files, a ringfeed dataset",
        )  # fmt: skip
    command.add_argument(
        "--source", metavar="MODULE:FUNCTION",
        help="in place of SRC, a Python function that gives records: dicts, or Arrow batches, the same in every call",
    )  # fmt: skip
    command.add_argument("--label", metavar="COL", help="column that makes the classes; without it there is one class")
    command.add_argument(
        "--source-kind", choices=("auto", *KINDS), default="auto", help="what SRC is (default: by its names)"
    )
    _add_output(command)


def _add_append(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "append", "add records to a dataset, as new shards", _APPEND_EPILOG)
    command.add_argument("src", metavar="SRC", help="what to add: anything that build takes")
    command.add_argument("dst", metavar="DST", help="folder of the dataset")
    command.add_argument(
        "--source-kind", choices=("auto", *KINDS), default="auto",
        help="what SRC is (default: by its names); python: MODULE:FUNCTION",
    )  # fmt: skip
    _add_size(command, "as those that are there")
    command.add_argument(
        "--split", type=_checked(parse_splits), metavar="NAME=SHARE,...",
        help="splits and their shares (default: as in the build, or by the column that it was split by)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, help="of splits, shards and order (default: that of the build)")
    _add_work(command)
    add_prepare_flags(command)
    command.add_argument("--as-is", action="store_true", help="prepare nothing, although the dataset's records were")
    command.add_argument("--again", action="store_true", help="add SRC although the dataset holds its records already")
    _add_run(command)


def _add_reshard(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "reshard", "write a dataset's records as other shards", _RESHARD_EPILOG)
    command.add_argument("src", metavar="URL", help="folder of the dataset, or FOLDER#SPLIT for one split of it")
    _add_output(command, split_default="the split that is read")
    command.set_defaults(label=None, source=None, source_kind="ringfeed", split=None)


def _add_output(command: argparse.ArgumentParser, split_default: str = "train=1") -> None:
    """The destination, and the flags that say what is written there and how."""
    command.add_argument("dst", metavar="DST", help="folder to write; new or empty, unless --overwrite")
    command.add_argument(
        "--format", choices=tuple(COMPRESSIONS), default="tfrecord", help="of the shards (default: tfrecord)"
    )
    _add_size(command, "256MiB, but at least 16 shards")
    splits = command.add_mutually_exclusive_group()
    splits.add_argument(
        "--split", type=_checked(parse_splits), default="train=1", metavar="NAME=SHARE,...",
        help=f"splits and their shares, stratified by class, such as train=0.9,test=0.1 (default: {split_default})",
    )  # fmt: skip
    splits.add_argument(
        "--split-column", metavar="COL", help="column whose value names the split of each record, in place of shares"
    )
    command.add_argument(
        "--group-by", metavar="COL",
        help="column no value of which is in two splits, such as patient or user; shares and classes are met as well "
        "as whole groups allow, see inspect (takes about 500 bytes of memory a group)",
    )  # fmt: skip
    command.add_argument(
        "--balance", choices=("records", "bytes"), default="records",
        help="what is even between the shards of a split: records, of every class too; or bytes besides, as far as the "
        "sizes of records before compression allow (takes about 60 bytes of memory and 20 of --spill a record, and one "
        "more reading of SRC, but not of images) (default: records)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, default=0, help="of splits, shards and order (default: 0)")
    _add_work(command)
    codecs = "; ".join(f"{name}: {', '.join(names)}" for name, names in COMPRESSIONS.items())
    command.add_argument("--compression", metavar="CODEC", help=f"of the shards ({codecs})")
    command.add_argument(
        "--dali-index", action="store_true", help="write an index for NVIDIA DALI (.idx) beside each TFRecord shard"
    )
    add_prepare_flags(command)
    command.add_argument("--overwrite", action="store_true", help="replace a dataset that is at DST")
    _add_run(command)


def _add_size(command: argparse.ArgumentParser, default: str) -> None:
    size = command.add_mutually_exclusive_group()
    size.add_argument("--shards", type=_checked(_at_least(1)), metavar="N", help="shards of the largest split")
    size.add_argument(
        "--shard-size", type=_checked(parse_bytes), metavar="SIZE",
        help=f"about how large each shard should be, such as 64MiB (default: {default})",
    )  # fmt: skip


def _add_work(command: argparse.ArgumentParser) -> None:
    """The flags that say how the work is done, and which records stop it."""
    _add_workers(command)
    command.add_argument(
        "--memory", type=_checked(parse_bytes), metavar="SIZE",
        help="about what all processes may use together, such as 2GiB (default: 1 GiB for each, and 2 GiB at least); "
        "on a cluster, what each task may use (default: 1 GiB)",
    )  # fmt: skip
    command.add_argument(
        "--spill", metavar="URL",
        help="folder for what lies between the passes, about the size of SRC (default: that of temporary files)",
    )  # fmt: skip
    command.add_argument(
        "--engine", default="local", metavar="ENGINE",
        help="local, or a cluster that is there, whose workers have ringfeed installed: dask://HOST:PORT, "
        "ray://HOST:PORT, ray://auto (default: local)",
    )  # fmt: skip
    command.add_argument(
        "--min-class-records", type=_checked(_at_least(1)), default=2, metavar="N",
        help="refuse a class with fewer records (default: 2)",
    )  # fmt: skip
    command.add_argument(
        "--on-bad-record", default="fail", metavar="WHAT",
        help="fail, or pass over so many records that cannot be read or have no label, and name them in "
        "rejected.jsonl: skip:N, skip:P%% (default: fail)",
    )  # fmt: skip


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    _add_json(command)


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
    _add_json(command)


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json", action="store_true",
        help="one JSON document on standard output; on standard error a JSON object a line: an event (progress with "
        "stage, done, total, records, seconds; resumed; error and interrupted with message, status)",
    )  # fmt: skip


def _add_workers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--workers", type=_checked(_at_least(1)), metavar="N",
        help="processes; the result does not depend on it (default: the cores, "
        f"here {cores()}; 1 for a small local file, which would wait for others to start)",
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


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(source: str) -> int:
    """Processes to read a source with, unless the user says how many."""
    small = os.path.isfile(source) and os.path.getsize(source) < _SMALL_BYTES
    return 1 if small else cores()
