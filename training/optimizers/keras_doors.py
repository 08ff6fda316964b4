"""What ringfeed replaces inside Keras, where Keras has no public way; a Keras that lacks it is refused by name.

Tested in tests/training/optimizers/test_keras_doors.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from ringfeed.sharding.errors import TrainingError

__all__ = ["DOORS", "replace_method", "require_method"]

DOORS = {
    "_backend_update_step": "updates small variables together, and those of one replica alone",
    "_apply_weight_decay": "decays the variables of one replica alone",
    "_moments": "normalises batches over the samples of all ranks",
}
"""The methods, each with what ringfeed does in its place."""


def require_method(owner: Any, name: str) -> Callable[..., Any]:
    """Return a method of `DOORS`.

    Raises:
        TrainingError: this version of Keras has no such method.
    """
    method = getattr(owner, name, None)
    if not callable(method):
        kind = owner.__name__ if isinstance(owner, type) else type(owner).__name__
        raise TrainingError(
            f"keras {keras.__version__} has no {kind}.{name}, in whose place ringfeed {DOORS[name]}: install "
            "an earlier keras"
        )
    found: Callable[..., Any] = method
    return found


def replace_method(owner: Any, name: str, method: Callable[..., Any]) -> None:
    """Replace a method of `DOORS` of one object.

    Raises:
        TrainingError: this version of Keras has no such method, so that the new one would never be called.
    """
    require_method(owner, name)
    setattr(owner, name, method)
