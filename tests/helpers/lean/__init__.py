"""Processes in which TensorFlow finds no more than `ringfeed[cpu]` installs, and is imported in half the time.

Because the tests' environment has them, it imports jax, scikit-learn, SciPy, pandas, Matplotlib and IPython else. Ranks
do not spin while they wait for each other, which takes up to half of the processor time of a small run.
"""

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["calm_ranks", "lean_environment"]

_FOLDER = Path(__file__).parent
# What other tests of this process may have set: JAX, for one, has TensorFlow write more.
_LEFT_BEHIND = ("HOROVOD_", "OMPI_", "PMI_", "TF_CPP", "TF_NUM_")


def lean_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for such a process: a user's, with these changes.

    Ranks wait for one that a busy machine holds up for longer than Horovod's 30 s.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_BEHIND)}
    folders = [str(_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(folders), "HOROVOD_GLOO_TIMEOUT_SECONDS": "240", **calm_ranks()}
    return environment | ours | dict(changes or {})


@functools.cache
def calm_ranks() -> dict[str, str]:
    """Variables by which ranks ask each other for work each 10 ms rather than each millisecond, and never spin.

    Where there is no compiler for ``calm.c`` they spin, as ranks need none.
    """
    source, library = _FOLDER / "calm.c", _FOLDER / "_calm.so"
    compiler = shutil.which("cc")
    if compiler and (not library.exists() or library.stat().st_mtime < source.stat().st_mtime):
        new = library.with_name(f"_calm-{os.getpid()}.so")
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(new), str(source), "-ldl"], check=True)
        new.replace(library)
    return {"HOROVOD_CYCLE_TIME": "10"} | ({"LD_PRELOAD": str(library)} if library.exists() else {})
