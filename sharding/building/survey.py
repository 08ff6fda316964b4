"""What a build says of its source before it reads the records: names that it refuses, and what may be a mistake."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from unicodedata import normalize

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import counted, listed, some_of
from ringfeed.sharding.schema import RESERVED_NAMES, Schema
from ringfeed.sharding.sources import Source
from ringfeed.sharding.sources.base import Part, unwrap
from ringfeed.sharding.sources.files.find import has_pattern, list_entries
from ringfeed.sharding.sources.files.http_listing import is_web
from ringfeed.sharding.sources.images.class_folders import ImageFolderSource
from ringfeed.sharding.sources.split_files import SplitSource
from ringfeed.sharding.sources.split_names import warn_of_splits

from .options import BuildOptions

_logger = logging.getLogger(__name__)
_PANDAS_INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0")  # in Parquet; in CSV that was read and written again


def survey(source: Source, options: BuildOptions) -> None:
    """Refuse columns with names of the loader's own, and warn of what may be a mistake.

    Warns of splits that are mixed, the index of a pandas DataFrame among the columns, folders of classes that hold no
    image, and names of columns or files that differ only in their Unicode form.

    Raises:
        ConfigError: a column has a reserved name.
    """
    _check_names(source.schema)
    if not options.split_files and options.deciding_column is None:
        warn_of_splits(source, options.source)
    columns = source.schema.names
    nameless = [name for name in columns[:1] if not name]  # so `DataFrame.to_csv` writes the index
    for name in [*filter(_PANDAS_INDEX.fullmatch, columns), *nameless]:
        _logger.warning(
            "the column %r is the index of a pandas DataFrame, and is stored like the others; leave it out with "
            "--drop-columns %s",
            name, shlex.quote(name),
        )  # fmt: skip
    warn_of_twins("column", columns, "rename one with --rename, or drop it")
    base, files = unwrap(source), set[str]()
    for folders, names in _image_folders(base):
        _warn_of_empty_folders(folders, names)
        files.update(f"{folders.root}{name}" for name in names if not name.isascii())
    files.update(part.path for part in base.parts if not part.path.isascii())
    warn_of_twins("file", sorted(files), "remove one of each pair if it is a copy")


def warn_of_twins(noun: str, names: Sequence[str], remedy: str) -> None:
    """Warn of names that differ only in their Unicode form."""
    twins = _unicode_twins(names)
    if twins:
        one, other = twins[0]
        _logger.warning(
            "%s of names of %s differ only in their Unicode form, such as %s and %s; they are kept apart: %s",
            counted(len(twins), "pair"), f"{noun}s" if noun != "class" else "classes", ascii(one), ascii(other), remedy,
        )  # fmt: skip


def _unicode_twins(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return pairs of different names that are equal in Unicode's composed form (NFC), in their order.

    >>> [tuple(map(ascii, pair)) for pair in _unicode_twins(["caf\\u00e9", "tea", "cafe\\u0301", "caf\\u00e9"])]
    [("'caf\\\\xe9'", "'cafe\\\\u0301'")]
    """
    first: dict[str, str] = {}
    twins: dict[tuple[str, str], None] = {}
    for name in names:
        if not name.isascii() and (other := first.setdefault(normalize("NFC", name), name)) != name:
            twins[other, name] = None
    return list(twins)


def warn_of_rotated_images(manifest: Manifest) -> None:
    """Warn of images that EXIF says to turn or mirror."""
    for name in [feature.name for feature in manifest.schema.features if feature.is_image]:
        statistics = [split.statistics[name].image for split in manifest.splits.values() if name in split.statistics]
        rotated = sum(image.rotated for image in statistics if image)
        if rotated:
            images = sum(image.images for image in statistics if image)
            _logger.warning(
                "%s turned or mirrored by EXIF (column %r), which loaders ignore; --encode jpeg:90 stores them upright",
                some_of(rotated, images, "image", "is/are"), name,
            )  # fmt: skip


def _check_names(schema: Schema) -> None:
    for name in schema.names:
        if name in RESERVED_NAMES:
            label = f" --label {name}_1" if name == schema.label else ""
            raise ConfigError(
                f"a column is called {name!r}, as is what the loader adds to each batch; rename it with "
                f"--rename {name}={name}_1{label}, or leave it out with --drop-columns {name}"
            )


def _image_folders(base: Source) -> Iterator[tuple[ImageFolderSource, list[str]]]:
    """Yield each source of class folders, one for each split, and the paths of its images."""

    def names(parts: Iterable[Part]) -> list[str]:
        return [name for part in parts for name in part.pieces[0]]

    if isinstance(base, ImageFolderSource):
        yield base, names(base.parts)
    elif isinstance(base, SplitSource):
        for number, split in enumerate(base.splits):
            if isinstance(split, ImageFolderSource):
                yield split, names(part for part in base.parts if part.split == number)


def _warn_of_empty_folders(source: ImageFolderSource, names: Sequence[str]) -> None:
    if has_pattern(source.url) or is_web(source.url):
        return
    try:
        folders, _ = list_entries(source.url)
    except Exception:  # whatever a client raises: the images were found
        return
    empty = sorted(set(folders) - {name.partition("/")[0] for name in names})
    if empty:
        _logger.warning(
            "%s no image and no class of the dataset: %s", counted(len(empty), "folder", "holds/hold"),
            listed([repr(name) for name in empty]),
        )  # fmt: skip
