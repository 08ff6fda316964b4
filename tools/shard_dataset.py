"""`shard-dataset`: build, inspect, verify and look into sharded datasets. Needs no TensorFlow."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from threading import current_thread, main_thread
from time import perf_counter
from types import FrameType
from typing import Any, NoReturn

from ..sharding import (
    BuildOptions,
    BuildPlan,
    ExportOptions,
    Progress,
    RingfeedError,
    build,
    export,
    open_dataset,
    plan_build,
    read_records,
    verify,
)
from .balance import balance_json, balance_of_dataset, balance_of_plan, balance_text
from .console import align, human_bytes, human_seconds, one_line, stage_progress
from .inspection import inspection_json, inspection_text
from .shard_dataset_args import build_parser

__all__ = ["main"]

_OK, _FAILED, _INTERRUPTED, _TERMINATED = 0, 1, 130, 143
_STAGES = {
    "count": "count labels",
    "partition": "read records",
    "write": "write shards",
    "verify": "check files",
    "export": "write files",
}
_HEAD_BYTES = 24


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
        dali_index=args.dali_index,
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


def _export(args: argparse.Namespace) -> int:
    options = ExportOptions(
        url=args.url, destination=args.dst, to=args.to, splits=tuple(args.split or ()), workers=args.workers
    )
    started = perf_counter()
    with stage_progress(_STAGES, silent=args.json) as show, _tidy_on_sigterm():

        def report(progress: Progress) -> None:
            show(progress.stage, progress.done, progress.total, progress.records)

        written = export(options, report=report)
    seconds = perf_counter() - started
    if args.json:
        print(json.dumps({"destination": args.dst, **asdict(written), "seconds": round(seconds, 3)}, indent=2))
        return _OK
    print(
        f"exported {written.records:,} records, {human_bytes(written.bytes)} in {written.files:,} files, to {args.dst} "
        f"in {human_seconds(seconds)} ({written.records / seconds:,.0f} records/s)"
    )
    return _OK


_COMMANDS = {"build": _build, "inspect": _inspect, "verify": _verify, "cat": _cat, "export": _export}


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
        status = _COMMANDS[args.command](args)
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
