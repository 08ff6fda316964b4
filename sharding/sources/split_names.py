"""Recognizes names of files and folders that look like splits, such as train-00000.parquet, or val/ beside train/."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

from ringfeed.sharding.errors import RingfeedError
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.urls import WEB_PROTOCOLS, validate_url

from .base import Source, unwrap
from .detect import known_suffixes
from .files.find import list_entries, plain_name, root_of, split_chain
from .images.class_folders import ImageFolderSource
from .ringfeed import RingfeedSource

_logger = logging.getLogger(__name__)
_WORDS = {
    "train": "train", "training": "train", "test": "test", "testing": "test", "t10k": "test", "val": "val",
    "valid": "val", "validation": "val", "dev": "val",
}  # fmt: skip
_NAME = re.compile(rf"(?:^|[-_.])({'|'.join(_WORDS)})(?![a-z0-9])", re.IGNORECASE)


def find_split_folders(url: str) -> dict[str, str]:
    """Return the folders in a folder by the names of splits, if all are of splits and hold all data; else none.

    A folder that cannot be listed has none, nor has one on a web server.
    """
    if Storage(validate_url(url, "source")).protocol in WEB_PROTOCOLS:
        return {}
    try:
        folders, files = list_entries(url)
    except Exception:  # whatever a client raises; opening the source reports it
        return {}
    if any(plain_name(name).endswith(known_suffixes()) for name in files):
        return {}
    words = [name.lower() for name in folders]
    if not all(word in _WORDS for word in words) or len({_WORDS[word] for word in words}) < max(2, len(words)):
        return {}
    return dict(sorted(zip(words, folders, strict=True), key=lambda pair: (_WORDS[pair[0]] != "train", pair[0])))


def split_patterns(paths: Iterable[str]) -> dict[str, str]:
    """Return a glob for each split that names of files or folders contain; none if there is only one.

    Args:
        paths: paths of files, relative to the folder of the source.

    >>> split_patterns(["train-images-idx3-ubyte", "t10k-images-idx3-ubyte"])
    {'train': 'train*', 'test': 't10k*'}
    >>> split_patterns(["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"])
    {'train': 'data/train*', 'test': 'data/test*'}
    >>> split_patterns(["mnist-test.tfrecord-00000-of-00001", "mnist-train.tfrecord-00000-of-00001"])
    {'train': 'mnist-train*', 'test': 'mnist-test*'}
    >>> split_patterns(["train/cat/1.png", "val/cat/2.png"]), split_patterns(["trainers.csv", "tests/a.csv"])
    ({'train': 'train', 'val': 'val'}, {})
    """
    patterns: dict[str, dict[str, None]] = {}
    for path in paths:
        *folders, file = path.split("/")
        for number, folder in enumerate(folders):
            if folder.lower() in _WORDS:
                patterns.setdefault(_WORDS[folder.lower()], {})["/".join(folders[: number + 1])] = None
                break
        else:
            if match := _NAME.search(file):
                pattern = "/".join([*folders, f"{file[: match.end()]}*"])
                patterns.setdefault(_WORDS[match[1].lower()], {})[pattern] = None
    if len(patterns) < 2:
        return {}
    names = sorted(patterns, key=lambda name: (name != "train", name))
    return {name: next(iter(patterns[name])) if len(patterns[name]) == 1 else f"**/*{name}*" for name in names}


def warn_of_splits(source: Source, url: str) -> None:
    """Warn that the records of splits are mixed, if the names of a source's files look like splits.

    Args:
        source: prepared source.
        url: URL that the user gave.
    """
    base = unwrap(source)
    if isinstance(base, RingfeedSource):
        names = dict.fromkeys(part.pieces[0].split for part in base.parts)
        if len(names) > 1:
            _logger.warning(
                "%s has the splits %s, whose records are mixed; shard-dataset reshard keeps them", url, ", ".join(names)
            )
        return
    if patterns := split_patterns(_relative_paths(base, url)):
        _logger.warning(
            "%s: names of its files look like splits (%s), whose records are mixed; to keep the splits, name the "
            "folder and add --split-files %s",
            url, ", ".join(patterns), " ".join(f"{name}='{pattern}'" for name, pattern in patterns.items()),
        )  # fmt: skip


def _relative_paths(base: Any, url: str) -> list[str]:
    """Return the paths of a source's files, relative to the folder that the source names; none if it is one file."""
    if isinstance(base, ImageFolderSource):
        return [name for part in base.parts for name in part.pieces[0]]
    paths = list(dict.fromkeys(part.path for part in base.parts))
    if len(paths) < 2:
        return []
    try:
        root = root_of(url, paths)
    except (RingfeedError, OSError, ValueError):  # no such folder, as with the braces of archives
        return []
    return [path.removeprefix(root) for path in (split_chain(path)[0] for path in paths) if path.startswith(root)]
