"""Random damages to a dataset, and what is then to be said of it."""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ringfeed.sharding import Dataset, ShardInfo
from tests.helpers.files import all_files

KINDS = ("flip", "burst", "truncate", "extend", "delete", "swap", "stale")


@dataclass(frozen=True)
class Wound:
    """What was done.

    Attributes:
        kind: one of `KINDS`.
        paths: of the damaged files.
        kinds: of damage that may be found.
        offset: of the first changed byte, else None.
        record: the first that is damaged in a plain TFRecord shard, else None.
    """

    kind: str
    paths: tuple[str, ...]
    kinds: tuple[str, ...]
    offset: int | None = None
    record: int | None = None


def wound(root: Path, dataset: Dataset, other: Path, rng: random.Random, kind: str | None = None) -> Wound:
    """Damage one file (two, to swap them) of the dataset at `root`.

    Args:
        root: of the dataset.
        dataset: as it was opened when it was whole.
        other: of a dataset of the same shape with other records.
        rng: decides.
        kind: of damage; by default any.
    """
    kind = kind or rng.choice(KINDS)
    file = rng.choice(all_files(root))
    name = str(file.relative_to(root))
    data = file.read_bytes()
    if kind == "flip":
        offset = rng.randrange(len(data))
        changed = bytearray(data)
        changed[offset] ^= 1 << rng.randrange(8)
        file.write_bytes(changed)
        record = record_at(dataset, name, offset)
        return Wound(kind, (name,), ("altered", "stale"), offset=offset, record=record)
    if kind == "burst":
        offset = rng.randrange(len(data))
        stop = min(len(data), offset + rng.randint(1, 200))
        inverted = bytes(byte ^ 255 for byte in data[offset:stop])
        file.write_bytes(data[:offset] + inverted + data[stop:])
        record = record_at(dataset, name, offset)
        return Wound(kind, (name,), ("altered", "stale"), offset=offset, record=record)
    if kind == "truncate":
        size = rng.randrange(len(data))
        file.write_bytes(data[:size])
        record = record_at(dataset, name, size)
        return Wound(kind, (name,), ("truncated",), record=record)
    if kind == "extend":
        file.write_bytes(data + rng.randbytes(rng.randint(1, 40)))
        return Wound(kind, (name,), ("extended",))
    if kind == "delete":
        file.unlink()
        return Wound(kind, (name,), ("missing",))
    shards = rng.sample([shard for shard in dataset.shards if (root / shard.path).exists()], 2)
    if kind == "swap":
        a, b = (root / shard.path for shard in shards)
        a.rename(root / "aside")
        b.rename(a)
        (root / "aside").rename(b)
        return Wound(kind, (a.name, b.name), ("swapped",))
    shutil.copy(other / shards[0].index_path, root / shards[0].index_path)
    return Wound("stale", (shards[0].index_path,), ("stale",))


def record_at(dataset: Dataset, name: str, offset: int) -> int | None:
    """The record of a plain TFRecord shard that holds a byte."""
    shards = [shard for shard in dataset.shards if shard.path == name]
    if not shards or dataset.manifest.shard_format != "tfrecord" or dataset.manifest.compression != "none":
        return None
    return int(offsets(dataset, shards[0]).searchsorted(offset, side="right")) - 1


def offsets(dataset: Dataset, shard: ShardInfo) -> "pa.Array":
    """Where each record of a shard begins, by its index."""
    buffer = pa.py_buffer(dataset.storage.read(shard.index_path))
    return pa.ipc.open_file(buffer).read_all().column("offset").to_numpy()
