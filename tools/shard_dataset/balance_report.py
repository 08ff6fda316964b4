"""How balanced a dataset is, planned or written: per split and class, the least and most of any shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...sharding import BuildPlan, Dataset
from ...sharding.compute.class_counts import count_matrix
from ...sharding.dataset.file_names import generation_of
from ...sharding.messages import one_line
from ..console import align, human_bytes

__all__ = ["SplitBalance", "balance_json", "balance_of_dataset", "balance_of_plan", "balance_text"]

Int64 = npt.NDArray[np.int64]
_CLASSES_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBalance:
    """One split.

    Attributes:
        name: of the split.
        shard_records: records of each shard, int64 [shards].
        shard_bytes: size of each shard's data file, int64 [shards]; estimated where it is not yet written.
        shard_class_counts: records of each class in each shard, [shards, classes].
        shard_generations: which build or append wrote each shard; None: all the same.
    """

    name: str
    shard_records: Int64
    shard_bytes: Int64
    shard_class_counts: npt.NDArray[np.unsignedinteger]
    shard_generations: tuple[int, ...] | None = None

    @property
    def generations(self) -> list[npt.NDArray[np.bool_]]:
        """Which shards each generation has in the split, bool [shards]: these are balanced with each other."""
        if self.shard_generations is None:
            return [np.ones(len(self.shard_records), np.bool_)]
        of_shard = np.array(self.shard_generations)
        return [of_shard == generation for generation in np.unique(of_shard)]

    @property
    def largest_difference(self) -> tuple[int, int]:
        """Between two shards of a generation: in records, and in records of any class."""
        return (
            max(int(np.ptp(self.shard_records[members])) for members in self.generations),
            max(int(np.ptp(self.shard_class_counts[members], axis=0).max()) for members in self.generations),
        )

    @property
    def largest_byte_share(self) -> float:
        """Between two shards of a generation: in bytes, as a share of the smaller one's."""
        return max(
            float(np.ptp(self.shard_bytes[members]) / self.shard_bytes[members].min()) for members in self.generations
        )


def balance_of_dataset(dataset: Dataset, generation: int | None = None) -> list[SplitBalance]:
    """As the manifest says it is; the writer counted it from the records that it wrote.

    Args:
        dataset: opened.
        generation: None for all of it, or one: without the splits of which it has no shard.
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
    """As it will be, with estimated sizes."""
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
    """For `--json`: by split, totals and [least, most] of any shard; of each class as it is asked for."""
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
    """For people: a table of the splits and one of the classes."""
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
    lines = align(["split", "records", "shards", "records/shard", "bytes", "bytes/shard"], rows)
    if list(classes) == [None]:
        return lines
    header = ["class", "share", *(word for split in splits for word in (split.name, f"{split.name}/shard"))]
    counts = np.stack([split.shard_class_counts.sum(axis=0, dtype=np.int64) for split in splits])  # [splits, classes]
    shares = counts.sum(axis=0) / counts.sum()
    order = np.argsort(-shares, kind="stable")
    rows = [
        [
            one_line(classes[i]) or "''",
            f"{shares[i]:.2%}",
            *(
                w
                for s, total in zip(splits, counts[:, i], strict=True)
                for w in (f"{total:,}", _span(s.shard_class_counts[:, i]))
            ),
        ]
        for i in (
            order if len(order) <= _CLASSES_SHOWN else [*order[: _CLASSES_SHOWN // 2], *order[-_CLASSES_SHOWN // 2 :]]
        )
    ]
    lines += ["", *align(header, rows)]
    if len(order) > _CLASSES_SHOWN:
        lines.append(f"... the {_CLASSES_SHOWN // 2} largest and smallest of {len(order):,} classes")
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
