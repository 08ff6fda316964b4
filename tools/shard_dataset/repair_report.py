"""Reports of lost records and of what a repair did or would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringfeed.sharding import Manifest, RepairReport
from ringfeed.sharding.messages import counted, one_line

_CLASSES_SHOWN = 6


def lost_json(manifest: Manifest) -> list[dict[str, Any]]:
    """The records that repairs left out of a dataset, for `--json`; empty if it is whole."""
    return [
        {
            "split": entry.split,
            "path": entry.path,
            "records": entry.records,
            "classes": _by_value(dict(zip(manifest.classes, entry.class_counts, strict=True))),
        }
        for entry in manifest.lost
    ]


def lost_lines(manifest: Manifest) -> list[str]:
    """The lost records for people; no line if the dataset is whole."""
    if not manifest.lost:
        return []
    totals: dict[str, dict[Any, int]] = {}
    for entry in manifest.lost:
        counts = totals.setdefault(entry.split, dict.fromkeys(manifest.classes, 0))
        for value, count in zip(manifest.classes, entry.class_counts, strict=True):
            counts[value] += count
    head = f"  lost     records that were damaged; the statistics below still count them (shards: {len(manifest.lost)})"
    return [head, *(f"           {line}" for line in _lost_text(totals))]


def repair_json(done: RepairReport, dry_run: bool) -> dict[str, Any]:
    """What a repair did, or would do, for `--json`."""
    return {
        "dry_run": dry_run,
        "damaged": sorted({damage.path for damage in done.damages}),
        "remedies": [{"path": r.path, "action": r.action, "how": r.how} for r in done.remedies],
        "lost_records": sum(entry.records for entry in done.lost),
        "lost_by_class": {split: _by_value(counts) for split, counts in done.lost_by_class.items()},
    }


def repair_text(done: RepairReport, dry_run: bool) -> str:
    """The same, for people."""
    if not done.damages and not done.remedies:
        return "nothing is damaged; nothing was written"
    lines = [f"{remedy.path}: {remedy.action}: {one_line(remedy.how)}" for remedy in done.remedies]
    lost = sum(entry.records for entry in done.lost)
    damaged = len({damage.path for damage in done.damages})
    if lost:
        lines += [f"lost: {line}" for line in _lost_text(done.lost_by_class)]
    number = counted(lost, "record") if lost else "no record"
    outcome = f"{number} {'would be' if dry_run else 'are' if lost > 1 else 'is'} lost"
    if dry_run:
        flags = " ".join(f"--source {one_line(url)}" for url in done.sources)
        still = "it is" if len(done.sources) == 1 else "they are"
        outcome += f", and none with {flags} if {still} still there" if lost else ""
        damage = counted(damaged, "file", "is/are")
        return "\n".join([*lines, f"{damage} damaged; {outcome}; nothing was written (--dry-run)"])
    left = sum(remedy.action == "leave" for remedy in done.remedies)
    outcome += f"; {counted(left, 'file', 'is/are')} left for another source" if left else ""
    return "\n".join([*lines, f"repaired {counted(damaged - left, 'damaged file')}; {outcome}"])


def _by_value(counts: Mapping[Any, int]) -> list[dict[str, Any]]:
    return [{"class": value, "records": count} for value, count in counts.items() if count]


def _lost_text(by_split: Mapping[str, Mapping[Any, int]]) -> list[str]:
    lines = []
    for split, counts in by_split.items():
        some: Sequence[tuple[Any, int]] = sorted((kv for kv in counts.items() if kv[1]), key=lambda kv: -kv[1])
        named = ", ".join(f"{one_line(value)} {count:,}" for value, count in some[:_CLASSES_SHOWN])
        rest = len(some) - _CLASSES_SHOWN
        more = f", and {counted(rest, 'more class/more classes')}" if rest > 0 else ""
        lines.append(f"{split}: {counted(sum(counts.values()), 'record')} ({named}{more})")
    return lines
