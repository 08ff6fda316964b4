"""Processes in which TensorFlow finds no more than `ringfeed[cpu]` installs, and is imported in half the time.

Because the tests' environment has them, it imports jax, scikit-learn, SciPy, pandas, Matplotlib and IPython else.
"""

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["lean_environment"]


# What other tests of this process may have set: JAX, for one, has TensorFlow write more.
_LEFT_BEHIND = ("HOROVOD_", "OMPI_", "PMI_", "TF_CPP", "TF_NUM_")


def lean_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for such a process: a user's, with these changes.

    Ranks wait for one that a busy machine holds up for longer than Horovod's 30 s.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_BEHIND)}
    folders = [str(Path(__file__).parent), *filter(None, [environment.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(folders), "HOROVOD_GLOO_TIMEOUT_SECONDS": "240"}
    return environment | ours | dict(changes or {})
