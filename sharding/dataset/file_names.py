"""Names of a dataset's files, by generation: a build writes generation 0, each append the next one.

Pure. `manifest.Generation` describes a generation, `building/append.py` adds one.

Tested by its examples and in tests/sharding/building/test_append.py.
"""

from __future__ import annotations

import re

from ..errors import ConfigError

__all__ = [
    "FOLDER_NAMES", "GENERATION_FILES", "INDEX_SUFFIX", "REJECTED_NAME", "SHARD_NAMES", "TABLE_NAMES",
    "check_split_name", "folder_of", "generation_of", "index_name", "rejected_name", "repairs_of", "salvaged_name",
    "shard_name", "table_name", "table_order",
]  # fmt: skip

INDEX_SUFFIX = ".index.arrow"
_NUMBER = r"g(\d{5,})"
_SALVAGED = r"\.salvaged(?:-(\d+))?"
FOLDER_NAMES = re.compile(r"g\d{5,}")
TABLE_NAMES = re.compile(rf"shards(?:-{_NUMBER})?(?:{_SALVAGED})?\.parquet")
SHARD_NAMES = re.compile(  # shards, indexes and DALI indexes; groups: the split, the shard's number
    rf"(?:{FOLDER_NAMES.pattern}/)?(\w+)-(\d{{5,}})-of-\d{{5,}}(?:{_SALVAGED})?\.(?:tfrecord|parquet|index\.arrow|idx)"
)
GENERATION_FILES = re.compile(rf"{_NUMBER}/.*|{TABLE_NAMES.pattern}")  # all but the first generation's


def folder_of(generation: int) -> str:
    """Return the prefix of the names of a generation's shards.

    >>> folder_of(0), folder_of(1)
    ('', 'g00001/')
    """
    return f"g{generation:05d}/" if generation else ""


def shard_name(generation: int, split: str, number: int, shards: int, shard_format: str) -> str:
    """Return the name of a shard.

    Args:
        generation: its generation.
        split: its split.
        number: its number within generation and split.
        shards: number of shards of that generation and split.
        shard_format: ``tfrecord`` or ``parquet``.

    >>> shard_name(1, "train", 0, 4, "tfrecord")
    'g00001/train-00000-of-00004.tfrecord'
    """
    return f"{folder_of(generation)}{split}-{number:05d}-of-{shards:05d}.{shard_format}"


def index_name(shard_path: str) -> str:
    """Return the name of a shard's index.

    >>> index_name("train-00000-of-00004.tfrecord")
    'train-00000-of-00004.index.arrow'
    """
    return shard_path.rpartition(".")[0] + INDEX_SUFFIX


def table_name(generation: int) -> str:
    """Return the name of the table that lists the shards of a generation and of all before it.

    >>> table_name(0), table_name(1)
    ('shards.parquet', 'shards-g00001.parquet')
    """
    return f"shards-g{generation:05d}.parquet" if generation else "shards.parquet"


def table_order(name: str) -> tuple[int, int]:
    """Return a key that orders shard tables by age: the generation, and the number of repairs before it.

    >>> table_order("shards.salvaged-2.parquet") < table_order("shards-g00001.parquet")
    True
    """
    match = TABLE_NAMES.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not a valid name of a shard table")
    return int(match.group(1) or 0), repairs_of(name)


def repairs_of(name: str) -> int:
    """Return the number of repairs that a file's name counts.

    >>> repairs_of("shards.parquet"), repairs_of("shards.salvaged.parquet"), repairs_of("shards.salvaged-2.parquet")
    (0, 1, 2)
    """
    match = re.match(rf".*{_SALVAGED}", name)
    return int(match.group(1) or 1) if match else 0


def salvaged_name(name: str) -> str:
    """Return the name of the file with which a repair replaces this one.

    >>> salvaged_name("train-00000-of-00002.index.arrow"), salvaged_name("shards.salvaged.parquet")
    ('train-00000-of-00002.salvaged.index.arrow', 'shards.salvaged-2.parquet')
    """
    match = re.fullmatch(rf"(.+?)(?:{_SALVAGED})?(\.index\.arrow|\.[a-z]+)", name)
    if match is None:
        raise ValueError(f"{name!r} is not a valid name of a file of a dataset")
    again = f"-{repairs_of(name) + 1}" if repairs_of(name) else ""
    return f"{match.group(1)}.salvaged{again}{match.group(3)}"


def generation_of(path: str) -> int:
    """Return the generation of a shard from the path of either of its files.

    >>> generation_of("train-00000-of-00002.tfrecord"), generation_of("g00012/train-00000-of-00002.index.arrow")
    (0, 12)
    """
    match = re.match(rf"{_NUMBER}/", path)
    return int(match.group(1)) if match else 0


REJECTED_NAME = "rejected.jsonl"


def rejected_name(generation: int) -> str:
    """Return the path of the file that lists the bad records which a generation skipped.

    >>> rejected_name(0), rejected_name(1)
    ('rejected.jsonl', 'g00001/rejected.jsonl')
    """
    return f"{folder_of(generation)}{REJECTED_NAME}"


def check_split_name(name: str) -> None:
    """Check that files can carry a split's name.

    Raises:
        ConfigError: it is empty, or has other characters than ASCII letters, digits and _.
    """
    if not name.replace("_", "").isalnum() or not name.isascii():
        raise ConfigError(f"the name of a split must consist of ASCII letters, digits and _, got {name!r}")
