"""`shard-dataset`: build, inspect, verify and look into sharded datasets. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from threading import current_thread, main_thread
from time import perf_counter
from types import FrameType
from typing import Any, NoReturn, TypeVar

from ..sharding import (
    BuildOptions,
    BuildPlan,
    Progress,
    RingfeedError,
    build,
    open_dataset,
    plan_build,
    read_records,
    verify,
)
from ..sharding.formats.encode import COMPRESSIONS
from ..sharding.sources import KINDS
from .arguments import parse_bytes, parse_splits
from .balance import balance_json, balance_of_dataset, balance_of_plan, balance_text
from .console import align, human_bytes, human_seconds, one_line, stage_progress
from .inspection import inspection_json, inspection_text

__all__ = ["build_parser", "main"]

_OK, _FAILED, _INTERRUPTED, _TERMINATED = 0, 1, 130, 143
_STAGES = {"count": "count labels", "partition": "read records", "write": "write shards", "verify": "check files"}
_HEAD_BYTES = 24
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
        _inspect,
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
        _verify,
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
        _cat,
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
    cat.add_argument("--limit", type=_checked(_at_least(0)), default=5, help="number of records (default: 5)")
    return parser


def _add_build(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = _command(commands, "build", _build, "write a dataset as balanced shards", _BUILD_EPILOG)
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
    command.add_argument(
        "--workers", type=_checked(_at_least(1)), default=_cores(), metavar="N",
        help="processes; the result does not depend on it (default: the cores, here %(default)s)",
    )  # fmt: skip
    codecs = "; ".join(f"{name}: {', '.join(names)}" for name, names in COMPRESSIONS.items())
    command.add_argument("--compression", metavar="CODEC", help=f"of the shards ({codecs})")
    command.add_argument(
        "--min-class-records", type=_checked(_at_least(1)), default=2, metavar="N",
        help="refuse a class with fewer records (default: 2)",
    )  # fmt: skip
    command.add_argument("--overwrite", action="store_true", help="replace a dataset that is at DST")
    command.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    command.add_argument("--json", action="store_true", help="one JSON document on standard output, no progress")


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    epilog: str,
) -> argparse.ArgumentParser:
    description = summary[0].upper() + summary[1:] + "."
    tail = "" if _EXIT_CODES in epilog else "\n" + _EXIT_CODES
    command = _parser_with(commands.add_parser, name, help=summary, description=description, epilog=epilog + tail)
    command.add_argument("--debug", action="store_true", help="show where in the program an error arose")
    command.set_defaults(run=run)
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


# --- the commands ----------------------------------------------------------------------------------------------


def _build(args: argparse.Namespace) -> int:
    options = BuildOptions(
        source=args.src,
        destination=args.dst,
        label=args.label,
        source_kind=args.source_kind,
        shard_format=args.format,
        compression=args.compression,
        shards=args.shards,
        shard_bytes=args.shard_size,
        splits=args.split,
        seed=args.seed,
        workers=args.workers,
        overwrite=args.overwrite,
        min_class_records=args.min_class_records,
    )
    started = perf_counter()
    with stage_progress(_STAGES, silent=args.json) as show, _tidy_on_sigterm():

        def report(progress: Progress) -> None:
            show(progress.stage, progress.done, progress.total, progress.records)

        if args.dry_run:
            plan = plan_build(options, report=report)
        else:
            build(options, report=report)
    if args.dry_run:
        print(json.dumps(_plan_json(options, plan), indent=2) if args.json else "\n".join(_plan_text(options, plan)))
        return _OK
    _summarise(args, perf_counter() - started)
    return _OK


def _summarise(args: argparse.Namespace, seconds: float) -> None:
    dataset = open_dataset(args.dst)
    manifest = dataset.manifest
    balance = balance_of_dataset(dataset)
    data_bytes = sum(shard.bytes for shard in dataset.shards)
    if args.json:
        document = {
            "destination": dataset.storage.locate(),
            "format": manifest.shard_format,
            "compression": manifest.compression,
            "records": manifest.records,
            "bytes": data_bytes,
            "seconds": round(seconds, 3),
            "records_per_second": round(manifest.records / seconds, 1),
            "splits": balance_json(balance, manifest.classes),
        }
        print(json.dumps(document, indent=2))
        return
    print("\n".join(balance_text(balance, manifest.classes)))
    print(
        f"wrote {manifest.records:,} records, {human_bytes(data_bytes)} in {len(dataset.shards):,} shards of "
        f"{manifest.shard_format}, to {dataset.storage.locate()} in {human_seconds(seconds)} "
        f"({manifest.records / seconds:,.0f} records/s, {human_bytes(data_bytes / seconds)}/s)"
    )


def _plan_json(options: BuildOptions, plan: BuildPlan) -> dict[str, Any]:
    return {
        "dry_run": True,
        "destination": options.destination,
        "format": options.shard_format,
        "compression": options.codec,
        "features": plan.source.schema.to_json(),
        "estimated_record_bytes": round(plan.record_bytes, 1),
        "splits": balance_json(balance_of_plan(plan), plan.classes),
    }


def _plan_text(options: BuildOptions, plan: BuildPlan) -> list[str]:
    rows = [
        [
            one_line(feature.name),
            feature.dtype,
            "x".join("?" if size is None else str(size) for size in feature.shape) or "-",
            "label" if feature.name == plan.source.schema.label else feature.encoding or feature.logical,
        ]
        for feature in plan.source.schema.features
    ]
    codec = "" if options.codec == "none" else f" ({options.codec})"
    return [
        *align(["feature", "dtype", "shape", "role"], rows, left=4),
        "",
        *balance_text(balance_of_plan(plan), plan.classes, estimated=True),
        f"would write {options.shard_format}{codec} to {options.destination}; nothing was written (--dry-run)",
    ]


def _inspect(args: argparse.Namespace) -> int:
    dataset = open_dataset(args.url)
    print(json.dumps(inspection_json(dataset), indent=2) if args.json else inspection_text(dataset))
    return _OK


def _verify(args: argparse.Namespace) -> int:
    files = 0
    try:
        with stage_progress(_STAGES, silent=args.json) as show:

            def report(done: int, total: int) -> None:
                nonlocal files
                files = total
                show("verify", done, total, 0)

            damages = verify(args.url, report)
    except RingfeedError as error:
        if args.json:
            print(json.dumps({"ok": False, "error": one_line(error), "damages": []}, indent=2))
        raise
    if args.json:
        print(json.dumps({"ok": not damages, "files": files, "damages": [asdict(d) for d in damages]}, indent=2))
    else:
        for damage in damages:
            print(f"{damage.path}: {one_line(damage.problem)}")
    if damages:
        print(f"shard-dataset: error: {len(damages)} of {files} files are damaged or missing", file=sys.stderr)
        return _FAILED
    if not args.json:
        print(f"all {files:,} files of {args.url} are as they were written")
    return _OK


def _cat(args: argparse.Namespace) -> int:
    dataset = open_dataset(args.url)
    split = next(iter(dataset.manifest.splits)) if args.split is None else args.split
    for record in read_records(dataset, split, args.limit):
        print(json.dumps(_printable(record), ensure_ascii=False))
    return _OK


def _printable(value: Any) -> Any:
    """A value as JSON can hold it: bytes shortened, and the floats that JSON lacks as text."""
    if isinstance(value, bytes):
        return {
            "bytes": len(value),
            "head": b64encode(value[:_HEAD_BYTES]).decode() + "..." * (len(value) > _HEAD_BYTES),
        }
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _printable(entry) for key, entry in value.items()}
    return [_printable(entry) for entry in value] if isinstance(value, list) else value


# --- errors ----------------------------------------------------------------------------------------------------


@contextmanager
def _tidy_on_sigterm() -> Iterator[None]:
    """Let a build that is told to stop clean up as one that is interrupted does."""

    def stop(signum: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(_TERMINATED)

    if current_thread() is not main_thread():  # the only one that may set handlers
        yield
        return
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `shard-dataset` and return its exit status; an error that a user can mend is one line on stderr."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("shard-dataset: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    except (RingfeedError, OSError, MemoryError) as error:
        if args.debug:
            raise
        print(f"shard-dataset: error: {one_line(error) or type(error).__name__}", file=sys.stderr)
        return _FAILED


if __name__ == "__main__":
    sys.exit(main())
