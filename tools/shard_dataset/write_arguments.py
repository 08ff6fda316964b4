"""The flags and help of the `shard-dataset` commands that write shards: build, append and reshard.

A flag's `dest` is the name of a field of the command's options: see `commands._options`.
"""

from __future__ import annotations

import argparse

from ringfeed.sharding.engines.engine import check_engine
from ringfeed.sharding.formats.shard_encode import COMPRESSIONS
from ringfeed.sharding.prepare.rare_classes import parse_rare_classes
from ringfeed.sharding.prepare.screening.bad_records import parse_budget
from ringfeed.tools.argument_types import (
    at_least,
    check_persistent,
    checked_text,
    checked_type,
    parse_bytes,
    parse_split_file,
    parse_splits,
)

from .common_arguments import (
    EXIT_CODES,
    add_command,
    add_json,
    add_memory,
    add_source_kind,
    add_trust_code,
    add_workers,
)
from .prepare_arguments import PREPARE_EPILOG, add_prepare_flags

_BUILD_EPILOG = f"""\
Within a split, shards differ by at most one record, and by at most one record of each class. With --balance bytes they
also have the same size, as far as the sizes of records allow. The same source, options and seed give the same bytes,
whatever --workers is. The dataset appears in one step, when all of it is written. If a build is killed or interrupted,
the same command resumes it and gives the same bytes; a build that fails because of its source leaves nothing behind.

{PREPARE_EPILOG}
examples:
  # a table with a label, split 8 to 1 to 1, stratified by class; as many shards as fit its size
  shard-dataset build flights.parquet s3://bucket/flights --label late --split train=0.8,val=0.1,test=0.1

  # show what would be written: schema, classes, splits, shards, sizes
  shard-dataset build flights.csv shards/ --label late --dry-run

  # the splits that the data comes with; or new ones, with all records of a patient in one split
  shard-dataset build cells.parquet shards/ --label kind --split-column fold --drop-columns fold
  shard-dataset build fashion-mnist/ shards/ --split-files train='train-*' test='t10k-*'
  shard-dataset build cells.parquet shards/ --label kind --group-by patient --split train=0.8,test=0.2
  shard-dataset build sales.csv shards/ --label kind --split-by-time day     # train on the past, test on the newest

  # a folder of images for each class; the label is the folder's name
  shard-dataset build photos/ hdfs://namenode:8020/photos --shard-size 128MiB

  # some columns and rows of a table, in chosen types, each record once
  shard-dataset build flights.csv shards/ --filter 'hours is not null and hours < 20' --select hours,carrier,late \\
    --cast hours=float32 --label late --dedup

  # photographs whose shorter side has 256 pixels, all as JPEG, each picture once
  shard-dataset build photos/ shards/ --resize 256 --encode jpeg:90 --dedup image

  # MNIST as it is distributed
  shard-dataset build 'mnist/train-*' shards/mnist --source-kind idx --shards 8

  # WebDataset archives; the label is an entry of their JSON members
  shard-dataset build 's3://bucket/laion-{{00000..00099}}.tar' shards/ --label json.language

  # a table that names images, some of them outside its folder
  shard-dataset build labels.csv shards/ --source-kind image-list --label kind --images-from /data/photos

  # whatever Python can read: the function `records` in ./flights.py yields dicts
  shard-dataset build --source flights:records shards/ --label late

{EXIT_CODES}"""
_APPEND_EPILOG = f"""\
The new records become a generation of shards of their own; existing shards are neither read nor changed. Readers see
the dataset without the new records until all of them are written, and then with all of them. If an append is killed or
interrupted, the same command resumes it. Records are never added twice: a second append of the same SRC is refused,
unless --again is given.

Label, types, format and compression stay as in the dataset, and SRC must have the same columns; CSV and JSON are read
as these types. Classes keep their ids; new ones follow, and are named in the summary. Splits, seed, shard size,
--split-column and --balance bytes are as in the build, unless given here. Within a generation, the shards of a split
differ by at most one record, and by at most one record of each class. In a dataset built with --group-by, groups stay
in their splits (read from the shards), and new groups are distributed by the same rule.

New records are prepared as the dataset's were; if by functions (--map), only with --trust-code. The preparing flags
below, if any is given, replace all of those steps; --as-is prepares nothing. With --dedup, records that the dataset
already holds are not appended. Bad records that --on-bad-record skips are listed in a file of the
generation, DST/_ringfeed/rejected-g00001.jsonl.

In TensorFlow Datasets, each generation has splits of its own: train_g00000+train_g00001. The command reshard writes
all generations as one; clean removes the table that the append replaced.

{PREPARE_EPILOG}
examples:
  # the flights of one more month
  shard-dataset append flights-2026-12.csv s3://bucket/flights

  # show what would be added
  shard-dataset append flights-2026-12.csv shards/ --dry-run

  # use all of it for training
  shard-dataset append more.parquet shards/ --split train=1

  # more photos, resized like the dataset's; a few may be broken
  shard-dataset append more-photos/ photos/ --on-bad-record skip:10

{EXIT_CODES}"""
_RESHARD_EPILOG = f"""\
Records, schema and label come from the dataset at URL; so do format and compression, unless given. Each shard is
checked against its checksum before it is used.

The dataset's splits are kept. Name one of them as URL#SPLIT, or split all records anew with --split, which may put
records of the test split into the new training split.

examples:
  # the same records in shards of another size and format
  shard-dataset reshard shards/ s3://bucket/flights --format parquet --shard-size 64MiB

  # all splits, as Parquet
  shard-dataset reshard shards/ tables/ --format parquet

  # one split, split again
  shard-dataset reshard shards/#train folds/ --split train=0.8,validation=0.2

{EXIT_CODES}"""

_CODECS = "none for tfrecord, snappy for parquet"


def add_build(commands: argparse._SubParsersAction[argparse.ArgumentParser], *, python_source: bool) -> None:
    """Add `build`; with `python_source` it takes no SRC: see `build_parser`."""
    command = add_command(commands, "build", "write a dataset as balanced shards", _BUILD_EPILOG)
    if not python_source:
        command.add_argument(
            "src", metavar="SRC",
            help="Parquet, Arrow IPC, ORC, CSV, TSV, JSON Lines, JSON, HDF5, NumPy, TFRecord or tar files (one, a "
            "folder, a glob), a folder of image folders, a list of images, IDX files, a ringfeed dataset",
        )  # fmt: skip
    command.add_argument(
        "--source", metavar="MODULE:FUNCTION",
        help="instead of SRC: a Python function that yields records, dicts or Arrow batches, the same at every call",
    )  # fmt: skip
    command.add_argument(
        "--label", metavar="COL", help="column whose values are the classes (default: one class for all records)"
    )
    add_source_kind(command, "auto", "told by its file names")
    _add_output(command, split_files=True)


def add_append(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `append`."""
    command = add_command(commands, "append", "add records to a dataset, as new shards", _APPEND_EPILOG)
    command.add_argument("src", metavar="SRC", help="records to add: anything that build takes")
    command.add_argument("destination", metavar="DST", help="folder of the dataset")
    add_source_kind(command, "auto", "told by its file names", "; if it is python, SRC is MODULE:FUNCTION")
    _add_size(command, "as the existing shards")
    splits = command.add_mutually_exclusive_group()
    splits.add_argument(
        "--split", dest="splits", type=checked_type(parse_splits), metavar="NAME=SHARE,...",
        help="splits and their shares (default: as in the build, by its --split-column or --split-files)",
    )  # fmt: skip
    _add_split_files(splits)
    command.add_argument("--seed", type=int, help="seed of splits, shards and order (default: as in the build)")
    _add_work(command)
    add_prepare_flags(command)
    add_trust_code(command)
    command.add_argument("--as-is", action="store_true", help="do not prepare records, even if the dataset's were")
    command.add_argument("--again", action="store_true", help="add SRC even if it was added before, and with --dedup")
    _add_run(command)


def add_reshard(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `reshard`."""
    command = add_command(commands, "reshard", "write a dataset's records as other shards", _RESHARD_EPILOG)
    command.add_argument("src", metavar="URL", help="folder of the dataset, or FOLDER#SPLIT for one split")
    _add_output(
        command,
        split_default="as the dataset",
        format_default="as the dataset",
        compression_default=f"as the dataset; in another format: {_CODECS}",
    )
    command.set_defaults(label=None, source=None, source_kind="ringfeed", splits=None, shard_format=None)


def _add_output(
    command: argparse.ArgumentParser,
    split_default: str = "train=1, or the folders of SRC, if all are named like splits: train, val, test",
    *,
    split_files: bool = False,
    format_default: str = "tfrecord",
    compression_default: str = _CODECS,
) -> None:
    """Add DST and the flags that say what to write there and how; the defaults given here only appear in the help."""
    command.add_argument(
        "destination", metavar="DST", type=checked_text(check_persistent),
        help="folder to write; new or empty, unless --overwrite",
    )  # fmt: skip
    command.add_argument(
        "--format", dest="shard_format", choices=tuple(COMPRESSIONS), default="tfrecord",
        help=f"format of the shards (default: {format_default})",
    )  # fmt: skip
    _add_size(command, "256MiB, but at least 16 shards, or 8 or 4 where these would be below 1MiB")
    _add_splits(command, split_default, split_files=split_files)
    command.add_argument(
        "--balance", choices=("records", "bytes"), default="records",
        help="what the shards of a split have equally many of: records, overall and of each class; or also bytes, as "
        "far as record sizes before compression allow (takes about 60 bytes of memory and 20 of --spill per record, "
        "and reads SRC once more, unless it holds images) (default: records)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, default=0, help="seed of splits, shards and order (default: 0)")
    _add_work(command)
    codecs = "; ".join(f"{name}: {', '.join(names)}" for name, names in COMPRESSIONS.items())
    command.add_argument(
        "--compression", metavar="CODEC",
        help=f"compression of the shards ({codecs}) (default: {compression_default})",
    )  # fmt: skip
    command.add_argument(
        "--dali-index",
        action="store_true",
        help="write an index of each TFRecord shard for NVIDIA DALI (DST/_ringfeed/*.idx)",
    )
    add_prepare_flags(command)
    command.add_argument("--overwrite", action="store_true", help="replace the dataset at DST")
    _add_run(command)


def _add_splits(command: argparse.ArgumentParser, split_default: str, *, split_files: bool) -> None:
    """Add the flags that say how records are split; the default given here only appears in the help."""
    splits = command.add_mutually_exclusive_group()
    splits.add_argument(
        "--split", dest="splits", type=checked_type(parse_splits), metavar="NAME=SHARE,...",
        help="splits and their shares, stratified by class, such as train=0.8,val=0.1,test=0.1 (default: "
        f"{split_default})",
    )  # fmt: skip
    splits.add_argument(
        "--split-column", metavar="COL", help="column that names the split of each record, instead of shares"
    )
    if split_files:
        _add_split_files(splits)
    command.add_argument(
        "--group-by", metavar="COL",
        help="column whose values, such as patients or users, each stay in one split; shares and classes are met as "
        "well as whole groups allow: see inspect (takes about 500 bytes of memory per group; default of --split then: "
        "train=0.8,val=0.1,test=0.1)",
    )  # fmt: skip
    command.add_argument(
        "--split-by-time", metavar="COL",
        help="column of times or dates: the first split gets the earliest records, the last one the latest (default of "
        "--split then: train=0.8,val=0.1,test=0.1)",
    )  # fmt: skip


def _add_split_files(group: argparse._MutuallyExclusiveGroup) -> None:
    group.add_argument(
        "--split-files", nargs="+", action="extend", type=checked_type(parse_split_file), metavar="NAME=PATTERN",
        help="the splits that SRC, a folder, comes in: name, folder or glob of the files of each, below SRC, such as "
        "train='train-*' test='t10k-*'; files of none are left out (write it after SRC and DST)",
    )  # fmt: skip


def _add_size(command: argparse.ArgumentParser, default: str) -> None:
    size = command.add_mutually_exclusive_group()
    size.add_argument(
        "--shards", type=checked_type(at_least(1)), metavar="N", help="number of shards of the largest split"
    )
    size.add_argument(
        "--shard-size", dest="shard_bytes", type=checked_type(parse_bytes), metavar="SIZE",
        help=f"approximate size of a shard, such as 64MiB (default: {default})",
    )  # fmt: skip


def _add_work(command: argparse.ArgumentParser) -> None:
    """Add the flags that say how the work is done, and which records end it."""
    add_workers(command)
    add_memory(command, "; on a cluster, of each task (default: 1 GiB)")
    command.add_argument(
        "--spill", metavar="URL",
        help="folder for intermediate files, about as large as SRC (default: the folder of temporary files)",
    )  # fmt: skip
    command.add_argument(
        "--engine", default="local", metavar="ENGINE", type=checked_text(check_engine),
        help="local, or an existing cluster whose workers have ringfeed installed: dask://HOST:PORT, "
        "ray://HOST:PORT, ray://auto (default: local)",
    )  # fmt: skip
    command.add_argument(
        "--min-class-records", type=checked_type(at_least(1)), default=2, metavar="N",
        help="a class with fewer records is rare, and so is one with fewer than splits (default: 2)",
    )  # fmt: skip
    command.add_argument(
        "--rare-classes", default="error", metavar="WHAT", type=checked_text(parse_rare_classes),
        help="what to do about rare classes: error; drop their records; or merge:NAME, give all of them the label NAME "
        "(default: error)",
    )  # fmt: skip
    command.add_argument(
        "--on-bad-record", default="fail", metavar="WHAT", type=checked_text(parse_budget),
        help="fail; or skip up to N records (skip:N), or P%% of the records of SRC before any filter (skip:P%%), that "
        "cannot be read or have no label, and list them in _ringfeed/rejected.jsonl (default: fail)",
    )  # fmt: skip


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    add_json(command)
