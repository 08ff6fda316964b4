"""Steps and other options as text, as they stand on a command line and in `dataset.json`, read back into values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConfigError
from ..schema import Feature
from .casts import Cast
from .comma_lists import ALL, split_columns, split_names, split_pairs
from .image_transform import ImageOptions, parse_encoding, parse_size
from .options import PrepareOptions
from .steps import Drop, DropNulls, FillNulls, Filter, Rename, Select, Step
from .user_map import MapBatches

__all__ = ["parse_step", "restore_options"]

_STEPS: dict[str, Callable[[str], Step]] = {
    "--select": lambda text: Select(split_names(text)),
    "--drop-columns": lambda text: Drop(split_names(text)),
    "--rename": lambda text: Rename(split_pairs(text)),
    "--cast": lambda text: Cast(split_pairs(text)),
    "--filter": Filter,
    "--fill-nulls": lambda text: FillNulls(split_pairs(text)),
    "--drop-nulls": lambda text: DropNulls(split_columns(text)),
}


def parse_step(flag: str, text: str, folder: str) -> Step:
    """The step that a flag and its value ask for.

    Args:
        flag: such as ``--select``.
        text: its value.
        folder: where the module of a ``--map`` is looked for first.

    Raises:
        ValueError: there is no such flag, or the value is none that it takes.

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
        recorded: as it stands in `dataset.json`.
        folder: where the modules of functions are looked for first: where they were is not recorded.

    Raises:
        ConfigError: it holds what this version does not know.

    >>> restore_options({"steps": ["--filter 'x > 1'"], "dedup": ["*"]}, "").recorded()
    {'steps': ["--filter 'x > 1'"], 'dedup': ['*']}
    """
    strange = sorted(set(recorded) - {"schema", "steps", "dedup", "images"})
    if strange:
        raise ConfigError(f"the records were prepared in a way that this version does not know: {', '.join(strange)}")
    features = [Feature.from_json(value) for value in recorded.get("schema", ())]
    dedup = recorded.get("dedup")
    return PrepareOptions(
        features={feature.name: feature for feature in features},
        steps=tuple(_restored_step(spec, folder) for spec in recorded.get("steps", ())),
        dedup=None if dedup is None else tuple(() if dedup == [ALL] else dedup),
        images=_images(recorded["images"]) if "images" in recorded else None,
    )


def _restored_step(spec: str, folder: str) -> Step:
    flag, _, text = spec.partition(" ")
    return parse_step(flag, str(ast.literal_eval(text)) if flag == "--filter" else text, folder)


def _images(spec: str) -> ImageOptions:
    words = spec.split()
    asked = dict(zip(words[::2], words[1::2], strict=True))
    return ImageOptions(
        size=parse_size(asked["--resize"]) if "--resize" in asked else None,
        encoding=parse_encoding(asked["--encode"]) if "--encode" in asked else None,
    )
