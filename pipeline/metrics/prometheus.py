"""Counters of the loader as Prometheus scrapes them: the text exposition format, version 0.0.4.

Serving it is the caller's: as one more route of a server, or as a file for the textfile collector of node_exporter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...sharding.common.validation import mapping
from ...sharding.errors import ConfigError
from .stage_counters import StageStats

__all__ = ["prometheus_text"]

_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_METRICS = (
    (
        "items",
        "ringfeed_loader_items_total",
        "counter",
        "Files (shards and indexes), shards (open, quarantine) or samples (plan, gather, deliver) that passed a stage.",
    ),
    ("bytes", "ringfeed_loader_bytes_total", "counter", "Bytes that passed a stage."),
    ("busy_seconds", "ringfeed_loader_busy_seconds_total", "counter", "Seconds of work of a stage, over all threads."),
    ("wait_seconds", "ringfeed_loader_wait_seconds_total", "counter", "Seconds that a stage waited for another."),
    ("queue_depth", "ringfeed_loader_queue_depth", "gauge", "Items begun in a stage and not yet taken on."),
)


def prometheus_text(
    stats: Mapping[str, StageStats] | Mapping[str, Mapping[str, StageStats]], labels: Mapping[str, str] | None = None
) -> str:
    r"""The counters of all stages, one sample a line.

    Args:
        stats: of `Loader.stats`, or of `Mixture.stats`, whose samples have a label ``dataset``, too.
        labels: for every sample beside these and ``stage``, such as the rank.

    Raises:
        ConfigError: `stats` is something else, or a label has a name that Prometheus does not take, or one that is
            taken.

    >>> print(prometheus_text({"fetch": StageStats(items=3)}, {"rank": "0"}).splitlines()[2])
    ringfeed_loader_items_total{stage="fetch",rank="0"} 3
    """
    samples = list(_samples(mapping("stats", stats, "what `stats` told")))
    taken = {"stage"}.union(*(own for own, _ in samples))
    added: Mapping[Any, str] = {} if labels is None else mapping("labels", labels, "values by name")
    for name in added:
        if not isinstance(name, str) or not _LABEL.fullmatch(name) or name.startswith("__") or name in taken:
            raise ConfigError(
                "a label's name has letters, digits and _, no digit first, and is not "
                f"{' or '.join(map(repr, sorted(taken)))}; got {name!r}"
            )
    lines = []
    for attribute, metric, kind, meaning in _METRICS:
        lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
        for own, totals in samples:
            pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in {**own, **added}.items())
            lines.append(f"{metric}{{{pairs}}} {getattr(totals, attribute)!r}")
    return "\n".join([*lines, ""])


def _samples(
    stats: Mapping[str, StageStats] | Mapping[str, Mapping[str, StageStats]],
) -> Iterator[tuple[dict[str, str], StageStats]]:
    """The totals of each stage, with the labels that tell them from others."""
    for name, totals in stats.items():
        if isinstance(totals, StageStats):
            yield {"stage": name}, totals
        else:
            for stage, each in mapping(f"stats[{name!r}]", totals, "what `stats` told").items():
                if not isinstance(each, StageStats):
                    raise ConfigError(f"stats[{name!r}][{stage!r}] must be what `stats` told, got {each!r}")
                yield {"dataset": name, "stage": stage}, each


def _escaped(value: str) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
