"""How close splits of whole groups of records come to the requested shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ringfeed.sharding.messages import one_line

from .balance_report import SplitBalance


def shares_json(splits: Sequence[SplitBalance], options: Mapping[str, Any], groups: Mapping[str, int]) -> Any:
    """Requested and reached shares for `--json`; None for a dataset built without `--group-by`.

    Args:
        splits: balance of the splits, planned or written.
        options: options of the build, as in the manifest.
        groups: number of groups by split; empty where it is unknown.
    """
    if "group_by" not in options:
        return None
    asked = {name: float(Fraction(share)) for name, share in options["splits"].items()}
    counts = np.stack([split.shard_class_counts.sum(axis=0, dtype=np.int64) for split in splits])  # [splits, classes]
    present = counts[:, counts.any(axis=0)]  # an append, or what a repair could save, may lack a class
    shares = present / present.sum(axis=0)
    wanted = np.array([asked[split.name] for split in splits])
    return {
        "column": options["group_by"],
        "splits": {
            split.name: {"asked": asked[split.name], "reached": round(float(share), 6)}
            | ({"groups": groups[split.name]} if groups else {})
            for split, share in zip(splits, counts.sum(axis=1) / counts.sum(), strict=True)
        },
        "furthest_class": round(float(np.abs(shares - wanted[:, None]).max()), 6),
    }


def shares_text(splits: Sequence[SplitBalance], options: Mapping[str, Any], groups: Mapping[str, int]) -> list[str]:
    """The shares for people: one line, or none."""
    found = shares_json(splits, options, groups)
    if found is None:
        return []
    words = [
        f"{name} {share['reached']:.2%} (asked {share['asked']:.2%}"
        + (f", {share['groups']:,} groups)" if "groups" in share else ")")
        for name, share in found["splits"].items()
    ]
    return [
        f"grouped by {one_line(found['column'])}: {', '.join(words)}; "
        f"each class within {100 * found['furthest_class']:.2f} percentage points of its share"
    ]
