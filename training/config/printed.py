"""A configuration as a YAML file with comments, to be saved and edited: `ringfeed train --print-config`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from .config_file import to_tree
from .keys import all_keys, as_yaml
from .paths import absolute_paths
from .train_config import TrainConfig

_COMMENT_COLUMN, _WIDTH = 36, 118


def print_config(config: TrainConfig) -> str:
    """Return all keys of a configuration as YAML, each with its help as a comment.

    Relative paths become absolute, so that the file means the same in any folder. Secrets of URLs are left out.
    """
    return "\n".join(_lines(config)) + "\n"


def _lines(config: TrainConfig) -> Iterator[str]:
    yield "# All keys of a run, as resolved: ringfeed train --config FILE"
    tree = absolute_paths(to_tree(config))
    group = ""
    for name, spec in all_keys():
        own, _, leaf = name.rpartition(".")
        if own != group:
            yield ""
            if own:
                yield f"{own}:"
            group = own
        if leaf not in (tree[own] if own else tree):
            continue  # a key of another method
        value = tree[own][leaf] if own else tree[leaf]
        yield from _commented(f"{'  ' if own else ''}{leaf}: {as_yaml(value)}", spec.metadata["help"])


def _commented(line: str, comment: str) -> Iterator[str]:
    """A line with a comment beside it, or above it if it is long."""
    if len(line) > _COMMENT_COLUMN - 2:
        indent = line[: len(line) - len(line.lstrip())]
        yield from (f"{indent}# {part}" for part in textwrap.wrap(comment, _WIDTH - len(indent) - 2))
        yield line
        return
    first, *others = textwrap.wrap(comment, _WIDTH - _COMMENT_COLUMN - 2)
    yield f"{line:<{_COMMENT_COLUMN}}# {first}"
    yield from (f"{'':<{_COMMENT_COLUMN}}# {part}" for part in others)
