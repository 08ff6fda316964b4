"""A program for a test: runs commands in one process, and prints how each ended, with what it wrote and took.

Each line of standard input is a JSON list, the words of a command; each line of standard output is the outcome.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path


def peak_kib() -> int:
    """The most memory that was resident since `reset_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def run(words: list[str]) -> int | str:
    """Run a command; return its status, or the traceback that its user would see."""
    from ringfeed.tools import cli, shard_dataset

    try:
        main = shard_dataset.main if words[0] == "shard-dataset" else cli.main
        return main(words[1:])
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]


def main() -> None:
    """Run the commands of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)

    for line in sys.stdin:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        usual, start = peak_kib(), time.monotonic()
        with tempfile.TemporaryFile() as errors:
            os.dup2(errors.fileno(), 2)
            status = run(json.loads(line))
            sys.stderr.flush()
            os.dup2(null, 2)
            errors.seek(0)
            text = errors.read().decode(errors="replace")
        outcome = {"status": status, "stderr": text, "kib": peak_kib() - usual, "seconds": time.monotonic() - start}
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
