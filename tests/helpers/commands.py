"""The commands under test: how to run them, and the form of their errors."""

import logging
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

import fsspec
import pytest

ROWS = 400
Cli = Callable[..., "subprocess.CompletedProcess[str]"]

_MODULES = {"ringfeed": "cli", "shard-dataset": "shard_dataset"}


def run_here(program: str, args: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command in this process and return its exit status, with `env` added to the environment."""
    forget_logging()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *args])
        for name, value in env.items():
            patch.setenv(name, value)
        if env:  # the key of fsspec's cache of clients is the options, not the environment
            fsspec.get_filesystem_class("s3").clear_instance_cache()
        try:
            main: Callable[[Sequence[str]], int] = import_module(f"ringfeed.tools.{_MODULES[program]}").main
            return main(args)
        except SystemExit as stop:  # from argparse
            return stop.code if isinstance(stop.code, int) else 0
        finally:
            if env:
                fsspec.get_filesystem_class("s3").clear_instance_cache()


def forget_logging() -> None:
    """Undo what commands have set up in this process, and drop handlers of closed streams.

    A logger that does not propagate has pytest's handler itself, and would log twice once a test lets it propagate; a
    closed stream would print a trace for each line that is logged.
    """
    ours = logging.getLogger("ringfeed")
    ours.handlers, ours.propagate = [], True
    ours.setLevel(logging.NOTSET)
    root = logging.getLogger()
    for handler in list(root.handlers):
        if getattr(getattr(handler, "stream", None), "closed", False):
            root.removeHandler(handler)


def assert_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """The error is one line that holds the words; before it may stand lines of progress."""
    errors = [line for line in done.stderr.splitlines() if not line.startswith(("count labels:", "read records:"))]
    assert done.returncode == 1, done
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("shard-dataset: error: ")
    for word in words:
        assert word in errors[0]
