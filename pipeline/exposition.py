"""Counters of the loader as Prometheus scrapes them: the text exposition format, version 0.0.4.

Serving it is the caller's: as one more route of a server, or as a file for the textfile collector of node_exporter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..sharding.errors import ConfigError
from .counters import StageStats

__all__ = ["prometheus_text"]

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_METRICS = (
    ("items", "ringfeed_loader_items_total", "counter", "Shards (fetch, verify, open) or samples that passed a stage."),
    ("bytes", "ringfeed_loader_bytes_total", "counter", "Bytes that passed a stage."),
    ("busy_seconds", "ringfeed_loader_busy_seconds_total", "counter", "Seconds of work of a stage, over all threads."),
    ("wait_seconds", "ringfeed_loader_wait_seconds_total", "counter", "Seconds that a stage waited for another."),
    ("queue_depth", "ringfeed_loader_queue_depth", "gauge", "Items begun in a stage and not yet taken on."),
)


def prometheus_text(stats: Mapping[str, StageStats], labels: Mapping[str, str] | None = None) -> str:
    r"""The counters of all stages, one sample a line.

    Args:
        stats: of `Loader.stats`.
        labels: for every sample beside ``stage``, such as the rank.

    Raises:
        ConfigError: a label has a name that Prometheus does not take.

    >>> print(prometheus_text({"fetch": StageStats(items=3)}, {"rank": "0"}).splitlines()[2])
    ringfeed_loader_items_total{stage="fetch",rank="0"} 3
    """
    labels = labels or {}
    for name in labels:
        if not _LABEL.fullmatch(name) or name.startswith("__") or name == "stage":
            raise ConfigError(
                f"a label's name has letters, digits and _, no digit first, and is not 'stage'; got {name!r}"
            )
    lines = []
    for attribute, metric, kind, meaning in _METRICS:
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
        for stage, totals in stats.items():
            pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in {"stage": stage, **labels}.items())
            lines.append(f"{metric}{{{pairs}}} {getattr(totals, attribute)!r}")
    return "\n".join([*lines, ""])


def _escaped(value: str) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
