"""What the commands of `shard-dataset` share: the making of a parser, and the flags of most commands."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from ringfeed.sharding.sources import KINDS
from ringfeed.sharding.sources.arrays.url_selection import split_selection
from ringfeed.sharding.storage.location import Location
from ringfeed.tools.argument_types import HelpFormatter, add_verbosity, at_least, checked_type, parse_bytes

_SMALL_BYTES = 8 << 20  # a smaller source is written before another process has finished its imports

EXIT_CODES = """\
exit status:
  0  success
  1  an error, in one line on standard error; or damage found by verify
  2  invalid arguments
  130  interrupted (143 by SIGTERM, 129 by SIGHUP); the same command resumes a build
"""


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, epilog: str
) -> argparse.ArgumentParser:
    """Add a command whose help ends with the exit codes."""
    description = summary[0].upper() + summary[1:] + "."
    tail = "" if EXIT_CODES in epilog else "\n" + EXIT_CODES
    command = make_parser(commands.add_parser, name, help=summary, description=description, epilog=epilog + tail)
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    add_verbosity(command)
    return command


def make_parser(make: Callable[..., argparse.ArgumentParser], *names: str, **words: str) -> argparse.ArgumentParser:
    """Make a parser with `make`, argparse's class or its `add_parser`, which share no type.

    Flags cannot be abbreviated: `append --source` meant `--source-kind`, and a new flag could change such a meaning.
    """
    return make(*names, formatter_class=HelpFormatter, allow_abbrev=False, **words)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    command.add_argument(
        "--json", action="store_true",
        help="print one JSON document on standard output, and events on standard error, one JSON object a line: "
        "progress (stage, done, total, records, seconds), resumed, error and interrupted (message, status); what your "
        "own functions print goes to standard error too",
    )  # fmt: skip


def add_workers(command: argparse.ArgumentParser) -> None:
    """Add `--workers` to a command that reads a source."""
    command.add_argument(
        "--workers", type=checked_type(at_least(1)), metavar="N",
        help=f"processes; the result does not depend on it (default: the number of cores, here {cores()}; twice that "
        "for a remote DST, whose uploads wait; 1 for a small local file, done before other processes have started)",
    )  # fmt: skip


def add_memory(command: argparse.ArgumentParser, note: str = "") -> None:
    """Add `--memory` to a command that reads a source; `note` ends its help."""
    command.add_argument(
        "--memory", dest="memory_bytes", type=checked_type(parse_bytes), metavar="SIZE",
        help="approximate memory of all processes together, such as 2GiB (default: 1 GiB for each, at least 2 GiB)"
        + note,
    )  # fmt: skip


def add_source_kind(command: argparse.ArgumentParser, default: str | None, origin: str, note: str = "") -> None:
    """Add `--source-kind`; its help says where the default comes from, and ends with `note`."""
    command.add_argument(
        "--source-kind", choices=("auto", *KINDS), default=default, metavar="KIND",
        help=f"kind of SRC: {', '.join(KINDS)} (default: {origin}){note}",
    )  # fmt: skip


def add_images_from(command: argparse._ActionsContainer) -> None:
    """Add `--images-from` to a command, or a group of its flags."""
    command.add_argument(
        "--images-from", metavar="FOLDER", action="append",
        help="another folder that a list of images may name files in, by path, link or URL, such as "
        "/data/photos or s3://bucket/photos; / for all of this machine, https:// for all web servers (can be repeated)",
    )  # fmt: skip


def add_trust_code(command: argparse.ArgumentParser) -> None:
    """Add `--trust-code` to a command that prepares records as `dataset.json` says."""
    command.add_argument(
        "--trust-code", action="store_true",
        help="import and call the --map functions that dataset.json names, from this folder or the installed packages "
        "(default: refuse, since whoever wrote that file chose them)",
    )  # fmt: skip


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(source: str | None, destination: str) -> int:
    """Return the default of `--workers`; a source of None is a Python function."""
    path = "" if source is None else split_selection(source)[0]
    small = os.path.isfile(path) and os.path.getsize(path) < _SMALL_BYTES
    return 1 if small else cores() * (1 if Location(destination).protocol == "file" else 2)
