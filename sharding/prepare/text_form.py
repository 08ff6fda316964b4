"""Parse steps and other options from text, as on the command line and in `dataset.json`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.text.csv_dialect import CsvDialect

from .casts import Cast
from .comma_lists import ALL, split_columns, split_names, split_pairs, split_texts
from .image_transform import ImageOptions, parse_encoding, parse_size
from .null_steps import DropNulls, FillNulls, MaskNulls
from .options import PrepareOptions
from .rare_classes import RareClasses
from .steps import Drop, Filter, Rename, Select, Step
from .user_map import MapBatches

_RECORDED = {"schema", "null_values", "csv", "steps", "float32", "dedup", "rare_classes", "images"}
_STEPS: dict[str, Callable[[str], Step]] = {
    "--select": lambda text: Select(split_names(text)),
    "--drop-columns": lambda text: Drop(split_texts(text)),  # the index of pandas has no name
    "--rename": lambda text: Rename(split_pairs(text)),
    "--cast": lambda text: Cast(split_pairs(text)),
    "--filter": Filter,
    "--fill-nulls": lambda text: FillNulls(split_pairs(text)),
    "--mask-nulls": lambda text: MaskNulls(split_names(text)),
    "--drop-nulls": lambda text: DropNulls(split_columns(text)),
}


def parse_step(flag: str, text: str, folder: str) -> Step:
    """The step of a flag and its value.

    Args:
        flag: flag, such as ``--select``.
        text: value of the flag.
        folder: folder that is searched first for the module of a ``--map`` function.

    Raises:
        ValueError: the flag does not exist, or does not take the value.

    >>> parse_step("--rename", "a=b", "").names
    (('a', 'b'),)
    """
    if flag == "--map":
        return MapBatches(function=text, folder=folder)
    if flag not in _STEPS:
        raise ConfigError(f"there is no step {flag!r}; they are --map, {', '.join(_STEPS)}")
    return _STEPS[flag](text)


def restore_options(recorded: Mapping[str, Any], folder: str) -> PrepareOptions:
    """The inverse of `PrepareOptions.recorded`.

    Args:
        recorded: options as recorded in `dataset.json`.
        folder: folder that is searched first for the modules of ``--map`` functions; the original one is not recorded.

    Raises:
        ConfigError: this version does not know a recorded option.

    >>> restore_options({"steps": ["--filter 'x > 1'"], "dedup": ["*"]}, "").recorded()
    {'steps': ["--filter 'x > 1'"], 'dedup': ['*']}
    """
    unknown = sorted(set(recorded) - _RECORDED)
    if unknown:
        raise ConfigError(f"the records were prepared in a way that this version does not know: {', '.join(unknown)}")
    features = [Feature.from_json(value) for value in recorded.get("schema", ())]
    dedup = recorded.get("dedup")
    return PrepareOptions(
        features={feature.name: feature for feature in features},
        null_values=tuple(recorded.get("null_values", ())),
        csv=CsvDialect.from_json(recorded.get("csv", {})),
        steps=tuple(_restored_step(spec, folder) for spec in recorded.get("steps", ())),
        float32=bool(recorded.get("float32", False)),
        dedup=None if dedup is None else tuple(() if dedup == [ALL] else dedup),
        rare_classes=tuple(map(RareClasses.from_json, recorded.get("rare_classes", ()))),
        images=_images(recorded["images"]) if "images" in recorded else None,
    )


def _restored_step(spec: str, folder: str) -> Step:
    flag, _, text = spec.partition(" ")
    return parse_step(flag, str(ast.literal_eval(text)) if flag == "--filter" else text, folder)


def _images(spec: str) -> ImageOptions:
    words = spec.split()
    flags = dict(zip(words[::2], words[1::2], strict=True))
    return ImageOptions(
        size=parse_size(flags["--resize"]) if "--resize" in flags else None,
        encoding=parse_encoding(flags["--encode"]) if "--encode" in flags else None,
    )
