"""The balance of a dataset, planned or written: by split and class, the least and most of any shard; and how close
splits of whole groups of records come to the requested shares.

Tested in tests/tools/shard_dataset/test_balance_report.py and tests/tools/shard_dataset/test_inspection.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.sharding import BuildPlan, Dataset
from ringfeed.sharding.compute.class_counts import count_matrix
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.messages import one_line
from ringfeed.tools.console import align, human_bytes

Int64 = npt.NDArray[np.int64]
_CLASSES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBalance:
    """The balance of one split.

    Attributes:
        name: name of the split.
        shard_records: records of each shard, int64 [shards].
        shard_bytes: size of each shard's data file, int64 [shards]; an estimate for planned shards.
        shard_class_counts: records of each class in each shard, [shards, classes].
        shard_generations: generation of each shard; None: all have the same.
    """

    name: str
    shard_records: Int64
    shard_bytes: Int64
    shard_class_counts: npt.NDArray[np.unsignedinteger]
    shard_generations: tuple[int, ...] | None = None

    @property
    def generations(self) -> list[npt.NDArray[np.bool_]]:
        """Masks of each generation's shards, bool [shards]: shards of one generation are balanced with each other."""
        if self.shard_generations is None:
            return [np.ones(len(self.shard_records), np.bool_)]
        of_shard = np.array(self.shard_generations)
        return [of_shard == generation for generation in np.unique(of_shard)]

    @property
    def largest_difference(self) -> tuple[int, int]:
        """Largest difference between two shards of a generation: in records, and in records of any class."""
        return (
            max(int(np.ptp(self.shard_records[members])) for members in self.generations),
            max(int(np.ptp(self.shard_class_counts[members], axis=0).max()) for members in self.generations),
        )

    @property
    def largest_byte_share(self) -> float:
        """Largest difference in bytes between two shards of a generation, as a share of the smaller one."""
        return max(
            float(np.ptp(self.shard_bytes[members]) / self.shard_bytes[members].min()) for members in self.generations
        )


def balance_of_dataset(dataset: Dataset, generation: int | None = None) -> list[SplitBalance]:
    """Return the balance of each split, from the manifest, whose counts are those of the written records.

    Args:
        dataset: the dataset.
        generation: the only generation to include, without splits that it has no shards in; None: all.
    """
    result = []
    for name in dataset.manifest.splits:
        shards = [s for s in dataset.split_shards(name) if generation in (None, generation_of(s.path))]
        if not shards:
            continue
        result.append(
            SplitBalance(
                name=name,
                shard_records=np.array([shard.records for shard in shards], np.int64),
                shard_bytes=np.array([shard.bytes for shard in shards], np.int64),
                shard_class_counts=count_matrix([shard.class_counts for shard in shards]),
                shard_generations=tuple(generation_of(shard.path) for shard in shards),
            )
        )
    return result


def balance_of_plan(plan: BuildPlan) -> list[SplitBalance]:
    """Return the planned balance of each split, with estimated sizes."""
    result = []
    first = 0
    for split in plan.assignment.splits:
        records = split.all_shard_records()
        weights = records if plan.dealt is None else plan.dealt.shard_bytes[first : first + split.shards]
        first += split.shards
        result.append(
            SplitBalance(
                name=split.name,
                shard_records=records,
                shard_bytes=np.rint(weights * (split.records * plan.record_bytes / weights.sum())).astype(np.int64),
                shard_class_counts=split.all_shard_class_counts(),
            )
        )
    return result


def balance_json(splits: Sequence[SplitBalance], classes: Sequence[Any]) -> dict[str, Any]:
    """The balance for `--json`: by split, totals and [least, most] of any shard; classes are produced one by one."""
    return {
        split.name: {
            "records": int(split.shard_records.sum()),
            "shards": len(split.shard_records),
            "bytes": int(split.shard_bytes.sum()),
            "records_per_shard": _range(split.shard_records),
            "bytes_per_shard": _range(split.shard_bytes),
            "classes": _classes_json(split, classes),
        }
        for split in splits
    }


def _classes_json(split: SplitBalance, classes: Sequence[Any]) -> Iterator[dict[str, Any]]:
    counts = split.shard_class_counts
    totals, least, most = counts.sum(axis=0, dtype=np.int64), counts.min(axis=0), counts.max(axis=0)
    for value, total, low, high in zip(classes, totals, least, most, strict=True):
        yield {"class": value, "records": int(total), "per_shard": [int(low), int(high)]}


def balance_text(splits: Sequence[SplitBalance], classes: Sequence[Any], *, estimated: bool = False) -> list[str]:
    """The balance for people: a table of the splits and one of the classes."""
    return [
        *_split_table(splits, estimated),
        *([] if list(classes) == [None] else _class_table(splits, classes, estimated)),
    ]


def _split_table(splits: Sequence[SplitBalance], estimated: bool) -> list[str]:
    about = "~" if estimated else ""
    rows = [
        [
            split.name,
            f"{split.shard_records.sum():,}",
            f"{len(split.shard_records):,}",
            _span(split.shard_records),
            about + human_bytes(int(split.shard_bytes.sum())),
            about + human_bytes(float(split.shard_bytes.mean())),
        ]
        for split in splits
    ]
    return align(["split", "records", "shards", "records/shard", "bytes", "bytes/shard"], rows)


def _class_table(splits: Sequence[SplitBalance], classes: Sequence[Any], estimated: bool) -> list[str]:
    """A table of the most and least frequent classes, and the largest difference between two shards."""
    header = ["class", "share", *(word for split in splits for word in (split.name, f"{split.name}/shard"))]
    counts = np.stack([split.shard_class_counts.sum(axis=0, dtype=np.int64) for split in splits])  # [splits, classes]
    shares = counts.sum(axis=0) / counts.sum()
    order = np.argsort(-shares, kind="stable")
    half = _CLASSES_SHOWN // 2
    shown = order if len(order) <= _CLASSES_SHOWN else [*order[:half], *order[-half:]]
    rows = [
        [
            one_line(classes[i]) or "''",
            f"{shares[i]:.2%}",
            *(
                cell
                for split, total in zip(splits, counts[:, i], strict=True)
                for cell in (f"{total:,}", _span(split.shard_class_counts[:, i]))
            ),
        ]
        for i in shown
    ]
    lines = ["", *align(header, rows)]
    if len(order) > _CLASSES_SHOWN:
        lines.append(f"... the {half} largest and smallest of {len(order):,} classes")
    uneven, spread = (max(numbers) for numbers in zip(*(split.largest_difference for split in splits), strict=True))
    where = "a split and generation" if any(len(split.generations) > 1 for split in splits) else "a split"
    bytes_apart = max(split.largest_byte_share for split in splits)
    sizes = "" if estimated else f", {bytes_apart:.2%} in bytes"
    lines.append(f"largest difference between two shards of {where}: {uneven} in records, {spread} in any class{sizes}")
    return lines


def _range(values: npt.NDArray[np.integer]) -> list[int]:
    return [int(values.min()), int(values.max())]


def _span(values: npt.NDArray[np.integer]) -> str:
    low, high = _range(values)
    return f"{low:,}" if low == high else f"{low:,}..{high:,}"


def shares_json(splits: Sequence[SplitBalance], options: Mapping[str, Any], groups: Mapping[str, int]) -> Any:
    """Requested and reached shares for `--json`; None for a dataset built without `--group-by`.

    Args:
        splits: balance of the splits, planned or written.
        options: options of the build, as in the manifest.
        groups: number of groups by split; empty where it is unknown.
    """
    if "group_by" not in options:
        return None
    requested = {name: float(Fraction(share)) for name, share in options["splits"].items()}
    counts = np.stack([split.shard_class_counts.sum(axis=0, dtype=np.int64) for split in splits])  # [splits, classes]
    present = counts[:, counts.any(axis=0)]  # an append, or what a repair could save, may lack a class
    shares = present / present.sum(axis=0)
    targets = np.array([requested[split.name] for split in splits])
    return {
        "column": options["group_by"],
        "splits": {
            split.name: {"asked": requested[split.name], "reached": round(float(share), 6)}
            | ({"groups": groups[split.name]} if groups else {})
            for split, share in zip(splits, counts.sum(axis=1) / counts.sum(), strict=True)
        },
        "furthest_class": round(float(np.abs(shares - targets[:, None]).max()), 6),
    }


def shares_text(splits: Sequence[SplitBalance], options: Mapping[str, Any], groups: Mapping[str, int]) -> list[str]:
    """The shares for people: one line, or none."""
    shares = shares_json(splits, options, groups)
    if shares is None:
        return []
    words = [
        f"{name} {share['reached']:.2%} (asked {share['asked']:.2%}"
        + (f", {share['groups']:,} groups)" if "groups" in share else ")")
        for name, share in shares["splits"].items()
    ]
    return [
        f"grouped by {one_line(shares['column'])}: {', '.join(words)}; "
        f"each class within {100 * shares['furthest_class']:.2f} percentage points of its share"
    ]
