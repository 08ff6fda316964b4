"""Which variables an optimizer decays, and which get a trust ratio: patterns of paths, or their rank.

Tested in tests/training/optimizers/test_lars.py and tests/training/optimizers/test_references.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["is_adapted"]


def is_adapted(path: str, shape: Sequence[int], exclude: Sequence[str] | None) -> bool:
    """Whether a variable gets the trust ratio and weight decay.

    Args:
        path: the variable's path in the model, such as `dense/kernel`.
        shape: its shape.
        exclude: regular expressions searched in `path`; `None` is the default rule, which leaves out what has
            fewer than two dimensions: biases, and the scale and offset of normalisation layers.

    >>> is_adapted("dense/kernel", (3, 4), None), is_adapted("dense/bias", (4,), None)
    (True, False)
    >>> is_adapted("embedding/embeddings", (9, 4), ["embedding"]), is_adapted("dense/bias", (4,), [])
    (False, True)
    """
    if exclude is None:
        return len(shape) >= 2
    return not any(re.search(pattern, path) for pattern in exclude)
