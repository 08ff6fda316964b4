"""How the commands speak: sizes and rates in words, aligned tables, progress; or JSON, for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from time import monotonic
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from ..sharding.common.json_stream import json_pieces
from .process_start import redirect_to_null

__all__ = [
    "StageReport",
    "align",
    "human_bytes",
    "human_seconds",
    "print_event",
    "print_json",
    "print_stderr",
    "stage_progress",
    "stdout_to_stderr",
]  # fmt: skip

# stage, tasks done, tasks in all, records (or bytes) done
StageReport = Callable[[str, int, int, int], None]
# the words for so much of a stage, in so many seconds
_Rate = Callable[[str, int, float], str]

_PLAIN_SECONDS = 10.0  # between two lines where there is no terminal,
_EVENT_SECONDS = 0.5  # and between two events
_RATE_WIDTH, _TIME_WIDTH = 64, 40  # of the terminal, in characters, from which on these stand beside a bar


def human_bytes(size: float) -> str:
    """A size in the largest binary unit that leaves at least one before the point.

    >>> human_bytes(999), human_bytes(1536), human_bytes(268435456), human_bytes(1048575)
    ('999 B', '1.5 KiB', '256.0 MiB', '1.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if round(size, 1) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"


def human_seconds(seconds: float) -> str:
    """A duration.

    >>> human_seconds(0.25), human_seconds(75), human_seconds(7322), human_seconds(59.97)
    ('0.2 s', '1 min 15 s', '2 h 02 min', '1 min 00 s')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def print_json(document: object) -> None:
    """Print a document for machines, piece by piece; iterators in it are lists."""
    for piece in json_pieces(document, 2):
        sys.stdout.write(piece)
    print()


def print_stderr(line: str) -> None:
    """Print a line on standard error; if nobody reads it any more, nothing more is told, and the work goes on."""
    with _readers_gone():
        print(line, file=sys.stderr, flush=True)


@contextmanager
def _readers_gone() -> Iterator[None]:
    """Let standard error lead nowhere once it is a pipe without a reader, or a terminal that was closed."""
    try:
        yield
    except OSError:
        redirect_to_null(sys.stderr)


class _Terminal:
    """Standard error for bars, which go on when nobody sees them any more."""

    def write(self, text: str) -> None:
        with _readers_gone():
            sys.stderr.write(text)

    def flush(self) -> None:
        with _readers_gone():
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def print_event(event: str, **fields: object) -> None:
    """Tell a machine, on standard error and on one line, what happens: an object whose `event` says what kind it is."""
    print_stderr(json.dumps({"event": event} | fields))


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to standard error what a user's functions print meanwhile, in processes that start now too.

    Standard output is for one document.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def align(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """A table as lines: the first `left` columns flush left, the others flush right.

    >>> align(["split", "records"], [["train", "90"], ["test", "1,000"]])
    ['split  records', 'train       90', 'test     1,000']
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]


@contextmanager
def stage_progress(
    labels: Mapping[str, str], *, in_bytes: Collection[str] = (), silent: bool = False, events: bool = False
) -> Iterator[StageReport]:
    """Show the stages of a job on standard error: bars on a terminal, else a line now and then.

    Args:
        labels: what to call each stage.
        in_bytes: stages that are measured in bytes; others are in records.
        silent: show nothing.
        events: show events ``progress`` for machines.

    Yields:
        What to call with (stage, tasks done, tasks in all, records or bytes done).
    """

    def rate(stage: str, amount: int, seconds: float) -> str:
        if not amount or seconds <= 0:
            return ""
        return f"{human_bytes(amount / seconds)}/s" if stage in in_bytes else f"{amount / seconds:,.0f} records/s"

    if silent:
        yield lambda stage, done, total, amount: None
    elif events:
        yield _event_report(in_bytes)
    elif sys.stderr.isatty():
        with _bars() as progress:
            yield _bar_report(progress, labels, rate)
    else:
        yield _line_report(labels, rate)


def _bars() -> Progress:
    console = Console(file=cast(IO[str], _Terminal()))
    columns: list[ProgressColumn] = [
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),  # else it gives way before all others
    ]
    if console.width >= _RATE_WIDTH:
        columns.append(TextColumn("{task.fields[rate]}"))
    if console.width >= _TIME_WIDTH:
        columns.append(TimeRemainingColumn(elapsed_when_finished=True))
    return Progress(*columns, console=console)


def _bar_report(progress: Progress, labels: Mapping[str, str], rate: _Rate) -> StageReport:
    bars: dict[str, TaskID] = {}
    starts: dict[str, float] = {}

    def report(stage: str, done: int, total: int, amount: int) -> None:
        if stage not in bars:
            starts[stage] = monotonic()  # drawing the bar takes time, in which work goes on
            bars[stage] = progress.add_task(labels.get(stage, stage), total=total, rate="")
        so_fast = rate(stage, amount, monotonic() - starts[stage])
        progress.update(bars[stage], completed=done, total=total, rate=so_fast)

    return report


def _line_report(labels: Mapping[str, str], rate: _Rate) -> StageReport:
    def show(stage: str, done: int, total: int, amount: int, seconds: float) -> None:
        so_fast = rate(stage, amount, seconds)
        print_stderr(f"{labels.get(stage, stage)}: {done} of {total}{', ' if so_fast else ''}{so_fast}")

    return _now_and_then(show, _PLAIN_SECONDS)


def _event_report(in_bytes: Collection[str]) -> StageReport:
    def show(stage: str, done: int, total: int, amount: int, seconds: float) -> None:
        measured = {"bytes" if stage in in_bytes else "records": amount}
        print_event("progress", stage=stage, done=done, total=total, **measured, seconds=round(seconds, 3))

    return _now_and_then(show, _EVENT_SECONDS)


def _now_and_then(show: Callable[[str, int, int, int, float], None], pause: float) -> StageReport:
    """Show what is reported after each pause, and the end of each stage, with the seconds since the stage began."""
    starts: dict[str, float] = {}
    last = monotonic()

    def report(stage: str, done: int, total: int, amount: int) -> None:
        nonlocal last
        now = monotonic()
        started = starts.setdefault(stage, now)
        if done == total or now - last >= pause:
            last = now
            show(stage, done, total, amount, now - started)

    return report
