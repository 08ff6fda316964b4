"""Names of columns in options, checked with a suggestion in the error; and hidden columns, which no step sees."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pyarrow as pa

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, listed

HIDDEN = "\0draft:"  # prefix of columns that travel with drafts past all steps; no column of a source has it


def check_columns(flag: str, wanted: Iterable[str], names: Collection[str]) -> None:
    """Refuse a name that is not a column.

    Raises:
        ConfigError: a name is not a column; the message suggests the nearest one.

    >>> check_columns("--select", ["prise"], ["price", "size"])
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: --select: there is no column 'prise'; did you mean 'price'? The columns here are: price, size
    """  # noqa: E501
    for name in wanted:
        if name not in names:
            hint = did_you_mean(name, names, f"the columns here are: {listed(list(names))}")
            raise ConfigError(f"{flag}: there is no column {name!r}; {hint}")


def check_distinct(flag: str, names: Iterable[str]) -> None:
    """Refuse a name that occurs twice (a ConfigError)."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{flag}: each column may be named once, got {name!r} twice")
        seen.add(name)


def is_in_group(name: str, group: str) -> bool:
    """Whether a column belongs to a struct, or to a group of arrays."""
    return name.startswith((f"{group}.", f"{group}/"))


def expand_groups(wanted: Iterable[str], names: Collection[str]) -> list[str]:
    """The columns that names stand for, each once; the name of a group that is no column stands for all its columns.

    >>> expand_groups(["y", "s", "t", "s.b"], ["s.a", "s.b", "t", "t.c", "y"])
    ['y', 's.a', 's.b', 't']
    """
    expanded: list[str] = []
    for name in wanted:
        within = [] if name in names else [inner for inner in names if is_in_group(inner, name)]
        expanded += within or [name]
    return list(dict.fromkeys(expanded))


def is_hidden(name: str) -> bool:
    """Whether a column is hidden from steps."""
    return name.startswith(HIDDEN)


def visible_names(batch: pa.RecordBatch) -> list[str]:
    """The names of the columns that are not hidden."""
    return [name for name in batch.schema.names if not is_hidden(name)]


def select_present(batch: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
    """The named columns that the batch has, in the order of the names, and all hidden ones."""
    present = set(batch.schema.names)
    return batch.select([name for name in names if name in present] + list(filter(is_hidden, batch.schema.names)))
