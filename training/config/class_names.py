"""Names in a configuration, texts as they are written; those of classes are matched with the values of a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import did_you_mean, listed

_NAMES = (
    *(("data", key) for key in ("include", "exclude", "target", "categorical", "bucket_by")),
    *(("data", key) for key in ("train_split", "eval_split", "test_split")),
    *(("model", key) for key in ("crosses", "shared")),
    ("data", "positive"),
    ("data", "balance"),
    ("data", "weights"),
    ("data", "mixture"),
    ("data", "mixture", None),
    ("data", "mixture", None, "balance"),
    ("loss", "class_weights"),
)
"""Keys that are a name of a column, split, class or dataset, or hold names; None stands for any dataset."""


def hold_names(path: Sequence[str]) -> bool:
    """Whether the value of a key, or what it lists, or its keys, are names, not what YAML takes them for.

    >>> hold_names(["data", "mixture", "web", "balance"]), hold_names(["data", "batch_size"])
    (True, False)
    """
    return any(
        len(names) == len(path) and all(name in (None, own) for name, own in zip(names, path, strict=True))
        for names in _NAMES
    )


def class_name(value: object) -> str:
    """Return the text of a class, as a configuration names it.

    >>> class_name(1), class_name(True), class_name("01")
    ('1', 'true', '01')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def by_class_name(values: Any) -> Any:
    """Return a mapping from classes by their names; anything else as it is."""
    return {class_name(value): own for value, own in values.items()} if isinstance(values, Mapping) else values


def class_number(key: str, name: str, classes: Sequence[Any]) -> int:
    """Return the place of the class that the key names among the values of the label, or raise a ConfigError.

    >>> class_number("data.positive", "1", (0, 1)), class_number("data.positive", "True", (False, True))
    (1, 1)
    """
    names = [class_name(value) for value in classes]
    if name not in names and name.lower() in ("true", "false"):  # any spelling that YAML has for a bool
        name, names = name.lower(), [own.lower() for own in names]
    if name not in names:
        hint = did_you_mean(name, names, f"the classes are: {listed(names)}")
        raise ConfigError(f"{key}: there is no class {name!r}; {hint}")
    return names.index(name)


def shares_by_class(key: str, balance: str | Mapping[Any, float] | None, classes: Sequence[Any]) -> Any:
    """Return the balance of a configuration as a `Loader` takes it: shares by the values of the label."""
    if not isinstance(balance, Mapping):
        return balance
    return {classes[class_number(key, name, classes)]: share for name, share in balance.items()}
