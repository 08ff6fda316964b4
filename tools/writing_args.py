"""The commands of `shard-dataset` that write shards, build, append and reshard: their flags and help."""

from __future__ import annotations

import argparse

from ..sharding.engine import check_engine
from ..sharding.formats.encode import COMPRESSIONS
from ..sharding.sources import KINDS
from ..sharding.tolerance import parse_budget
from .arguments import at_least, check_lasting, checked_text, checked_type, parse_bytes, parse_splits
from .prepare_args import PREPARE_EPILOG, add_prepare_flags
from .subcommands import EXIT_CODES, add_command, add_json, add_memory, add_workers

__all__ = ["add_append", "add_build", "add_reshard"]

_BUILD_EPILOG = f"""\
Each shard's number of records, and each class's number of records per shard, differ by at most one between the
shards of a split; with --balance bytes the shards are of one size, too, as far as the sizes of records allow. The same
source, options and seed give the same bytes, whatever --workers is. The dataset appears at once, when all of it is
written. A build that was killed or interrupted is gone on with by the same command, and ends with the same bytes; one
that fails for its source's sake leaves nothing behind.

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

{EXIT_CODES}"""
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

{EXIT_CODES}"""
_RESHARD_EPILOG = f"""\
The records, their schema and the label are those of URL; each shard is held against its checksum before it is used.
Of a dataset with several splits, name one as URL#SPLIT, keep them with --split-column split, or say with --split how to
split all records anew.

examples:
  # the same records in shards of another size and format
  shard-dataset reshard shards/ s3://bucket/flights --format parquet --shard-size 64MiB

  # all splits of it, as Parquet
  shard-dataset reshard shards/ tables/ --split-column split --format parquet

  # one split of it, split once more
  shard-dataset reshard shards/#train folds/ --split train=0.8,validation=0.2

{EXIT_CODES}"""


def add_build(commands: argparse._SubParsersAction[argparse.ArgumentParser], *, python_source: bool) -> None:
    """Add `build`; with `python_source` it takes no SRC, see `build_parser`."""
    command = add_command(commands, "build", "write a dataset as balanced shards", _BUILD_EPILOG)
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


def add_append(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `append`."""
    command = add_command(commands, "append", "add records to a dataset, as new shards", _APPEND_EPILOG)
    command.add_argument("src", metavar="SRC", help="what to add: anything that build takes")
    command.add_argument("dst", metavar="DST", help="folder of the dataset")
    command.add_argument(
        "--source-kind", choices=("auto", *KINDS), default="auto",
        help="what SRC is (default: by its names); python: MODULE:FUNCTION",
    )  # fmt: skip
    _add_size(command, "as those that are there")
    command.add_argument(
        "--split", type=checked_type(parse_splits), metavar="NAME=SHARE,...",
        help="splits and their shares (default: as in the build, or by the column that it was split by)",
    )  # fmt: skip
    command.add_argument("--seed", type=int, help="of splits, shards and order (default: that of the build)")
    _add_work(command)
    add_prepare_flags(command)
    command.add_argument("--as-is", action="store_true", help="prepare nothing, although the dataset's records were")
    command.add_argument("--again", action="store_true", help="add SRC although it is there already, under --dedup too")
    _add_run(command)


def add_reshard(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `reshard`."""
    command = add_command(commands, "reshard", "write a dataset's records as other shards", _RESHARD_EPILOG)
    command.add_argument("src", metavar="URL", help="folder of the dataset, or FOLDER#SPLIT for one split of it")
    _add_output(command, split_default="the split that is read")
    command.set_defaults(label=None, source=None, source_kind="ringfeed", split=None)


def _add_output(command: argparse.ArgumentParser, split_default: str = "train=1") -> None:
    """The destination, and the flags that say what is written there and how."""
    command.add_argument(
        "dst", metavar="DST", type=checked_text(check_lasting), help="folder to write; new or empty, unless --overwrite"
    )
    command.add_argument(
        "--format", choices=tuple(COMPRESSIONS), default="tfrecord", help="of the shards (default: tfrecord)"
    )
    _add_size(command, "256MiB, but at least 16 shards")
    splits = command.add_mutually_exclusive_group()
    splits.add_argument(
        "--split", type=checked_type(parse_splits), default="train=1", metavar="NAME=SHARE,...",
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
    size.add_argument("--shards", type=checked_type(at_least(1)), metavar="N", help="shards of the largest split")
    size.add_argument(
        "--shard-size", type=checked_type(parse_bytes), metavar="SIZE",
        help=f"about how large each shard should be, such as 64MiB (default: {default})",
    )  # fmt: skip


def _add_work(command: argparse.ArgumentParser) -> None:
    """The flags that say how the work is done, and which records stop it."""
    add_workers(command)
    add_memory(command, "; on a cluster, what each task may use (default: 1 GiB)")
    command.add_argument(
        "--spill", metavar="URL",
        help="folder for what lies between the passes, about the size of SRC (default: that of temporary files)",
    )  # fmt: skip
    command.add_argument(
        "--engine", default="local", metavar="ENGINE", type=checked_text(check_engine),
        help="local, or a cluster that is there, whose workers have ringfeed installed: dask://HOST:PORT, "
        "ray://HOST:PORT, ray://auto (default: local)",
    )  # fmt: skip
    command.add_argument(
        "--min-class-records", type=checked_type(at_least(1)), default=2, metavar="N",
        help="refuse a class with fewer records (default: 2)",
    )  # fmt: skip
    command.add_argument(
        "--on-bad-record", default="fail", metavar="WHAT", type=checked_text(parse_budget),
        help="fail, or pass over so many records that cannot be read or have no label, and name them in "
        "rejected.jsonl: skip:N, or skip:P%% of those of SRC, before any filter (default: fail)",
    )  # fmt: skip


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    add_json(command)
