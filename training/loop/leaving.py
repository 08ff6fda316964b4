"""How a process that may be one of several ranks ends: with one line, printed once, and without waiting for the others.

Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

from ...sharding.url_secrets import without_secrets
from ..ring.launched import Report, report
from ..ring.workers import worker_world
from ..ring.world import world_from_environment
from .stopping import RESUMABLE, TERMINATED

__all__ = ["INTERRUPTED", "OTHER_RANK_FAILED", "brief_error", "leave"]

INTERRUPTED = 130  # exit status
OTHER_RANK_FAILED = re.compile("Horovod|Collective ops is aborted")  # in an error of a collective
_YIELD_SECONDS = 5.0  # horovodrun ended the other ranks within 0.1 s of the first exit; ranks share most errors


def brief_error(error: Exception) -> str:
    """Return the text of an error that may be TensorFlow's, on one line, without secrets."""
    text = re.sub(r"\{\{.*?\}\}", "", without_secrets(str(error)))  # TensorFlow marks nodes of its graphs like that
    return " ".join(text.split())[:300]


def leave(
    program: str, message: str, status: int, *, as_json: bool, is_echo: bool = False, is_stall: bool = False
) -> int:
    """Print one line and return the status; one of several ranks ends its process at once.

    A failed rank must not wait in Horovod's shutdown for ranks that wait for it in a collective. An error that all
    ranks share is printed once: ranks above 0 wait for a moment, in which the launcher ends them.

    Args:
        program: the command, which begins the line.
        message: the line.
        status: exit status.
        as_json: whether to print an event for machines instead.
        is_echo, is_stall: as of `Report`.
    """
    world = world_from_environment(os.environ) or worker_world(os.environ)
    is_stopped = status in (RESUMABLE, TERMINATED)  # on all ranks, after the same step
    if report(Report(message=message, status=status, is_echo=is_echo, is_stall=is_stall)):
        os._exit(status)  # the launcher prints it
    if world and world.rank and not is_stopped:
        time.sleep(_YIELD_SECONDS)
    where = f"rank {world.rank}: " if world and world.rank else ""
    is_ended = is_stopped or status == INTERRUPTED
    if is_stopped and where:
        pass  # rank 0 reports it
    elif as_json:
        event = "interrupted" if is_ended else "error"
        sys.stderr.write(json.dumps({"event": event, "message": f"{where}{message}", "status": status}) + "\n")
    else:
        sys.stderr.write(f"{program}: {'' if is_ended else 'error: '}{where}{message}\n")
    sys.stderr.flush()
    if world and world.size > 1:
        sys.stdout.flush()
        os._exit(status)
    return status
