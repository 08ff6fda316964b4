"""What the commands of `shard-dataset` have in common: how they are told of, and flags that most of them have."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from ...sharding.sources.arrays.url_selection import split_selection
from ...sharding.storage.location import Location
from ..argument_types import HelpFormatter, at_least, checked_type, parse_bytes

__all__ = [
    "EXIT_CODES", "add_command", "add_json", "add_memory", "add_workers", "cores", "make_parser", "workers_for",
]  # fmt: skip

_SMALL_BYTES = 8 << 20  # a smaller source is written before another process has finished its imports

EXIT_CODES = """\
exit status:
  0  all is well
  1  an error in what the command was given or met, in one line on standard error; or damage found by verify
  2  a command line that cannot be parsed
  130  interrupted, by SIGTERM 143, by SIGHUP 129; the same command resumes a build
"""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    epilog: str,
) -> argparse.ArgumentParser:
    """A command, with its exit codes at the end of its help."""
    description = summary[0].upper() + summary[1:] + "."
    tail = "" if EXIT_CODES in epilog else "\n" + EXIT_CODES
    command = make_parser(commands.add_parser, name, help=summary, description=description, epilog=epilog + tail)
    command.add_argument("--debug", action="store_true", help="show where in the program an error arose")
    return command


def make_parser(make: Callable[..., argparse.ArgumentParser], *names: str, **words: str) -> argparse.ArgumentParser:
    """argparse reads ``%`` in help texts, and knows no common type for its two ways to make a parser.

    Flags are written out: a shorter one could come to mean another, and `append --source` meant `--source-kind`.
    """
    return make(*names, formatter_class=HelpFormatter, allow_abbrev=False, **words)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    command.add_argument(
        "--json", action="store_true",
        help="print one JSON document on standard output, and on standard error one JSON object a line, an event: "
        "progress (stage, done, total, records, seconds), resumed, error and interrupted (message, status); what your "
        "own functions print goes to standard error too",
    )  # fmt: skip


def add_workers(command: argparse.ArgumentParser) -> None:
    """Add `--workers` of a command that reads a source."""
    command.add_argument(
        "--workers", type=checked_type(at_least(1)), metavar="N",
        help=f"processes; the result does not depend on it (default: the cores, here {cores()}, and twice as many for "
        "a remote DST, as some wait for it; 1 for a small local file, which would wait for others to start)",
    )  # fmt: skip


def add_memory(command: argparse.ArgumentParser, note: str = "") -> None:
    """Add `--memory` of a command that reads a source."""
    command.add_argument(
        "--memory", type=checked_type(parse_bytes), metavar="SIZE",
        help="about what all processes may use together, such as 2GiB (default: 1 GiB for each, and 2 GiB at least)"
        + note,
    )  # fmt: skip


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(source: str | None, destination: str) -> int:
    """Processes to write a source with, unless the user says how many; None is a Python function."""
    path = "" if source is None else split_selection(source)[0]
    small = os.path.isfile(path) and os.path.getsize(path) < _SMALL_BYTES
    return 1 if small else cores() * (1 if Location(destination).protocol == "file" else 2)
