"""What build, append and reshard print: the plan of a dry run, or the summary of what was written."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ringfeed.sharding import BuildOptions, BuildPlan, Dataset
from ringfeed.sharding.messages import counted, listed, one_line
from ringfeed.sharding.url_secrets import public_url
from ringfeed.tools.console import align, human_bytes, human_seconds

from .balance_report import (
    SplitBalance,
    balance_json,
    balance_of_dataset,
    balance_of_plan,
    balance_text,
    shares_json,
    shares_text,
)
from .inspection import FEATURE_HEADER, feature_cells, float64_as_bytes, skipped_json


def plan_json(options: BuildOptions, plan: BuildPlan) -> dict[str, Any]:
    """The plan of a dry run, for `--json`."""
    balance = balance_of_plan(plan)
    return {
        "dry_run": True,
        "generation": plan.assignment.generation,
        "destination": public_url(options.destination),
        "format": options.shard_format,
        "compression": options.codec,
        "features": plan.source.schema.to_json(),
        "estimated_record_bytes": round(plan.record_bytes, 1),
        "splits": balance_json(balance, plan.classes),
        "groups": shares_json(balance, options.recorded(), plan.groups),
        "skipped": {plan.names.rejected(plan.assignment.generation): len(plan.rejected)} if plan.rejected else {},
    } | ({"new_classes": _new_classes(plan)} if plan.base else {})


def plan_text(options: BuildOptions, plan: BuildPlan) -> str:
    """The plan of a dry run, for people."""
    schema, balance = plan.source.schema, balance_of_plan(plan)
    codec = "" if options.codec == "none" else f" ({options.codec})"
    lines = [
        *align(FEATURE_HEADER, [feature_cells(feature, schema.label) for feature in schema.features], left=4),
        "",
        *balance_text(balance, plan.classes, estimated=True),
        *shares_text(balance, options.recorded(), plan.groups),
        *_rejected_text(plan),
        *_new_classes_text(_new_classes(plan)),
        f"would {'append' if plan.base else 'write'} {options.shard_format}{codec} to "
        f"{public_url(options.destination)}; nothing was written (--dry-run)",
    ]
    return "\n".join(lines)


def _new_classes(plan: BuildPlan) -> list[Any]:
    return list(plan.classes[len(plan.base.classes) :]) if plan.base else []


def _rejected_text(plan: BuildPlan) -> list[str]:
    if not plan.rejected:
        return []
    first = one_line(replace(plan.rejected[0], remedy="")).removesuffix("; ").removesuffix(";")
    return [f"would skip {counted(len(plan.rejected), 'bad record')}; the first is {first}"]


def _new_classes_text(classes: Sequence[Any]) -> list[str]:
    """One line that names the classes that an append adds; no line if there are none."""
    names = listed([one_line(value) or "''" for value in classes])
    return [f"{counted(len(classes), 'class/classes', 'is/are')} new to the dataset: {names}"] if classes else []


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The newest generation of a dataset.

    Attributes:
        generation: its number; 0 is the build.
        balance: its shards, by split.
        skipped: bad records by the file that lists them.
        new_classes: classes that earlier generations do not have; empty for the build.
    """

    generation: int
    balance: list[SplitBalance]
    skipped: dict[str, int | None]
    new_classes: list[Any]

    @property
    def records(self) -> int:
        return int(sum(split.shard_records.sum() for split in self.balance))

    @property
    def bytes(self) -> int:
        return int(sum(split.shard_bytes.sum() for split in self.balance))

    @property
    def shards(self) -> int:
        return sum(len(split.shard_records) for split in self.balance)


def _newest_generation(dataset: Dataset) -> _Written:
    manifest = dataset.manifest
    last = len(manifest.all_generations) - 1
    return _Written(
        generation=last,
        balance=balance_of_dataset(dataset, last),
        skipped=skipped_json(dataset, last),
        new_classes=list(manifest.classes[manifest.all_generations[last - 1].classes :]) if last else [],
    )


def summary_json(dataset: Dataset, seconds: float) -> dict[str, Any]:
    """What a build or append that took so many seconds has written, for `--json`."""
    manifest, written = dataset.manifest, _newest_generation(dataset)
    appended = {
        "generation": written.generation,
        "total_records": manifest.records,
        "new_classes": written.new_classes,
    }
    return {
        "destination": dataset.storage.locate(),
        "format": manifest.shard_format,
        "compression": manifest.compression,
        "records": written.records,
        "bytes": written.bytes,
        "seconds": round(seconds, 3),
        "records_per_second": round(written.records / seconds, 1),
        "splits": balance_json(written.balance, manifest.classes),
        "groups": shares_json(written.balance, manifest.options, {}),
        "skipped": written.skipped,
        "float64_as_bytes": float64_as_bytes(manifest),
    } | (appended if written.generation else {})


def _float64_text(dataset: Dataset) -> list[str]:
    """One line on the columns that tutorials can't parse; no line if there are none."""
    names = float64_as_bytes(dataset.manifest)
    if not names:
        return []
    where = shlex.quote(dataset.storage.locate())
    return [
        f"columns of float64 are raw bytes, since tf.train.Example holds only float32: "
        f"{listed([one_line(name) for name in names])}; shard-dataset inspect {where} prints code that decodes them, "
        "and --float32 stores float32 instead"
    ]


def summary_text(dataset: Dataset, seconds: float) -> str:
    """The same, for people."""
    manifest, written = dataset.manifest, _newest_generation(dataset)
    lines = [
        *balance_text(written.balance, manifest.classes),
        *shares_text(written.balance, manifest.options, {}),
        f"{'appended' if written.generation else 'wrote'} {counted(written.records, 'record')}, "
        f"{human_bytes(written.bytes)} in {counted(written.shards, 'shard')} of {manifest.shard_format}, to "
        f"{dataset.storage.locate()} in {human_seconds(seconds)} ({written.records / seconds:,.0f} records/s, "
        f"{human_bytes(written.bytes / seconds)}/s)",
        *(
            f"skipped {counted(number or 0, 'bad record')}, listed in {dataset.storage.locate(path)}"
            for path, number in written.skipped.items()
        ),
        *_new_classes_text(written.new_classes),
        *([] if written.generation else _float64_text(dataset)),
    ]
    if written.generation:
        total = f"{counted(manifest.records, 'record')} in {counted(len(dataset.shards), 'shard')}"
        lines.append(f"it holds {total} now; generation {written.generation}")
    return "\n".join(lines)
