"""What a rank that `ringfeed launch` started shares with it: a pipe for how it ended, and one that closes with it.

Imports nothing heavy.
Tested in tests/training/test_launch.py and tests/training/launching/test_supervisor.py.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ringfeed.sharding.storage.temporary_folder import end_process

REPORT = "RINGFEED_REPORT"  # environment variables with the numbers of pipes
SIBLINGS = "RINGFEED_LAUNCHER"
CHANNEL = "RINGFEED_ELASTIC"  # that of a socket, for the messages of an elastic run


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReport:
    message: str
    status: int
    is_echo: bool = False  # whether another rank's end is the cause
    is_stall: bool = False  # whether a rank has stalled, which the message names

    def encode(self) -> bytes:
        """Return it as it goes through a pipe."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, text: bytes) -> EndReport:
        """Read the first report of a pipe."""
        return cls(**json.loads(text.splitlines()[0]))


def report(ending: EndReport, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell the launcher how this rank ends; return False if there is none."""
    if REPORT not in environ:
        return False
    os.write(int(environ[REPORT]), ending.encode())
    return True


def is_launched(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the launcher prints how this rank ends."""
    return REPORT in environ


def end_with_launcher(environ: Mapping[str, str] = os.environ) -> None:
    """End this process when the launcher ends, however it does."""

    def wait() -> None:
        os.read(int(environ[SIBLINGS]), 1)  # until its end closes
        end_process(1)

    if SIBLINGS in environ:
        threading.Thread(target=wait, name="ringfeed-launcher", daemon=True).start()
