"""A program of three ranks of Horovod: the checks of `checks`, one after the other.

Rank 0 prints a JSON object for each: its name and result. A rank that fails prints name and traceback, and ends all.
Its arguments: the dataset of flights, an empty folder, and the names of the checks.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import tensorflow as tf

from ringfeed.training.ring.connect import connect
from tests.training.sync.compression.checks import CHECKS, Place


def main(url: str, folder: str, *names: str) -> None:
    """Run the checks."""
    tf.config.experimental.enable_op_determinism()
    ring = connect()
    place = Place(url=url, folder=folder, has_sleeps=True)
    for name in names:
        try:
            result = CHECKS[name](ring, place)
            ring.barrier()  # so that a failure of another rank is not taken for one of the next check
        except BaseException:
            _print(name, error=f"rank {ring.rank}: {traceback.format_exc()}")
            os._exit(1)  # the others would wait for it
        if ring.rank == 0:
            _print(name, result=result)


def _print(name: str, **found: object) -> None:
    sys.stdout.write(json.dumps({"name": name, **found}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
