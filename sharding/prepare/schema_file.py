"""The file of `--schema`: types and shapes of columns, in YAML, read strictly."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping
from typing import Any

from ..common.strict_yaml import load_yaml
from ..errors import ConfigError
from ..messages import brief, hinted
from ..schema import Feature
from ..sources.files.open import MissingFileError, open_file
from ..storage.urls import validate_url

__all__ = ["parse_features", "read_features"]

_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "string", "binary",
)  # fmt: skip
_KEYS = ("dtype", "shape", "encoding")
_ENCODINGS = ("image",)


def read_features(url: str | os.PathLike[str]) -> dict[str, Feature]:
    """The features that a file names, in its order.

    Args:
        url: URL or path of the file, local or whatever fsspec opens.

    Raises:
        ConfigError: it is not there, is no YAML, or says something that no feature is.
        StorageError: the store refuses.
    """
    url = validate_url(url, "--schema")
    try:
        with open_file(url) as file:
            data = file.read()
    except MissingFileError as error:
        raise ConfigError(f"--schema: there is no file {url}; check the path") from error
    try:
        tree = load_yaml(data)
    except ValueError as error:
        raise ConfigError(f"{url}: this is not YAML: {brief(error)}") from error
    return parse_features(tree, url)


def parse_features(tree: object, origin: str) -> dict[str, Feature]:
    """Features from a parsed document.

    Args:
        tree: ``{"features": {NAME: DTYPE or {"dtype": ..., "shape": [...], "encoding": ...}}}``.
        origin: what to name in errors, such as the file.

    Raises:
        ConfigError: it is not of that form; the text says where.

    >>> parse_features({"features": {"zip": "string"}}, "a.yaml")["zip"].dtype
    'string'
    >>> parse_features({"features": {"zip": {"type": "string"}}}, "a.yaml")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: a.yaml: features.zip: unknown key 'type'; did you mean 'dtype'?
    """
    try:
        top = _mapping(tree, "", "features: {NAME: DTYPE, ...}")
        _check_keys(top, ("features",), "")
        features = _mapping(top.get("features"), "features", "NAME: DTYPE, ...")
        return {name: _feature(name, value) for name, value in features.items()}
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _mapping(value: object, where: str, form: str) -> Mapping[str, Any]:
    prefix = f"{where} " if where else ""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{prefix}must hold {form}; got {'nothing' if value is None else repr(value)[:80]}")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(
                f"{prefix}has the key {key!r}, which YAML takes for no text; put it in quotes: {str(key)!r}"
            )
    return value


def _check_keys(tree: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for key in tree:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"it may be {', '.join(known)}"
            raise ValueError(f"{f'{where}: ' if where else ''}unknown key {key!r}; {hint}")


def _feature(name: str, value: object) -> Feature:
    where = f"features.{name}"
    tree: Mapping[str, Any] = {"dtype": value} if isinstance(value, str) else _mapping(value, where, "a dtype")
    _check_keys(tree, _KEYS, where)
    dtype, encoding = tree.get("dtype"), tree.get("encoding", "")
    if dtype not in _DTYPES:
        hint = hinted(dtype, _DTYPES, "they")
        raise ValueError(f"{where}: there is no dtype {dtype!r}; {hint} are {', '.join(_DTYPES)}")
    if encoding and (encoding not in _ENCODINGS or dtype != "binary"):
        raise ValueError(f"{where}: the one encoding is image, of dtype binary, got {encoding!r} of {dtype}")
    return Feature(name=name, dtype=dtype, shape=_shape(tree.get("shape", []), where), encoding=encoding)


def _shape(value: object, where: str) -> tuple[int | None, ...]:
    if value == [None]:
        return (None,)
    if not isinstance(value, list) or not all(type(size) is int and size > 0 for size in value):
        raise ValueError(f"{where}: a shape is [28, 28] or, where the length varies, [null], got {value!r}")
    return tuple(value)
