"""A program for tests: runs commands in forks of a process that has imported TensorFlow once, and says how they ended.

The ranks of a launcher and the fork server of a build's workers are such forks too, children of their command.

Reads lines of JSON from standard input: the words of a command of `ringfeed` or `shard-dataset`, environment variables,
and optionally `die_at`, the number of the system call on a file or folder at which the command kills itself. Answers
with the process number, and when the process has ended, with its exit status, negative for a signal.
"""

import atexit
import json
import multiprocessing.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

CALLS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock")
_MODULES = (
    "training.run.trainer", "training.serving.predictions", "training.serving.trained", "training.ring.connect",
    "training.serving.saved_model", "training.launch", "tools.shard_dataset.commands",
    "sharding.building.build", "sharding.engines.fork_server",
)  # fmt: skip


class ForkedRank(subprocess.Popen[bytes]):
    """A process with all that `subprocess` gives it, which runs `python -m ringfeed.tools.cli` without an import."""

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        if arguments[1:3] == ["-m", "ringfeed.tools.cli"]:
            options["preexec_fn"] = partial(
                _become_rank, arguments[2:], options["env"], {0, 1, 2, *options["pass_fds"]}
            )
        super().__init__(arguments, **options)


def _close_all_but(files: Collection[int]) -> None:
    for file in sorted(set(map(int, os.listdir("/proc/self/fd"))) - set(files)):
        with suppress(OSError):  # it listed the folder
            os.close(file)


def _become_rank(words: Sequence[str], environ: Mapping[str, str], files: Collection[int]) -> None:
    """Run a command of `ringfeed` in this process, with these files alone, and end it."""
    status = 1
    try:
        _close_all_but(files)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does at its start
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(environ)
        random.seed()
        sys.argv = list(words)
        from ringfeed.tools import cli

        status = cli.main()
        threading._shutdown()  # type: ignore[attr-defined]  # it and the next are what Python's end does
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(status)


def _spawn(path: bytes, arguments: Sequence[Any], files: Collection[int]) -> int:
    """What `multiprocessing` starts processes by: a fork becomes the fork server."""
    if "forkserver" not in str(arguments[-1]):
        return _SPAWN(path, arguments, files)
    if pid := os.fork():
        return pid
    try:
        _close_all_but({0, 1, 2, *files})
        sys.meta_path = _FINDERS
        exec(arguments[-1], {})
    finally:
        os._exit(1)


_FINDERS, _SPAWN = sys.meta_path, multiprocessing.util.spawnv_passfds


def _die_at(number: int, mark: str) -> None:
    """Kill this process at a call on a path that contains a text, counted from 1."""
    calls, own = 0, os.getpid()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal calls
        if event in CALLS and arguments and mark in str(arguments[0]):
            calls += 1
            if calls == number and os.getpid() == own:
                os.kill(own, signal.SIGKILL)

    sys.addaudithook(watch)


def _run(order: dict[str, Any]) -> int:
    os.setsid()
    os.environ.update(order["environ"])
    sys.meta_path = [each for each in sys.meta_path if type(each).__module__ != "sitecustomize"]  # for plots
    tempfile.tempdir = None
    subprocess.Popen = ForkedRank  # type: ignore[misc]
    multiprocessing.util.spawnv_passfds = _spawn
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
    with suppress(ImportError):  # then tests of several ranks are skipped
        import_module("horovod.tensorflow")
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
