"""DLIO, MLPerf Storage's benchmark, in a virtual environment of its own.

It borrows TensorFlow, PyTorch and ringfeed from those of this Python: with what DLIO asks for it would take gigabytes,
CUDA and DALI included, which it does not use here.
"""

import hashlib
import logging
import os
import shutil
import sys
import sysconfig
from pathlib import Path

from .cache import cache_directory, made_once, run
from .pytorch import pytorch_folder, pytorch_obstacle

PINS = Path(__file__).with_suffix(".txt")

logger = logging.getLogger(__name__)


def dlio_obstacle() -> str:
    """Return why DLIO is not installed here; empty if it is, or can be without gigabytes."""
    if sys.version_info[:2] != (3, 11):
        return "pydftracer 1.0.2, which DLIO imports, has a wheel for Python 3.11 alone"
    return pytorch_obstacle()


def has_dlio() -> bool:
    """Return whether the environment is there."""
    return (cache_directory() / _name()).is_dir() and not pytorch_obstacle()


def dlio_python() -> Path:
    """Return the Python of the environment, after making it if it is not there.

    Raises:
        ServerError: it cannot be made.
    """
    return made_once(_name(), _make) / "bin" / "python"


def dlio_environment() -> dict[str, str]:
    """Return the variables of a process that runs there: it borrows the packages of this Python, and PyTorch."""
    binaries = str(cache_directory() / _name() / "bin")
    quiet = {"DFTRACER_ENABLE": "0", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
    links = str(Path(sys.prefix) / "src")  # to the checkout, as `ringfeed`
    lent = os.pathsep.join([links, sysconfig.get_path("purelib"), str(pytorch_folder())])
    return {**os.environ, **quiet, "PYTHONPATH": lent, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}


def _name() -> str:
    key = hashlib.sha256("\n".join([PINS.read_text(), sys.base_prefix, sys.version]).encode()).hexdigest()[:12]
    return f"dlio-{key}"


def _make(scratch: Path) -> Path:
    logger.info("making an environment for DLIO (10 MB to download)")
    environment = scratch / "environment"
    run([sys.executable, "-m", "venv", str(environment)])
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--no-deps", "--no-cache-dir", "--requirement", str(PINS)])
    # DLIO calls it, a script of DALI, for each TFRecord file that it writes; only DALI reads what it makes.
    Path(environment, "bin", "tfrecord2idx").symlink_to(shutil.which("true") or "/bin/true")
    return environment
