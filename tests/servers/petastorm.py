"""Petastorm in a virtual environment of its own: it does not run with a pyarrow that ringfeed runs with."""

import hashlib
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from .cache import made_once, run

PINS = Path(__file__).with_suffix(".txt")
TOO_NEW = (3, 13)
"""The first Python for which the pinned pyarrow has no wheel."""

END = "\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
"""Python would end in a race: a thread of pyarrow that still frees what it read takes the lock, and is aborted."""

logger = logging.getLogger(__name__)


def petastorm_obstacle() -> str:
    """Return why Petastorm cannot be installed for the Python that runs; empty if it can."""
    if sys.version_info < TOO_NEW:
        return ""
    pyarrow = next(pin for pin in PINS.read_text().splitlines() if pin.startswith("pyarrow=="))
    running = ".".join(map(str, sys.version_info[:2]))
    return f"Petastorm needs {pyarrow}, which has no wheel for Python {running}"


def petastorm_python() -> Path:
    """Return the Python of the environment that holds the pins, after making it if it is not there.

    Raises:
        ServerError: it cannot be made.
    """
    # It refers to the Python that it was made with: one for each.
    key = hashlib.sha256("\n".join([PINS.read_text(), sys.base_prefix, sys.version]).encode()).hexdigest()[:12]
    return made_once(f"petastorm-{key}", _make) / "bin" / "python"


def run_with_petastorm(script: str, *arguments: str, cwd: Path) -> str:
    """Return what a script prints in the environment; skip the test where there can be none."""
    if reason := petastorm_obstacle():
        pytest.skip(reason)
    # What it does is deprecated in that pyarrow: two dozen warnings hide what matters.
    command = [str(petastorm_python()), "-I", "-W", "ignore::FutureWarning", "-c", script + END, *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _make(scratch: Path) -> Path:
    logger.info("making an environment for Petastorm (70 MB to download)")
    environment = scratch / "environment"
    run([sys.executable, "-m", "venv", str(environment)])
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--requirement", str(PINS)])
    return environment
