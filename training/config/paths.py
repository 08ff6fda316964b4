"""Relative paths of a configuration: in a file they count from its folder, in `--set` from the working one.

Tested in tests/training/config/test_printed.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from .keys import all_keys

_WORDS = {"data.cache": ("none", "memory"), "track.mlflow": ("databricks",)}
"""Words among the paths of a key."""


def paths_from(tree: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return a tree whose relative paths, which count from a folder, count from the working directory.

    URLs and absolute paths stay as they are.

    >>> paths_from({"data": {"url": "flights", "cache": "memory"}, "checkpoint": {"url": "s3://b/run"}}, "runs")
    {'data': {'url': 'runs/flights', 'cache': 'memory'}, 'checkpoint': {'url': 's3://b/run'}}
    """
    if os.path.normpath(folder or ".") == ".":
        return dict(tree)
    return _mapped(tree, lambda path: os.path.join(folder, path))


def absolute_paths(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree whose relative paths, which count from the working directory, are absolute."""
    return _mapped(tree, os.path.abspath)


def _mapped(tree: Mapping[str, Any], function: Callable[[str], str]) -> dict[str, Any]:
    result = dict(tree)
    for name, spec in all_keys():
        group, _, leaf = name.rpartition(".")
        if spec.metadata.get("kind") not in ("path", "disk") or not isinstance(result.get(group), Mapping):
            continue
        path = result[group].get(leaf)
        if name == "data.url" and isinstance(mixture := result[group].get("mixture"), Mapping):
            moved = {name: _mapped({group: entry}, function)[group] for name, entry in mixture.items()}
            result[group] = {**result[group], "mixture": moved}
        if isinstance(path, str) and path and "://" not in path and path not in _WORDS.get(name, ()):
            result[group] = {**result[group], leaf: function(path)}
    return result
