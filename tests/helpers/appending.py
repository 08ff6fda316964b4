"""What a dataset is held to that was appended to."""

from pathlib import Path
from typing import Any

import numpy as np

from ringfeed.sharding import AppendOptions, Dataset, append, open_dataset, read_records
from ringfeed.sharding.dataset.file_names import generation_of


def appended(source: str, destination: str | Path, **options: Any) -> Dataset:
    append(AppendOptions(source=source, destination=str(destination), **options))
    return open_dataset(str(destination))


def rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    rows = [row for split in dataset.manifest.splits for row in read_records(dataset, split, 10**9)]
    return sorted(rows, key=lambda row: row["id"])


def assert_balanced(dataset: Dataset) -> None:
    """Within each generation; and what `dataset.json` says of them is so."""
    for number, generation in enumerate(dataset.manifest.all_generations):
        for split, shards in generation.shards.items():
            members = [s for s in dataset.split_shards(split) if generation_of(s.path) == number]
            assert (len(members), sum(s.records for s in members)) == (shards, generation.records[split])
            counts = np.array([(s.records, *s.class_counts) for s in members])
            assert np.ptp(counts, axis=0).max() <= 1
