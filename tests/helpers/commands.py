"""The commands under test: how to run them, and the form of their errors."""

import subprocess
from collections.abc import Callable

ROWS = 400


def assert_one_line(done: "subprocess.CompletedProcess[str]", *words: str) -> None:
    """The error is one line that holds the words; before it may stand lines of progress."""
    errors = [line for line in done.stderr.splitlines() if not line.startswith(("count labels:", "read records:"))]
    assert done.returncode == 1, done
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("shard-dataset: error: ")
    for word in words:
        assert word in errors[0]


Cli = Callable[..., "subprocess.CompletedProcess[str]"]
