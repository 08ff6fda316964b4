"""Runs that methods of synchronisation are built for, without a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringfeed.training.config.config_file import parse_config
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.sync.synchronizer import SyncRun


def sync_run(ring: Ring | None = None, samples_before: Callable[[int], int] = int, **keys: Any) -> SyncRun:
    """A run of five steps an epoch on a ring, by default of one rank; a rank trains on a sample a step."""
    config = parse_config({"data": {"url": "x"}, **keys}, "test")
    return SyncRun(config=config, ring=ring or SoloRing(), steps_per_epoch=5, samples_before=samples_before)
