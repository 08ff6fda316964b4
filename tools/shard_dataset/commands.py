"""What `shard-dataset` does: build, append to, inspect, verify, repair, read, clean and export sharded datasets.

Needs no TensorFlow. The process starts in `program`.
Tested in tests/tools/shard_dataset/test_program.py and tests/tools/shard_dataset/test_errors.py.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, fields
from fractions import Fraction
from time import perf_counter
from typing import Any, TypeVar

import pyarrow as pa

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    BuildPlan,
    ConfigError,
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
from ringfeed.sharding.building.options import ONE_SPLIT
from ringfeed.sharding.errors import RepeatedError
from ringfeed.sharding.messages import counted, one_line, some_of
from ringfeed.sharding.sources.ringfeed import SPLIT, open_named_dataset, resolve_split
from ringfeed.sharding.sources.split_names import find_split_folders
from ringfeed.sharding.storage.error_messages import limit_problem
from ringfeed.sharding.url_secrets import public_url
from ringfeed.tools.argument_types import refuse_unknown
from ringfeed.tools.completion import answer_shell
from ringfeed.tools.console import (
    StageReport,
    human_bytes,
    human_seconds,
    print_event,
    print_json,
    print_stderr,
    print_text,
    print_warning,
    print_warnings,
    stage_progress,
    stdout_to_stderr,
    whole_command,
)
from ringfeed.tools.process_start import reader_left
from ringfeed.tools.signals import INTERRUPTED, Terminated, raise_on_termination

from .common_arguments import cores, workers_for
from .inspection import inspection_json, inspection_text
from .parser import build_parser
from .prepare_arguments import prepare_options
from .repair_report import repair_json, repair_text
from .write_report import plan_json, plan_text, summary_json, summary_text

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
_SHOWN_RECORDS = 5  # by `cat`, without --limit

Options = TypeVar("Options", BuildOptions, AppendOptions, ExportOptions)
Report = Callable[[Progress], None]


# --- commands ------------------------------------------------------------------------------------------------------


def _options(kind: type[Options], args: argparse.Namespace, **computed: Any) -> Options:
    """Make a command's options: each field is `computed`, or has the value of the flag whose `dest` is its name."""
    names = {field.name for field in fields(kind)} & vars(args).keys()
    return kind(**({name: getattr(args, name) for name in names} | computed))


def _build(args: argparse.Namespace) -> int:
    python = args.source is not None
    split_files = _split_files(args)
    if args.splits is None and not (split_files or args.split_column or args.group_by or args.split_by_time or python):
        split_files = _split_folders(args)
    options = _options(
        BuildOptions,
        args,
        source=args.source if python else args.src,
        source_kind="python" if python else args.source_kind,
        splits=args.splits or ONE_SPLIT,
        split_files=split_files,
        workers=args.workers or workers_for(None if python else args.src, args.destination),
        prepare=prepare_options(args),
    )
    return _write(
        args,
        lambda report: (options, plan_build(options, report=report)),
        lambda report: build(options, report=report),
    )


def _split_files(args: argparse.Namespace) -> dict[str, str]:
    """The patterns of --split-files by split; reshard lacks the flag."""
    given = getattr(args, "split_files", None) or []
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"--split-files names the split {twice!r} twice; give each split one pattern")
    return dict(given)


def _split_folders(args: argparse.Namespace) -> dict[str, str]:
    """The folders of the source that are splits; says so if there are any."""
    if args.source_kind in ("python", "ringfeed"):
        return {}
    folders = find_split_folders(args.src)
    if folders:
        names = ", ".join(folders)
        if args.json:
            print_event("split_folders", splits=folders)
        elif not args.quiet:
            print_stderr(f"shard-dataset: the folders of {args.src} are kept as splits: {names}; else give --split")
    return folders


def _append(args: argparse.Namespace) -> int:
    options = _options(
        AppendOptions,
        args,
        source=args.src,
        split_files=_split_files(args),
        workers=args.workers or workers_for(args.src, args.destination),
        prepare=prepare_options(args),
    )
    return _write(
        args,
        lambda report: (
            options.for_dataset(open_dataset(args.destination)),
            plan_append(options, report=report),
        ),
        lambda report: append(options, report=report),
    )


def _reshard(args: argparse.Namespace) -> int:
    dataset, split = open_named_dataset(args.src)
    manifest = dataset.manifest
    keeps_splits = split is None and len(manifest.splits) > 1 and not (args.group_by or args.split_by_time)
    if args.splits is None and args.split_column is None and keeps_splits and SPLIT not in manifest.schema.names:
        args.split_column = SPLIT
    elif args.splits is not None and keeps_splits:
        print_warning(
            "shard-dataset",
            f"the splits {', '.join(manifest.splits)} of {args.src} are mixed and split anew; to keep them, leave "
            "--split out",
            events=args.json,
        )
    if args.splits is None and not args.split_by_time:
        name = resolve_split(args.src, dataset, split) if args.split_column is None else "train"
        args.splits = {name: Fraction(1)}
    args.shard_format = args.shard_format or dataset.manifest.shard_format
    if args.compression is None and args.shard_format == dataset.manifest.shard_format:
        args.compression = dataset.manifest.compression
    return _build(args)


def _write(
    args: argparse.Namespace,
    plan: Callable[[Report], tuple[BuildOptions, BuildPlan]],
    write: Callable[[Report], object],
) -> int:
    """Plan or write while showing progress, then print the plan or a summary; a line if all was written before."""
    started = perf_counter()
    planned: tuple[BuildOptions, BuildPlan] | None = None
    repeated: RepeatedError | None = None
    with _at_work(args) as show:
        show_stage = _stage_report(show)

        def report(progress: Progress) -> None:
            if progress.stage == "write" and progress.resumed and progress.done == progress.resumed:
                _report_resumed(args, progress)
            show_stage(progress)

        if args.dry_run:
            planned = plan(report)
        else:
            try:
                write(report)
            except RepeatedError as error:
                repeated = error
                if args.json:
                    print_event("repeated", message=str(error))
    seconds = perf_counter() - started
    if repeated is not None and not args.json:
        print_text(str(repeated))
    elif planned is not None:
        _print(args, plan_json, plan_text, *planned)
    else:
        _print(args, summary_json, summary_text, open_dataset(args.destination), seconds)
    return _OK


def _report_resumed(args: argparse.Namespace, progress: Progress) -> None:
    if args.json:
        print_event("resumed", done=progress.resumed, total=progress.total)
    elif not args.quiet:
        print_stderr(f"resuming: {some_of(progress.resumed, progress.total, 'shard', 'is/are')} finished")


def _inspect(args: argparse.Namespace) -> int:
    _print(args, inspection_json, inspection_text, open_dataset(args.url))
    return _OK


def _verify(args: argparse.Namespace) -> int:
    try:
        with _progress(args) as show:
            report = check_dataset(args.url, _file_report(show), workers=args.workers, deep=args.deep)
    except RingfeedError as error:
        if args.json:
            print_json({"ok": False, "error": one_line(error), "damages": []})
        raise
    damaged = len({damage.path for damage in report.damages})
    if args.json:
        print_json({"ok": not damaged} | asdict(report))
    else:
        for damage in report.damages:
            print_text(f"{damage.path}: {one_line(damage.problem)}")
        for note in report.notes:
            print_text(": ".join(["note", *filter(None, [note.path]), one_line(note.remark)]))
    if damaged:
        hint = f"see what can be saved with: shard-dataset repair {shlex.quote(public_url(args.url))} --dry-run"
        return _fail(args, f"{counted(damaged, 'file', 'is/are')} damaged or missing; {hint}")
    if not args.json:
        print_text(f"all {report.files:,} files of {public_url(args.url)} are as they were written")
    return _OK


def _repair(args: argparse.Namespace) -> int:
    with _at_work(args) as show:
        done = repair(
            args.url,
            _file_report(show),
            workers=args.workers,
            dry_run=args.dry_run,
            originals=[
                Original(
                    url=url,
                    source_kind=args.source_kind,
                    workers=args.workers or cores(),
                    memory=args.memory_bytes,
                    trust_code=args.trust_code,
                    images_from=tuple(args.images_from or ()),
                )
                for url in args.source or ()
            ],
            spill=args.spill,
            rebuilding=_stage_report(show),
        )
    _print(args, repair_json, repair_text, done, args.dry_run)
    return _OK


def _cat(args: argparse.Namespace) -> int:
    dataset = open_dataset(args.url)
    split = next(iter(dataset.manifest.splits)) if args.split is None else args.split
    any_letter = (sys.stdout.encoding or "utf-8").lower() == "utf-8"  # another encoding's escapes would not be JSON
    for record in read_records(dataset, split, _SHOWN_RECORDS if args.limit is None else args.limit):
        print(json.dumps(_printable(record), ensure_ascii=not any_letter))
        if reader_left():
            break
    if args.limit is None and (records := dataset.manifest.split(split).records) > _SHOWN_RECORDS:
        print_stderr(f"the first {_SHOWN_RECORDS} of the {records:,} records of {split!r}; see --limit and --split")
    return _OK


def _printable(value: Any) -> Any:
    """Convert a value to JSON's types: bytes are shortened, and floats that JSON lacks become text."""
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
    workers = args.workers or workers_for(args.url, args.destination)
    options = _options(ExportOptions, args, splits=tuple(args.split or ()), workers=workers)
    started = perf_counter()
    with _at_work(args) as show:
        written = export(options, report=_stage_report(show))
    seconds = perf_counter() - started
    if args.json:
        sizes = {"records": written.records, "files": written.files, "bytes": written.bytes}
        print_json({"destination": public_url(args.destination), **sizes, "seconds": round(seconds, 3)})
        return _OK
    if not written.is_new:
        print(f"the same export is there already: {public_url(args.destination)}")
        return _OK
    print_text(
        f"exported {counted(written.records, 'record')}, {human_bytes(written.bytes)} in "
        f"{counted(written.files, 'file')}, to {public_url(args.destination)} in {human_seconds(seconds)} "
        f"({written.records / seconds:,.0f} records/s)"
    )
    return _OK


def _clean(args: argparse.Namespace) -> int:
    removed = clean(args.url, spill=args.spill, dry_run=args.dry_run)
    if args.json:
        print_json({"dry_run": args.dry_run, "files": removed})
        return _OK
    for url in removed:
        print_text(one_line(url))
    verb = "would be" if args.dry_run else "was/were"
    print_text(
        f"{counted(len(removed), 'file', verb)} removed"
        if removed
        else f"there are no files to remove at {public_url(args.url)}"
    )
    return _OK


_COMMANDS = {
    "build": _build, "append": _append, "reshard": _reshard, "inspect": _inspect, "verify": _verify, "repair": _repair,
    "cat": _cat, "clean": _clean, "export": _export,
}  # fmt: skip


# --- output --------------------------------------------------------------------------------------------------------


def _print(
    args: argparse.Namespace, as_json: Callable[..., dict[str, Any]], as_text: Callable[..., str], *facts: Any
) -> None:
    """Print facts as one JSON document under `--json`, else as text."""
    if args.json:
        print_json(as_json(*facts))
    else:
        print_text(as_text(*facts))


@contextmanager
def _at_work(args: argparse.Namespace) -> Iterator[StageReport]:
    """Show progress, and keep what user functions print out of the JSON document that follows."""
    with stdout_to_stderr() if args.json else nullcontext(), _progress(args) as show:
        yield show


def _progress(args: argparse.Namespace) -> AbstractContextManager[StageReport]:
    return stage_progress(_STAGES, in_bytes=["verify"], silent=args.quiet, events=args.json)


def _stage_report(show: StageReport) -> Report:
    return lambda progress: show(progress.stage, progress.done, progress.total, progress.records)


def _file_report(show: StageReport) -> Callable[[VerifyProgress], None]:
    return lambda progress: show("verify", progress.files, progress.total_files, progress.bytes)


# --- running -------------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; ends the program if it is wrong or asks for help."""
    has_source = any(word.partition("=")[0] == "--source" for word in argv)
    parser = build_parser(python_source=has_source, events="--json" in argv)
    answer_shell(parser)
    args, more = parser.parse_known_args(argv)
    if has_source and args.command == "build":
        if more and not more[0].startswith("-"):
            given = " and ".join([args.destination, *more])
            parser.error(f"--source takes the place of SRC, so give DST alone; got {given}")
        if args.source_kind not in ("auto", "python"):
            parser.error(f"--source is of kind python, got --source-kind {args.source_kind}")
    if args.command == "repair" and not has_source:
        flags = {"--source-kind": args.source_kind, "--memory": args.memory_bytes, "--spill": args.spill,
                 "--images-from": args.images_from, "--trust-code": args.trust_code}  # fmt: skip
        if flag := next((flag for flag, value in flags.items() if value), ""):
            parser.error(f"{flag} says how to read the source; name it with --source")
    if more:
        refuse_unknown(parser, args.command, more)
    args.words = ["shard-dataset", *argv]
    return args


def execute(args: argparse.Namespace) -> int:
    """Run a command and return its exit status; an expected error is one line on standard error."""
    pa.enable_signal_handlers(False)  # Arrow installs its own while it reads CSV, and may lose a signal at the end
    try:
        with raise_on_termination(), print_warnings("shard-dataset", events=args.json, verbose=args.verbose):
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
        if not isinstance(error, RingfeedError | OSError) and not limit_problem(error):
            raise
        if args.json or not args.debug:
            _fail(args, _message_of(error) + whole_command(args.words, error))
        if args.debug:
            raise
        return _FAILED


def _message_of(error: BaseException) -> str:
    """Return the line for an error; limits may be met outside of the stores, which explain them."""
    return limit_problem(error) or one_line(error) or type(error).__name__


def _fail(args: argparse.Namespace, message: str) -> int:
    """Report an error and return the exit status."""
    if args.json:
        print_event("error", message=message, status=_FAILED)
    else:
        print_stderr(f"shard-dataset: error: {message}")
    return _FAILED
