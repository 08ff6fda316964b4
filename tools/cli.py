"""The command `ringfeed`, whose subcommands live in the modules listed in `COMMANDS`.

Only the chosen subcommand's module is imported, so that no subcommand pays for another's imports; and nothing but cheap
modules before signals are handled.
Tested in tests/tools/test_argument_types.py and tests/tools/test_signals.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from .process_start import exit_without_memory, guarded_stdout, prepare_streams
from .signals import INTERRUPTED, SignalWatch, Terminated, ending_on_signals, ignore_signals

if TYPE_CHECKING:
    import argparse

COMMANDS = {
    "train": ("..training.train", "train a model, alone or as one rank of horovodrun"),
    "launch": ("..training.launch", "start the ranks of a run on this machine, and name the one that fails"),
    "export": ("..training.serving.export", "write a trained model for other programs: SavedModel, .keras, .onnx"),
    "predict": ("..training.serving.predict", "predict the classes of a dataset's records with a trained model"),
    "trace": ("..training.planning.trace_command", "show the records of a run's step, or the steps of a record"),
    "profile": (".profile.command", "measure the loader stage by stage and name its bottleneck"),
    "simulate": (".simulation.command", "predict epochs on other ranks, stores, shards and options"),
    "tune": (".tune.command", "search for better options of the loader, and confirm them by measurement"),
    "bench-ring": (".simulation.bench_ring", "measure all-reduces between the ranks, by size"),
    "cache": (".cache", "list or clear a loader's cache"),
    "doctor": (
        ".environment.doctor",
        "report versions, collectives, GPUs and clients, and how to install what is missing",
    ),
    "install-horovod": (
        ".environment.horovod_build",
        "build and install Horovod for the installed TensorFlow",
    ),
    "completion": (".completion", "print what makes bash, zsh or fish complete commands and flags"),
}

# They keep what they write whole, even if they are killed.
_ENDED_BY_SIGNALS = ("train", "predict", "profile", "simulate", "tune")

# Missing top-level module -> the extra that installs it.
EXTRAS = {
    "tensorflow": "cpu", "keras": "cpu", "yaml": "cpu", "psutil": "cpu", "cloudpickle": "cpu",
    "tf2onnx": "onnx", "onnx": "onnx",
    "matplotlib": "report", "jinja2": "report", "hdfs_native": "hdfs",
}  # fmt: skip

_EPILOG = """\
examples:
  ringfeed doctor
  ringfeed install-horovod
  ringfeed profile s3://bucket/flights --split train --batch-size 1024
  ringfeed tune s3://bucket/flights --step model:train_step
  horovodrun -np 2 --gloo ringfeed train --config flights.yaml --set epochs=3

Exit status: 0 success, 1 an error (one line on standard error, with --json one JSON object), 2 invalid arguments,
130 interrupted (train and profile: 143 by SIGTERM, 129 by SIGHUP), 75 a run of train that SIGTERM stopped after it
saved a checkpoint: the same command resumes it.

Datasets are built, inspected and verified by `shard-dataset`.
"""


class Subcommand(Protocol):
    """The interface of the modules in `COMMANDS`."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments and the help."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the subcommand and return the exit status."""


def load(command: str) -> Subcommand:
    """Import a subcommand's module."""
    return cast(Subcommand, import_module(COMMANDS[command][0], __package__))


def build_parser(chosen: str | None, *, events: bool = False) -> argparse.ArgumentParser:
    """Return the parser of `ringfeed`: complete for the chosen subcommand, one line of help for the others.

    Args:
        chosen: the subcommand.
        events: whether to report mistakes as events, for machines.
    """
    from .argument_types import CommandParser, EventParser, HelpFormatter
    from .probe import version_of

    parser: argparse.ArgumentParser = (EventParser if events else CommandParser)(
        prog="ringfeed",
        description="Balanced shards in, batches out, models trained on a ring.",
        epilog=_EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"ringfeed {version_of('ringfeed') or '(not installed)'}"
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, help_line) in COMMANDS.items():
        command = subparsers.add_parser(name, help=help_line, formatter_class=HelpFormatter)
        if name == chosen:
            load(name).add_arguments(command)
    return parser


def chosen_command(argv: Sequence[str]) -> str | None:
    """Return the subcommand in a command line, or None if there is none or it is unknown.

    >>> chosen_command(["doctor", "--json"])
    'doctor'
    >>> chosen_command(["--help"]) is None
    True
    """
    first = next((word for word in argv if not word.startswith("-")), None)
    return first if first in COMMANDS else None


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ringfeed` and return its exit status; an expected error is one line on standard error."""
    prepare_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = chosen_command(_words_to_complete() if "_ARGCOMPLETE" in os.environ else arguments)
    if command in _ENDED_BY_SIGNALS:
        with ending_on_signals(f"ringfeed {command}") as watch:
            status = _run(command, arguments, watch, is_own_process=argv is None)
    else:
        status = _run(command, arguments, None, is_own_process=argv is None)
    if argv is None:
        ignore_signals()  # Python's own end takes a moment
    return status


def _words_to_complete() -> list[str]:
    from .completion import words_so_far

    return words_so_far() or []


def _run(chosen: str | None, arguments: Sequence[str], watch: SignalWatch | None, *, is_own_process: bool) -> int:
    events = "--json" in arguments
    with exit_without_memory("ringfeed"), ending_on_signals("ringfeed"):
        from ringfeed.sharding.common.own_process import claim_process
        from ringfeed.sharding.errors import RingfeedError
        from ringfeed.sharding.url_secrets import without_secrets
    if is_own_process:
        claim_process()
    try:
        with guarded_stdout():
            with exit_without_memory("ringfeed"), ending_on_signals("ringfeed"):
                from .completion import answer_shell

                parser = build_parser(chosen, events=events)
                answer_shell(parser)
                args = parser.parse_args(arguments)
            args.watch = watch
            status = load(args.command).run(args)
            sys.stdout.flush()
            return status
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        return _report("error", f"this needs {error.name}: pip install 'ringfeed[{extra}]'", 1, events=events)
    except Exception as error:
        from ringfeed.sharding.storage.error_messages import limit_problem

        from .console import whole_command

        words, problem = ["ringfeed", *arguments], limit_problem(error)
        if not problem and not isinstance(error, RingfeedError | OSError):
            raise
        text = problem or f"{without_secrets(str(error))}{whole_command(words, error)}"
        return _report("error", text, 1, events=events)
    except KeyboardInterrupt as error:
        if watch is not None:  # which reports it
            raise
        status = error.status if isinstance(error, Terminated) else INTERRUPTED
        return _report("interrupted", "", status, events=events)


def _report(event: str, message: str, status: int, *, events: bool) -> int:
    """Print how the command ended, as an event or as a line of text, and return its exit status."""
    import json

    from ringfeed.sharding.messages import printable

    text = json.dumps({"event": event, "message": message, "status": status})
    print(text if events else f"ringfeed: {event}{message and ': '}{printable(message)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
