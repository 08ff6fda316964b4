"""PyTorch's CPU build and torchdata in a folder of their own: TensorFlow and `datasets` shall not find them."""

import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .cache import cache_directory, made_once, run

PINS = ("torch==2.13.0", "torchdata==0.11.0", "sympy==1.14.0", "mpmath==1.3.0")  # the last two for optimizers
PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")

logger = logging.getLogger(__name__)


def pytorch_folder() -> Path:
    """Return the folder to add to the path, after installing into it if it is not there.

    Raises:
        ServerError: it cannot be installed.
    """
    return made_once(_name(), _make)


def pytorch_obstacle() -> str:
    """Return why PyTorch is not installed here; empty if it is, or can be without CUDA, which takes gigabytes."""
    if (cache_directory() / _name()).is_dir():
        return ""
    asked = [*PIP, "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", PINS[0]]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        return f"pip finds no {PINS[0]}"
    version = json.loads(done.stdout)["install"][0]["metadata"]["version"]
    return "" if version.endswith("+cpu") else f"pip would install {PINS[0]} with CUDA, which takes gigabytes"


def run_with_pytorch(checks: Path, root: Path) -> None:
    """Run a file of tests in a process that has PyTorch; skip the test where the folder was not made by the set-up."""
    if not (cache_directory() / _name()).is_dir():
        pytest.skip(f"PyTorch is not installed: {pytorch_obstacle() or 'run python -m tests.servers.install'}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "120", str(checks)]
    environment = {**os.environ, "RINGFEED_TEST_TORCH": str(pytorch_folder())}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def _name() -> str:
    return f"torch-{hashlib.sha256(' '.join([*PINS, sys.version]).encode()).hexdigest()[:12]}"


def _make(scratch: Path) -> Path:
    logger.info("installing %s", PINS[0])
    run([*PIP, "--no-deps", "--no-compile", "--target", str(scratch / "torch"), *PINS])  # what they need is in `.venv`
    return scratch / "torch"
