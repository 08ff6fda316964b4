"""What `shard-dataset` does: build, append to, inspect, verify, repair and look into sharded datasets.

Needs no TensorFlow. The program itself is `shard_dataset`.
"""

from __future__ import annotations

import argparse
import errno
import json
import math
import shlex
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, replace
from fractions import Fraction
from time import perf_counter
from typing import Any

import pyarrow as pa

from ...sharding import (
    AppendOptions,
    BuildOptions,
    BuildPlan,
    ExportOptions,
    Original,
    Progress,
    RingfeedError,
    VerifyProgress,
    append,
    build,
    check_dataset,
    clean,
    export,
    open_dataset,
    plan_append,
    plan_build,
    read_records,
    repair,
)
from ...sharding.dataset.file_names import rejected_name
from ...sharding.messages import counted, listed, one_line, some_of
from ...sharding.sources.ringfeed import open_named_dataset, resolve_split
from ...sharding.storage.error_messages import PROCESS_LIMIT_REACHED, explain, is_process_limit
from ..console import (
    StageReport,
    align,
    human_bytes,
    human_seconds,
    print_event,
    print_json,
    print_stderr,
    stage_progress,
    stdout_to_stderr,
)
from ..process_start import INTERRUPTED, reader_left
from ..signals import Terminated, raise_on_termination
from .balance_report import balance_json, balance_of_dataset, balance_of_plan, balance_text
from .common_arguments import cores, workers_for
from .inspection import FEATURE_HEADER, feature_cells, inspection_json, inspection_text, skipped_json
from .parser import build_parser
from .prepare_arguments import prepare_options
from .repair_report import repair_json, repair_text
from .split_shares import shares_json, shares_text

__all__ = ["execute", "parse"]

_OK, _FAILED = 0, 1
_STAGES = {
    "dedup": "compare records",
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
        source=args.src if args.source is None else args.source,
        destination=args.dst,
        label=args.label,
        source_kind=args.source_kind if args.source is None else "python",
        shard_format=args.format,
        compression=args.compression,
        shards=args.shards,
        shard_bytes=args.shard_size,
        splits=args.split,
        split_column=args.split_column,
        group_by=args.group_by,
        balance=args.balance,
        seed=args.seed,
        workers=args.workers or workers_for(args.src if args.source is None else None, args.dst),
        memory_bytes=args.memory,
        spill=args.spill,
        engine=args.engine,
        on_bad_record=args.on_bad_record,
        overwrite=args.overwrite,
        min_class_records=args.min_class_records,
        dali_index=args.dali_index,
        prepare=prepare_options(args),
    )
    return _write(
        args,
        lambda report: _show_plan(args, options, plan_build(options, report=report)),
        lambda report: build(options, report=report),
    )


def _append(args: argparse.Namespace) -> int:
    options = AppendOptions(
        source=args.src,
        destination=args.dst,
        source_kind=args.source_kind,
        shards=args.shards,
        shard_bytes=args.shard_size,
        splits=args.split,
        seed=args.seed,
        workers=args.workers or workers_for(args.src, args.dst),
        memory_bytes=args.memory,
        spill=args.spill,
        engine=args.engine,
        on_bad_record=args.on_bad_record,
        min_class_records=args.min_class_records,
        prepare=prepare_options(args),
        as_is=args.as_is,
        again=args.again,
    )
    return _write(
        args,
        lambda report: _show_plan(
            args, options.for_dataset(open_dataset(args.dst)), plan_append(options, report=report)
        ),
        lambda report: append(options, report=report),
    )


def _write(
    args: argparse.Namespace,
    plan: Callable[[Callable[[Progress], None]], Callable[[], None]],
    write: Callable[[Callable[[Progress], None]], object],
) -> int:
    """Plan or write, telling how far it is, and say what would be or was written."""
    show_planned: Callable[[], None] | None = None
    started = perf_counter()
    with _at_work(args) as show:
        show_progress = _of_stages(show)

        def report(progress: Progress) -> None:
            if progress.stage == "write" and progress.resumed and progress.done == progress.resumed:
                if args.json:
                    print_event("resumed", done=progress.resumed, total=progress.total)
                else:
                    finished = some_of(progress.resumed, progress.total, "shard", "is/are")
                    print_stderr(f"going on: {finished} finished")
            show_progress(progress)

        if args.dry_run:
            show_planned = plan(report)
        else:
            write(report)
    if show_planned is not None:
        show_planned()
        return _OK
    _summarise(args, perf_counter() - started)
    return _OK


def _show_plan(args: argparse.Namespace, options: BuildOptions, plan: BuildPlan) -> Callable[[], None]:
    """What prints the plan, once the progress is out of the way."""
    if args.json:
        return lambda: print_json(_plan_json(options, plan))
    return lambda: print("\n".join(_plan_text(options, plan)))


def _reshard(args: argparse.Namespace) -> int:
    dataset, split = open_named_dataset(args.src)
    if args.split is None:
        name = resolve_split(args.src, dataset, split) if args.split_column is None else "train"
        args.split = {name: Fraction(1)}
    args.format = args.format or dataset.manifest.shard_format
    if args.compression is None and args.format == dataset.manifest.shard_format:
        args.compression = dataset.manifest.compression
    return _build(args)


def _summarise(args: argparse.Namespace, seconds: float) -> None:
    dataset = open_dataset(args.dst)
    manifest = dataset.manifest
    generation = len(manifest.all_generations) - 1  # the last, which is what was written
    balance = balance_of_dataset(dataset, generation)
    shards = sum(len(split.shard_records) for split in balance)
    records = int(sum(split.shard_records.sum() for split in balance))
    data_bytes = int(sum(split.shard_bytes.sum() for split in balance))
    skipped = skipped_json(dataset, generation)
    fresh = list(manifest.classes[manifest.all_generations[generation - 1].classes :]) if generation else []
    if args.json:
        document = {
            "destination": dataset.storage.locate(),
            "format": manifest.shard_format,
            "compression": manifest.compression,
            "records": records,
            "bytes": data_bytes,
            "seconds": round(seconds, 3),
            "records_per_second": round(records / seconds, 1),
            "splits": balance_json(balance, manifest.classes),
            "groups": shares_json(balance, manifest.options, {}),
            "skipped": skipped,
        } | ({"generation": generation, "total_records": manifest.records, "new_classes": fresh} if generation else {})
        print_json(document)
        return
    print("\n".join([*balance_text(balance, manifest.classes), *shares_text(balance, manifest.options, {})]))
    print(
        f"{'appended' if generation else 'wrote'} {counted(records, 'record')}, {human_bytes(data_bytes)} in "
        f"{counted(shards, 'shard')} of {manifest.shard_format}, to {dataset.storage.locate()} in "
        f"{human_seconds(seconds)} ({records / seconds:,.0f} records/s, {human_bytes(data_bytes / seconds)}/s)"
    )
    for path, number in skipped.items():
        print(f"skipped {counted(number or 0, 'bad record')}, listed in {dataset.storage.locate(path)}")
    print(*(f"{line}\n" for line in _new_text(fresh)), sep="", end="")
    if generation:
        held = f"{counted(manifest.records, 'record')} in {counted(len(dataset.shards), 'shard')}"
        print(f"it holds {held} now; generation {generation}")


def _plan_json(options: BuildOptions, plan: BuildPlan) -> dict[str, Any]:
    return {
        "dry_run": True,
        "generation": plan.assignment.generation,
        "destination": options.destination,
        "format": options.shard_format,
        "compression": options.codec,
        "features": plan.source.schema.to_json(),
        "estimated_record_bytes": round(plan.record_bytes, 1),
        "splits": balance_json(balance_of_plan(plan), plan.classes),
        "groups": shares_json(balance_of_plan(plan), options.recorded(), plan.groups),
        "skipped": {rejected_name(plan.assignment.generation): len(plan.rejected)} if plan.rejected else {},
    } | ({"new_classes": _planned_new(plan)} if plan.base else {})


def _planned_new(plan: BuildPlan) -> list[Any]:
    """The classes that an append would add."""
    return list(plan.classes[len(plan.base.classes) :]) if plan.base else []


def _plan_text(options: BuildOptions, plan: BuildPlan) -> list[str]:
    schema = plan.source.schema
    codec = "" if options.codec == "none" else f" ({options.codec})"
    return [
        *align(FEATURE_HEADER, [feature_cells(feature, schema.label) for feature in schema.features], left=4),
        "",
        *balance_text(balance_of_plan(plan), plan.classes, estimated=True),
        *shares_text(balance_of_plan(plan), options.recorded(), plan.groups),
        *_skipped_text(plan),
        *_new_text(_planned_new(plan)),
        f"would {'append' if plan.base else 'write'} {options.shard_format}{codec} to {options.destination}; nothing "
        "was written (--dry-run)",
    ]


def _skipped_text(plan: BuildPlan) -> list[str]:
    if not plan.rejected:
        return []
    first = one_line(replace(plan.rejected[0], remedy="")).removesuffix("; ").removesuffix(";")
    return [f"would skip {counted(len(plan.rejected), 'bad record')}; the first is {first}"]


def _new_text(classes: Sequence[Any]) -> list[str]:
    """A line about classes that an append adds, if there are any."""
    names = listed([one_line(value) or "''" for value in classes])
    return [f"{counted(len(classes), 'class/classes', 'is/are')} new to the dataset: {names}"] if classes else []


def _inspect(args: argparse.Namespace) -> int:
    dataset = open_dataset(args.url)
    if args.json:
        print_json(inspection_json(dataset))
    else:
        print(inspection_text(dataset))
    return _OK


def _verify(args: argparse.Namespace) -> int:
    try:
        with _progress(args) as show:
            found = check_dataset(args.url, _of_files(show), workers=args.workers, deep=args.deep)
    except RingfeedError as error:
        if args.json:
            print_json({"ok": False, "error": one_line(error), "damages": []})
        raise
    damaged = len({damage.path for damage in found.damages})
    if args.json:
        print_json({"ok": not damaged} | asdict(found))
    else:
        print(*(f"{damage.path}: {one_line(damage.problem)}\n" for damage in found.damages), sep="", end="")
        notes = (": ".join(["note", *filter(None, [note.path]), one_line(note.remark)]) for note in found.notes)
        print(*(f"{note}\n" for note in notes), sep="", end="")
    if damaged:
        hint = f"; see what can be saved with: shard-dataset repair {shlex.quote(args.url)} --dry-run"
        return _failed(args, f"{counted(damaged, 'file', 'is/are')} damaged or missing{hint}")
    if not args.json:
        print(f"all {found.files:,} files of {args.url} are as they were written")
    return _OK


def _repair(args: argparse.Namespace) -> int:
    with _at_work(args) as show:
        done = repair(
            args.url,
            _of_files(show),
            workers=args.workers,
            dry_run=args.dry_run,
            originals=[
                Original(url=url, kind=args.source_kind, workers=args.workers or cores(), memory_bytes=args.memory)
                for url in args.source or ()
            ],
            spill=args.spill,
            rebuilding=_of_stages(show),
        )
    if args.json:
        print_json(repair_json(done, args.dry_run))
    else:
        print(repair_text(done, args.dry_run))
    return _OK


def _cat(args: argparse.Namespace) -> int:
    dataset = open_dataset(args.url)
    split = next(iter(dataset.manifest.splits)) if args.split is None else args.split
    any_letter = (sys.stdout.encoding or "utf-8").lower() == "utf-8"  # else what it lacks would be no JSON
    for record in read_records(dataset, split, args.limit):
        print(json.dumps(_printable(record), ensure_ascii=not any_letter))
        if reader_left():
            break
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
        url=args.url,
        destination=args.dst,
        to=args.to,
        splits=tuple(args.split or ()),
        workers=args.workers or workers_for(args.url, args.dst),
    )
    started = perf_counter()
    with _at_work(args) as show:
        written = export(options, report=_of_stages(show))
    seconds = perf_counter() - started
    if args.json:
        print_json({"destination": args.dst, **asdict(written), "seconds": round(seconds, 3)})
        return _OK
    print(
        f"exported {counted(written.records, 'record')}, {human_bytes(written.bytes)} in "
        f"{counted(written.files, 'file')}, to {args.dst} in {human_seconds(seconds)} "
        f"({written.records / seconds:,.0f} records/s)"
    )
    return _OK


def _clean(args: argparse.Namespace) -> int:
    removed = clean(args.url, spill=args.spill, dry_run=args.dry_run)
    if args.json:
        print_json({"dry_run": args.dry_run, "files": removed})
        return _OK
    for url in removed:
        print(one_line(url))
    verb = "would be" if args.dry_run else "was/were"
    print(f"{counted(len(removed), 'file', verb)} removed" if removed else f"there is nothing to remove at {args.url}")
    return _OK


_COMMANDS = {
    "build": _build, "append": _append, "reshard": _reshard, "inspect": _inspect, "verify": _verify, "repair": _repair,
    "cat": _cat, "clean": _clean, "export": _export,
}  # fmt: skip


# --- running ---------------------------------------------------------------------------------------------------------


@contextmanager
def _at_work(args: argparse.Namespace) -> Iterator[StageReport]:
    """Show progress, and keep what others print out of the document that is printed behind it."""
    with stdout_to_stderr() if args.json else nullcontext(), _progress(args) as show:
        yield show


def _progress(args: argparse.Namespace) -> AbstractContextManager[StageReport]:
    return stage_progress(_STAGES, in_bytes=["verify"], events=args.json)


def _of_stages(show: StageReport) -> Callable[[Progress], None]:
    return lambda progress: show(progress.stage, progress.done, progress.total, progress.records)


def _of_files(show: StageReport) -> Callable[[VerifyProgress], None]:
    return lambda progress: show("verify", progress.files, progress.total_files, progress.bytes)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; ends the program where it is wrong, or asks for help."""
    named = any(word.partition("=")[0] == "--source" for word in argv)
    parser = build_parser(python_source=named, events="--json" in argv)
    args, more = parser.parse_known_args(argv)
    if named and args.command == "build":
        if more and not more[0].startswith("-"):
            parser.error(f"--source stands in place of SRC, so give DST alone; got {' and '.join([args.dst, *more])}")
        if args.source_kind not in ("auto", "python"):
            parser.error(f"--source is of kind python, got --source-kind {args.source_kind}")
    if args.command == "repair" and not named and (args.source_kind or args.memory or args.spill):
        parser.error("--source-kind, --memory and --spill say how to read the source; name it with --source")
    if more:
        parser.prog = f"{parser.prog} {args.command}"
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    return args


def execute(args: argparse.Namespace) -> int:
    """Run a command and return its exit status; an error that a user can mend is one line on stderr."""
    pa.enable_signal_handlers(False)  # Arrow's own, while it reads CSV: one that comes as they end may be lost
    try:
        with raise_on_termination():
            status = _COMMANDS[args.command](args)
            sys.stdout.flush()
        return status
    except KeyboardInterrupt as error:
        status = error.status if isinstance(error, Terminated) else INTERRUPTED
        if args.json:
            print_event("interrupted", message=str(error), status=status)
        else:
            print_stderr(f"shard-dataset: interrupted{f'; {error}' if str(error) else ''}")
        return status
    except Exception as error:
        if not isinstance(error, RingfeedError | OSError | MemoryError) and not is_process_limit(error):
            raise
        if not args.debug:
            return _failed(args, _told(error))
        if args.json:
            _failed(args, _told(error))
        raise


def _told(error: BaseException) -> str:
    if is_process_limit(error):
        return PROCESS_LIMIT_REACHED
    many = isinstance(error, OSError) and error.errno == errno.EMFILE  # wherever it is met, not at a store alone
    return explain(error, "file", writing=False) if many else one_line(error) or type(error).__name__


def _failed(args: argparse.Namespace, message: str) -> int:
    if args.json:
        print_event("error", message=message, status=_FAILED)
    else:
        print_stderr(f"shard-dataset: error: {message}")
    return _FAILED
