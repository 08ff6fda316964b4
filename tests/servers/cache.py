"""What the tests need and `.venv` does not hold: kept once per machine, in a folder outside the tree."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .process import ServerError


def cache_directory() -> Path:
    """Return the folder for downloads: $RINGFEED_CACHE, $XDG_CACHE_HOME/ringfeed or ~/.cache/ringfeed."""
    if named := os.environ.get("RINGFEED_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringfeed"


def made_once(name: str, make: Callable[[Path], Path]) -> Path:
    """Return the folder ``name`` of the cache; if absent, ``make`` makes it in a scratch folder and returns it.

    The folder appears whole or not at all; of several installers at once one wins, the others use its result.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=target.parent) as scratch:
        made = make(Path(scratch))
        try:
            made.replace(target)
        except OSError:  # a folder that is not empty is not replaced: another installer was first
            if not target.is_dir():
                raise
    return target


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Run a command to its end.

    Raises:
        ServerError: it failed; the message shows the end of what it said.
    """
    pipe, joined = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, env=environment, stdout=pipe, stderr=joined, text=True)
    if done.returncode != 0:
        raise ServerError(f"{' '.join(command)} ended with status {done.returncode}: {done.stdout[-2000:]}")
