"""Read by Python at its start where `PYTHONPATH` names this folder: see `tests.helpers.lean`."""

import sys
from typing import Any

_LEFT_OUT = {"IPython", "jax", "matplotlib", "pandas", "scipy", "sklearn"}


class _NotInstalled:
    """Of the finders of modules the first."""

    def find_spec(self, name: str, *where: Any) -> None:
        if name.partition(".")[0] in _LEFT_OUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if "ringfeed.tools.demo" not in sys.orig_argv:  # which draws scikit-learn's digits, and charts; what it starts does not
    sys.meta_path.insert(0, _NotInstalled())
