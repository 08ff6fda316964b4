"""Write the loader's counters in the Prometheus text exposition format, version 0.0.4.

The caller serves the text: from a route of a server, or as a file for the textfile collector of node_exporter.

`prometheus_client` is only a test dependency: its parser checks this text. Writing the text with it would take a custom
collector and a registry, about as much code as here, and would print counts as floats.
Tested in tests/pipeline/metrics/test_stage_counters.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ringfeed.sharding.common.validation import mapping
from ringfeed.sharding.errors import ConfigError

from .stage_counters import StageStats

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
    ("cpu_seconds", "ringfeed_loader_cpu_seconds_total", "counter", "Seconds of work of a stage on a core."),
    ("wait_seconds", "ringfeed_loader_wait_seconds_total", "counter", "Seconds that a stage waited for another."),
    ("queue_depth", "ringfeed_loader_queue_depth", "gauge", "Items begun in a stage and not yet taken on."),
)


def prometheus_text(
    stats: Mapping[str, StageStats] | Mapping[str, Mapping[str, StageStats]], labels: Mapping[str, str] | None = None
) -> str:
    r"""Return the counters of all stages, one sample on each line.

    Args:
        stats: result of `Loader.stats`, or of `Mixture.stats`, whose samples have a label ``dataset`` in addition.
        labels: further labels for every sample, such as the rank.

    Raises:
        ConfigError: `stats` has the wrong type, or the name of a label is invalid or already used.

    >>> print(prometheus_text({"fetch": StageStats(items=3)}, {"rank": "0"}).splitlines()[2])
    ringfeed_loader_items_total{stage="fetch",rank="0"} 3
    """
    samples = list(_samples(mapping("stats", stats, "stage counters")))
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
    """Yield the labels and the totals of each stage."""
    for name, totals in stats.items():
        if isinstance(totals, StageStats):
            yield {"stage": name}, totals
        else:
            for stage, each in mapping(f"stats[{name!r}]", totals, "stage counters").items():
                if not isinstance(each, StageStats):
                    raise ConfigError(f"stats[{name!r}][{stage!r}] must be `StageStats`, got {each!r}")
                yield {"dataset": name, "stage": stage}, each


def _escaped(value: str) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
