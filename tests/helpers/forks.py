"""A program for tests: runs commands in forks of a process that has imported TensorFlow once, and says how they ended.

Reads lines of JSON from standard input: the words of a command of `ringfeed` or `shard-dataset`, environment variables,
and optionally `die_at`, the number of the system call on a file or folder at which the command kills itself. Answers
with the process number, and when the process has ended, with its exit status, negative for a signal.
"""

import json
import os
import signal
import sys
import tempfile
from importlib import import_module
from typing import Any

CALLS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock")
_MODULES = (
    "training.run.trainer", "training.serving.predictions", "training.serving.trained", "training.ring.connect",
    "training.serving.saved_model", "tools.shard_dataset.commands",
)  # fmt: skip


def _die_at(number: int, mark: str) -> None:
    """Kill this process at a call on a path that contains a text, counted from 1."""
    calls = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event in CALLS and arguments and mark in str(arguments[0]):
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def _run(order: dict[str, Any]) -> int:
    os.setsid()
    os.environ.update(order["environ"])
    sys.meta_path = [each for each in sys.meta_path if type(each).__module__ != "sitecustomize"]  # for plots
    tempfile.tempdir = None
    with open(order["log"], "ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    if "die_at" in order:
        _die_at(order["die_at"], order["mark"])
    from ringfeed.tools import cli
    from ringfeed.tools.shard_dataset import program

    name, *words = order["words"]
    if name == "shard-dataset":
        sys.argv = [name, *words]
        program.run()
    return cli.main(words)


def _serve() -> None:
    for name in _MODULES:
        import_module(f"ringfeed.{name}")
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                status = _run(json.loads(line))
            finally:
                os._exit(status)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
