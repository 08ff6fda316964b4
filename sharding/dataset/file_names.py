"""Names of a dataset's files, by generation: a build writes generation 0, each append the next one.

Pure. `manifest.Generation` describes a generation, `building/append.py` adds one. `own_folder.py` finds out which names
a dataset has.
Tested in tests/sharding/building/test_append.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringfeed.sharding.errors import ConfigError

OWN_FOLDER = "_ringfeed"
MANIFEST_NAME = "dataset.json"
_SALVAGED = r"\.salvaged(?:-(\d+))?"
_INDEX = r"\.index(?:\.arrow)?"
TABLE_NAMES = re.compile(rf"(?:{OWN_FOLDER}/)?shards(?:-g(\d{{5,}}))?(?:{_SALVAGED})?\.(?:table|parquet)")
SHARD_NAMES = re.compile(  # shards, indexes and DALI indexes; groups: the split, the shard's number
    rf"(?:{OWN_FOLDER}/|g\d{{5,}}/)?(\w+)-(?:g\d{{5,}}-)?(\d{{5,}})-of-\d{{5,}}(?:{_SALVAGED})?"
    rf"(?:\.tfrecord|\.parquet|{_INDEX}|\.idx)"
)
REJECTED_NAMES = re.compile(rf"(?:{OWN_FOLDER}/)?rejected(?:-g\d{{5,}})?\.jsonl|g\d{{5,}}/rejected\.jsonl")
_GENERATION = re.compile(r"g(\d{5,})/|.*-g(\d{5,})(?:-\d{5,}-of-|\.)")


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of the files of one dataset.

    >>> NAMES.shard(1, "train", 0, 4, "parquet"), OLD_NAMES.shard(1, "train", 0, 4, "parquet")
    ('train-g00001-00000-of-00004.parquet', 'g00001/train-00000-of-00004.parquet')
    >>> NAMES.index("train-00000-of-00004.parquet"), OLD_NAMES.index("g00001/train-00000-of-00004.parquet")
    ('_ringfeed/train-00000-of-00004.index', 'g00001/train-00000-of-00004.index.arrow')
    >>> NAMES.table(0), NAMES.table(1), OLD_NAMES.table(1)
    ('_ringfeed/shards.table', '_ringfeed/shards-g00001.table', 'shards-g00001.parquet')
    >>> NAMES.rejected(1), OLD_NAMES.rejected(1)
    ('_ringfeed/rejected-g00001.jsonl', 'g00001/rejected.jsonl')
    """

    # Folder of the files that only ringfeed reads, with a slash at its end. Its name begins with an underscore, and its
    # files have suffixes of their own, so other programs that open the dataset's folder pass them over. Empty for
    # datasets of earlier versions: there they lie beside the shards, and each append has a folder.
    own: str

    @property
    def manifest(self) -> str:
        """The name of the manifest."""
        return self.own + MANIFEST_NAME

    def table(self, generation: int) -> str:
        """The name of the table that lists the shards of a generation and of all before it."""
        suffix = ".table" if self.own else ".parquet"
        return f"{self.own}shards{f'-g{generation:05d}' if generation else ''}{suffix}"

    def folder(self, generation: int) -> str:
        """The folder of a generation's files, with a slash at its end; empty for the dataset's own folder."""
        return f"g{generation:05d}/" if generation and not self.own else ""

    def stem(self, generation: int, split: str) -> str:
        """What the names of the shards of a generation and split begin with."""
        return f"{self.folder(generation)}{split}-{f'g{generation:05d}-' if generation and self.own else ''}"

    def shard(self, generation: int, split: str, number: int, shards: int, shard_format: str) -> str:
        """The name of a shard."""
        return f"{self.stem(generation, split)}{number:05d}-of-{shards:05d}.{shard_format}"

    @property
    def index_suffix(self) -> str:
        """What the names of the shards' indexes end in."""
        return ".index" if self.own else ".index.arrow"

    def index(self, shard_path: str) -> str:
        """The name of a shard's index."""
        return self.own + shard_path.rpartition(".")[0] + self.index_suffix

    def dali(self, shard_path: str) -> str:
        """The name of a shard's index for NVIDIA DALI."""
        return self.own + shard_path.rpartition(".")[0] + ".idx"

    def rejected(self, generation: int) -> str:
        """The name of the file that lists the bad records which a generation skipped."""
        number = f"-g{generation:05d}" if generation and self.own else ""
        return f"{self.own}{self.folder(generation)}rejected{number}.jsonl"


NAMES = FileNames(f"{OWN_FOLDER}/")
OLD_NAMES = FileNames("")
ALL_NAMES = (NAMES, OLD_NAMES)


def names_of(path: str) -> FileNames:
    """The names of a dataset, found by the path of one of ringfeed's own files.

    >>> names_of("_ringfeed/shards.table") == NAMES, names_of("shards.parquet") == OLD_NAMES
    (True, True)
    """
    return NAMES if path.startswith(NAMES.own) else OLD_NAMES


def table_order(name: str) -> tuple[int, int]:
    """Return a key that orders shard tables by age: the generation, and the number of repairs before it.

    >>> table_order("_ringfeed/shards.salvaged-2.table") < table_order("_ringfeed/shards-g00001.table")
    True
    """
    match = TABLE_NAMES.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not a valid name of a shard table")
    return int(match.group(1) or 0), repairs_of(name)


def repairs_of(name: str) -> int:
    """Return the number of repairs that a file's name counts.

    >>> repairs_of("shards.table"), repairs_of("shards.salvaged.table"), repairs_of("shards.salvaged-2.table")
    (0, 1, 2)
    """
    match = re.match(rf".*{_SALVAGED}", name)
    return int(match.group(1) or 1) if match else 0


def salvaged_name(name: str) -> str:
    """Return the name of the file with which a repair replaces this one.

    >>> salvaged_name("train-00000-of-00002.index"), salvaged_name("shards.salvaged.table")
    ('train-00000-of-00002.salvaged.index', 'shards.salvaged-2.table')
    """
    match = re.fullmatch(rf"(.+?)(?:{_SALVAGED})?({_INDEX}|\.[a-z]+)", name)
    if match is None:
        raise ValueError(f"{name!r} is not a valid name of a file of a dataset")
    again = f"-{repairs_of(name) + 1}" if repairs_of(name) else ""
    return f"{match.group(1)}.salvaged{again}{match.group(3)}"


def generation_of(path: str) -> int:
    """Return the generation that wrote a file.

    >>> generation_of("train-00000-of-00002.tfrecord"), generation_of("_ringfeed/train-g00012-00000-of-00002.index")
    (0, 12)
    >>> generation_of("g00012/train-00000-of-00002.tfrecord"), generation_of("g00012-00000-of-00002.tfrecord")
    (12, 0)
    """
    match = _GENERATION.match(path)
    return int(match.group(1) or match.group(2)) if match else 0


def is_later_file(path: str) -> bool:
    """Whether a file of a dataset is a shard table, or belongs to another generation than the first."""
    return generation_of(path) > 0 or TABLE_NAMES.fullmatch(path) is not None


def check_split_name(name: str) -> None:
    """Refuse a name of a split with other characters than ASCII letters, digits and _, or none (a ConfigError)."""
    if not name.replace("_", "").isalnum() or not name.isascii():
        raise ConfigError(f"the name of a split must consist of ASCII letters, digits and _, got {name!r}")
