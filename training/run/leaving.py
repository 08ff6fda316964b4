"""How a process that may be one of several ranks ends: with one line, printed once, and without waiting for the others.

Tested in tests/training/test_launch.py.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import time
import traceback

from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.messages import printable
from ringfeed.sharding.storage.temporary_folder import end_process
from ringfeed.sharding.url_secrets import without_secrets
from ringfeed.training.ring.launched import EndReport, report
from ringfeed.training.ring.tf_config import worker_world
from ringfeed.training.ring.world import world_from_environment

from .stopping import RESUMABLE, TERMINATED

_OTHER_RANK_FAILED = re.compile("Horovod|Collective ops is aborted")  # an error of a collective says so
_YIELD_SECONDS = 5.0  # horovodrun ended the other ranks within 0.1 s of the first exit; ranks share most errors


def _brief(error: Exception) -> str:
    """Return the text of an error that may be TensorFlow's, on one line, without secrets."""
    text = re.sub(r"\{\{.*?\}\}", "", without_secrets(str(error)))  # TensorFlow marks nodes of its graphs like that
    return " ".join(text.split())[:300]


def leave_after(error: Exception, program: str, *, as_json: bool, memory_remedy: str) -> int:
    """Report the error that ends a command, and return the status, as `leave` does.

    A trace is printed if the error is none of ringfeed's and has no known cause. `memory_remedy` is for want of memory.
    """
    end = functools.partial(leave, program, status=1, as_json=as_json)
    if isinstance(error, RingfeedError):
        return end(str(error))
    if _OTHER_RANK_FAILED.search(str(error)):
        return end("stopped because another rank failed", is_echo=True)
    if type(error).__name__ == "ResourceExhaustedError":  # TensorFlow's error, which may not be imported
        return end(f"out of memory: {memory_remedy}: {_brief(error)}")
    sys.stderr.write(without_secrets("".join(traceback.format_exception(error))))
    return end(f"{type(error).__name__}: {_brief(error)}")


def leave(
    program: str, message: str, status: int, *, as_json: bool, is_echo: bool = False, is_stall: bool = False
) -> int:
    """Print one line, which begins with the command, and return the status; one of several ranks ends its process.

    A failed rank must not wait in Horovod's shutdown for ranks that wait for it in a collective. An error that all
    ranks share is printed once: ranks above 0 wait for a moment, until the launcher ends them. See `EndReport`.
    """
    world = world_from_environment(os.environ) or worker_world(os.environ)
    is_stopped = status in (RESUMABLE, TERMINATED)  # on all ranks, after the same step
    if report(EndReport(message=message, status=status, is_echo=is_echo, is_stall=is_stall)):
        end_process(status)  # the launcher prints it
    if not (world and world.rank):
        print_ending(program, message, status, as_json=as_json)
    elif not is_stopped:  # else rank 0 reports it
        time.sleep(_YIELD_SECONDS)
        print_ending(program, f"rank {world.rank}: {message}", status, as_json=as_json)
    if world and world.size > 1:
        sys.stdout.flush()
        end_process(status)
    return status


def print_ending(program: str, message: str, status: int, *, as_json: bool) -> None:
    """Print how a command ended, as a line of text or as an event: by itself, by an error, or since it was told to."""
    kind = {0: "stopped", 1: "error"}.get(status, "interrupted")
    text = f"{program}: {'error: ' if kind == 'error' else ''}{printable(message)}"
    event = json.dumps({"event": kind, "message": message, "status": status})
    sys.stderr.write(f"{event if as_json else text}\n")
    sys.stderr.flush()
