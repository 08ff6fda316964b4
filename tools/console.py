"""Output of the commands: readable sizes and durations, aligned tables, progress, and JSON."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from time import monotonic
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Column

from ringfeed.sharding.common.json_stream import json_pieces
from ringfeed.sharding.messages import one_line, printable

from .process_start import redirect_to_null

# stage, tasks done, all tasks, records (or bytes) done
StageReport = Callable[[str, int, int, int], None]
# stage, records (or bytes) done, seconds -> the rate as text
_Rate = Callable[[str, int, float], str]

_LINE_SECONDS = 10.0  # between two lines of progress, without a terminal
_EVENT_SECONDS = 0.5  # between two events
_RATE_WIDTH, _TIME_WIDTH = 64, 40  # least terminal widths, in characters, that show rate and time beside a bar


def human_bytes(size: float) -> str:
    """Format a size in the largest binary unit that it fills.

    >>> human_bytes(999), human_bytes(1536), human_bytes(268435456), human_bytes(1048575)
    ('999 B', '1.5 KiB', '256.0 MiB', '1.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if round(size, 1) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"


def human_seconds(seconds: float) -> str:
    """Format a duration.

    >>> human_seconds(0.25), human_seconds(75), human_seconds(7322), human_seconds(59.97)
    ('0.2 s', '1 min 15 s', '2 h 02 min', '1 min 00 s')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def whole_command(words: Sequence[str], error: BaseException) -> str:
    """The command with the flags that an error asks for, as the end of the error's line; empty if it asks for none.

    >>> error = OSError("no separator")
    >>> error.flags = ("--delimiter", ";")
    >>> whole_command(["shard-dataset", "build", "a.csv", "out"], error)
    "; the whole command: shard-dataset build a.csv out --delimiter ';'"
    """
    flags = getattr(error, "flags", ())
    return f"; the whole command: {one_line(shlex.join([*words, *flags]))}" if flags else ""


def print_json(document: object) -> None:
    """Print a document as JSON, piece by piece; an iterator in it becomes a list."""
    for piece in json_pieces(document, 2):
        sys.stdout.write(piece)
    print()


def print_text(text: object) -> None:
    """Print lines on standard output, without control characters that names from data may hold."""
    print("\n".join(map(printable, str(text).split("\n"))))


def print_stderr(line: str) -> None:
    """Print a line on standard error; once its reader has left, print nothing, and let the work continue."""
    with _guard_stderr():
        print(printable(line), file=sys.stderr, flush=True)


@contextmanager
def _guard_stderr() -> Iterator[None]:
    """Send standard error to /dev/null once it is a pipe without a reader, or a closed terminal."""
    try:
        yield
    except OSError:
        redirect_to_null(sys.stderr)


class SafeConsole(Console):
    """A console whose texts bring no control character to the terminal; line breaks are left."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as `Console` does, with escapes in place of control characters."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else "\n".join(map(printable, text.split("\n"))), style, control)


class _Terminal:
    """Standard error for progress bars, which survives the closing of its terminal."""

    def write(self, text: str) -> None:
        with _guard_stderr():
            sys.stderr.write(text)

    def flush(self) -> None:
        with _guard_stderr():
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def print_event(event: str, **fields: object) -> None:
    """Print an event for machines: one line of JSON on standard error, whose key ``event`` names its kind."""
    print_stderr(json.dumps({"event": event} | fields))


def print_warning(program: str, text: str, *, events: bool = False) -> None:
    """Print a warning as a line, or as an event."""
    if events:
        print_event("warning", message=text)
    else:
        print_stderr(f"{program}: warning: {text}")


@contextmanager
def print_warnings(program: str, *, events: bool = False, verbose: bool = False) -> Iterator[None]:
    """Print the warnings that ringfeed logs in the body, each once.

    Args:
        program: name of the program, which begins each line.
        events: whether to print ``warning`` and ``info`` events, for machines.
        verbose: whether to print what is logged at level INFO, too, such as each request that is tried again.
    """
    logger, handler = logging.getLogger("ringfeed"), _WarningPrinter(program, events)
    level = logger.level
    if verbose:
        logger.setLevel(logging.INFO)
        handler.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _WarningPrinter(logging.Handler):
    def __init__(self, program: str, events: bool) -> None:
        super().__init__(logging.WARNING)
        self._program, self._events = program, events
        self._printed: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = one_line(record.getMessage())
        if text in self._printed:  # a source that is opened twice
            return
        self._printed.add(text)
        if record.levelno >= logging.WARNING:
            print_warning(self._program, text, events=self._events)
        elif self._events:
            print_event("info", message=text)
        else:
            print_stderr(f"{self._program}: {text}")


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to standard error what a user's functions print in the body, also in processes that start there.

    Standard output is for one JSON document.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def align(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lay out a table as lines: the first `left` columns flush left, the others flush right.

    >>> align(["split", "records"], [["train", "90"], ["test", "1,000"]])
    ['split  records', 'train       90', 'test     1,000']
    """
    lines = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    ]


@contextmanager
def stage_progress(
    labels: Mapping[str, str], *, in_bytes: Collection[str] = (), silent: bool = False, events: bool = False
) -> Iterator[StageReport]:
    """Show the progress of a job's stages on standard error: bars on a terminal, else a line every ten seconds.

    Args:
        labels: shown name of each stage.
        in_bytes: stages measured in bytes; the others are measured in records.
        silent: whether to show nothing.
        events: whether to print ``progress`` events, for machines.

    Yields:
        A function to call with (stage, tasks done, all tasks, records or bytes done).
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
    console = SafeConsole(file=cast(IO[str], _Terminal()))
    columns: list[ProgressColumn] = [
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),  # otherwise it is the first to be squeezed
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
            starts[stage] = monotonic()  # before the bar is drawn, which takes time
            bars[stage] = progress.add_task(labels.get(stage, stage), total=total, rate="")
        progress.update(bars[stage], completed=done, total=total, rate=rate(stage, amount, monotonic() - starts[stage]))

    return report


def _line_report(labels: Mapping[str, str], rate: _Rate) -> StageReport:
    def show(stage: str, done: int, total: int, amount: int, seconds: float) -> None:
        left = f"about {human_seconds(seconds / done * (total - done))} left" if 0 < done < total else ""
        facts = filter(None, [f"{done} of {total}", rate(stage, amount, seconds), left])
        print_stderr(f"{labels.get(stage, stage)}: {', '.join(facts)}")

    return _throttled(show, _LINE_SECONDS)


def _event_report(in_bytes: Collection[str]) -> StageReport:
    def show(stage: str, done: int, total: int, amount: int, seconds: float) -> None:
        measured = {"bytes" if stage in in_bytes else "records": amount}
        print_event("progress", stage=stage, done=done, total=total, **measured, seconds=round(seconds, 3))

    return _throttled(show, _EVENT_SECONDS)


def _throttled(show: Callable[[str, int, int, int, float], None], pause_seconds: float) -> StageReport:
    """Show a report after each pause, and the end of each stage, with the seconds since the stage began."""
    starts: dict[str, float] = {}
    last = monotonic()

    def report(stage: str, done: int, total: int, amount: int) -> None:
        nonlocal last
        now = monotonic()
        started = starts.setdefault(stage, now)
        if done == total or now - last >= pause_seconds:
            last = now
            show(stage, done, total, amount, now - started)

    return report
