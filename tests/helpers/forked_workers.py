"""A plugin of pytest whose xdist workers are forks: the process that starts them imports all test files, once for all.

Each worker would import TensorFlow and rewrite the assertions of 350 files else, on two cores at once.
"""

import atexit
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.pathlib import import_path
from _pytest.warnings import catch_warnings_for_item

from ringfeed.sharding.common.stderr_filter import drop_stderr_lines


def _test_files(config: pytest.Config) -> Iterator[Path]:
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def _import_tests(config: pytest.Config) -> None:
    """Import what the workers are to collect; a file that fails is left to them, who say what is wrong with it."""
    from tensorflow.python.eager import context

    with catch_warnings_for_item(config, config.hook, "collect", None, record=False):  # as while tests are collected
        for path in _test_files(config):
            modules = set(sys.modules)
            try:
                import_path(path, mode="importlib", root=config.rootpath, consider_namespace_packages=True)
            except BaseException:  # a module may skip itself
                for name in set(sys.modules) - modules:
                    if name.startswith("tests."):
                        del sys.modules[name]
            if context.context()._context_handle is not None:
                raise pytest.UsageError(
                    f"{path} runs TensorFlow when it is imported: its threads do not outlive a fork"
                )


def _become_worker(program: str) -> None:
    """Run a program in this fork, with its standard streams and no other file, and end it."""
    status = 1
    try:
        os.closerange(3, 1 << 16)
        signal.set_wakeup_fd(-1)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        sys.argv = ["-c"]
        exec(program, {"__name__": "__main__"})
        threading._shutdown()  # type: ignore[attr-defined]  # it and the next are what Python's end does
        atexit._run_exitfuncs()
        status = 0
    finally:
        os._exit(status)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Let `execnet` fork where it would start Python."""
    from execnet import gateway_io
    from execnet.gateway_base import Popen2IO

    class ForkedIO(gateway_io.Popen2IOMaster):  # type: ignore[misc]
        def __init__(self, arguments: Sequence[str], execmodel: Any) -> None:
            self.popen = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=lambda: _become_worker(arguments[-1]),
                restore_signals=False,  # Python ignores SIGPIPE, as this process does
            )
            Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    with drop_stderr_lines(re.compile(b"")):  # what TensorFlow says as it starts
        _import_tests(config)
    gateway_io.Popen2IOMaster = ForkedIO
