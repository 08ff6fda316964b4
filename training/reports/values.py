"""Entries of a run's history, as trackers take them.

Tested in tests/training/reports/test_trackers.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["GROUPS", "finite", "scalars"]

GROUPS = {"steps": "train", "evaluation": "evaluation"}
"""Where dashboards show the numbers of an entry, by its kind."""

_PLACES = ("step", "epoch")


def finite(value: Any) -> Any:
    """Return a value in JSON's types, with None for numbers that are not finite.

    >>> finite({"loss": math.nan, 3: (1, 2.5)})
    {'loss': None, '3': [1, 2.5]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def scalars(entry: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of an entry but step and epoch; those of groups with the group's name.

    >>> scalars({"step": 3, "loss": 0.5, "auc": None, "recall": {"late": 1.0}, "confusion": [[1, 2]]})
    {'loss': 0.5, 'recall/late': 1.0}
    """
    found: dict[str, float] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping):
            found |= scalars(value, f"{prefix}{name}/")
        elif isinstance(value, (int, float)) and name not in _PLACES:
            found[f"{prefix}{name}"] = float(value)
    return found
