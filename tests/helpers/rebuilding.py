"""Damage to datasets of several generations, and their repair from the sources of these."""

from pathlib import Path
from typing import Any

from ringfeed.sharding import Dataset, Original, RepairReport, ShardInfo, open_dataset, repair
from ringfeed.sharding.dataset.file_names import generation_of


def shards_of(dataset: Dataset, generation: int) -> list[ShardInfo]:
    return [shard for shard in dataset.shards if generation_of(shard.path) == generation]


def damage(out: Path, *generations: int, table: bool = False) -> None:
    """Shards of some generations cannot be read, or are gone; the table may be gone, too."""
    dataset = open_dataset(str(out))
    for number in generations:
        first, second, *_ = shards_of(dataset, number)
        (out / first.path).write_bytes(bytes(first.bytes))
        (out / first.index_path).unlink()
        (out / second.path).unlink()
    if table:
        (out / dataset.manifest.shards_path).unlink()


def spoil(path: Path) -> None:
    """Change bytes that no checksum within the file brings back, and leave a file of the same size."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 40] = bytes(40)
    path.write_bytes(data)


def repaired(out: Path | str, *sources: str, workers: int = 1, **options: Any) -> RepairReport:
    return repair(str(out), originals=[Original(url=source, workers=workers) for source in sources], **options)
