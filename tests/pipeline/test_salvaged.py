"""Loading a dataset whose damaged records a repair left out."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import open_dataset, read_records, repair


def loaded(url: str, **options: Any) -> list[int]:
    batches = Loader(url, batch_size=16, **options).epoch(0)
    return [int(i) for batch in batches for i in batch["id"]]


@pytest.mark.parametrize(("shard_format", "fixed"), [("tfrecord", True), ("tfrecord", False), ("parquet", True)])
def test_exactly_the_intact_records_are_loaded(
    make_dataset: Callable[..., str], tmp_path: Path, shard_format: str, fixed: bool
) -> None:
    whole = make_dataset(1000, shard_format=shard_format, fixed=fixed)
    root = Path(shutil.copytree(whole, tmp_path / "copy"))
    dataset = open_dataset(str(root))
    for shard in dataset.shards[2:4]:
        data = bytearray((root / shard.path).read_bytes())
        data[2000:2500] = bytes(byte ^ 255 for byte in data[2000:2500])
        (root / shard.path).write_bytes(data)
    (root / dataset.shards[5].path).unlink()
    lost = sum(entry.records for entry in repair(str(root)).lost)
    left = sorted(record["id"] for record in read_records(open_dataset(str(root)), "train", 1000))
    assert 140 < lost < 500
    assert len(left) == 1000 - lost
    natural = loaded(str(root))
    assert len(natural) == len(left) // 16 * 16
    assert len(set(natural)) == len(natural)
    assert set(natural) <= set(left)
    assert set(loaded(str(root), balance="uniform")) <= set(left)
