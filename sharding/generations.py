"""The generations of a dataset: a build writes generation 0, each append the next. How their files are called.

Pure. What `dataset.json` says of a generation is `manifest.Generation`; how one is added is in `append.py`.
"""

from __future__ import annotations

import re

__all__ = [
    "FOLDER_NAMES", "GENERATION_FILES", "TABLE_NAMES", "folder_of", "generation_of", "shard_stem", "table_name",
    "table_order",
]  # fmt: skip

_NUMBER = r"g(\d{5,})"
FOLDER_NAMES = re.compile(r"g\d{5,}")
TABLE_NAMES = re.compile(rf"shards(?:-{_NUMBER})?(?:\.salvaged(?:-(\d+))?)?\.parquet")
GENERATION_FILES = re.compile(rf"{_NUMBER}/.*|{TABLE_NAMES.pattern}")  # of any generation but the first, and all tables


def folder_of(generation: int) -> str:
    """What the names of a generation's shards begin with.

    >>> folder_of(0), folder_of(1)
    ('', 'g00001/')
    """
    return f"g{generation:05d}/" if generation else ""


def shard_stem(generation: int, split: str, number: int, shards: int) -> str:
    """What the names of a shard's files begin with.

    Args:
        generation: that it is of.
        split: that it is of.
        number: of the shard in generation and split.
        shards: that these have.

    >>> shard_stem(1, "train", 0, 4)
    'g00001/train-00000-of-00004'
    """
    return f"{folder_of(generation)}{split}-{number:05d}-of-{shards:05d}"


def table_name(generation: int) -> str:
    """The name of the table that holds the shards of a generation and of all before it.

    >>> table_name(0), table_name(1)
    ('shards.parquet', 'shards-g00001.parquet')
    """
    return f"shards-g{generation:05d}.parquet" if generation else "shards.parquet"


def table_order(name: str) -> tuple[int, int]:
    """The generation of a table, and how many repairs came before it: a later table has a greater one.

    >>> table_order("shards.salvaged-2.parquet") < table_order("shards-g00001.parquet")
    True
    """
    match = TABLE_NAMES.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no name of a table of shards")
    return int(match.group(1) or 0), int(match.group(2) or 1) if ".salvaged" in name else 0


def generation_of(path: str) -> int:
    """The generation of a shard, by the path of one of its files.

    >>> generation_of("train-00000-of-00002.tfrecord"), generation_of("g00012/train-00000-of-00002.index.arrow")
    (0, 12)
    """
    match = re.match(rf"{_NUMBER}/", path)
    return int(match.group(1)) if match else 0
