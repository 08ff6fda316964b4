"""A program for tests: runs of `ringfeed train`, one after the other, in one process, which imports TensorFlow once.

Its arguments are the configuration and, for each run, a JSON list of overrides. Overrides that begin with `ALONE` are
of a run of rank 0 without the others.
"""

import json
import os
import sys

from ringfeed.tools.cli import main

__all__ = ["ALONE"]

ALONE = "alone"


def train_all(config: str, *runs: str) -> int:
    """Train by each of the overrides; return the highest of the exit statuses."""
    highest = 0
    for run in map(json.loads, runs):
        if run[:1] == [ALONE]:
            run = run[1:]
            is_first = os.environ.get("HOROVOD_RANK", "0") == "0"
            for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
                del os.environ[name]
            if not is_first:
                break
        status = main(["train", "--config", config, *(word for item in run for word in ("--set", item))])
        highest = max(highest, status)
    return highest


if __name__ == "__main__":
    sys.exit(train_all(*sys.argv[1:]))
