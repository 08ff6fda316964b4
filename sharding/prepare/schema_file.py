"""Read the file of `--schema`: types and shapes of columns in strict YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ringfeed.sharding.common.strict_yaml import YAML_SCALARS, load_yaml
from ringfeed.sharding.common.validation import fit
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import brief, did_you_mean
from ringfeed.sharding.schema import DTYPES, Feature
from ringfeed.sharding.sources.files.open import MissingFileError, open_file
from ringfeed.sharding.storage.urls import validate_url

_MOST_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class _FeatureKeys:
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str = ""


@dataclass(frozen=True, kw_only=True)
class _Document:
    features: Mapping[str, str | _FeatureKeys]


def read_features(url: str | os.PathLike[str]) -> dict[str, Feature]:
    """Read the features of a file, in its order. Names of columns are texts as they are written: 01, yes, 2024-01-02.

    Args:
        url: URL or path of the file.

    Raises:
        ConfigError: the file does not exist, is not YAML, or does not describe features.
        StorageError: the store failed.

    >>> from pathlib import Path
    >>> _ = Path("types.yaml").write_text("features: {pixels: {dtype: uint8, shape: [28, 28]}}")
    >>> read_features("types.yaml")["pixels"].shape
    (28, 28)
    """
    url = validate_url(url, "--schema")
    try:
        with open_file(url) as file:
            data = file.read(_MOST_BYTES + 1)
    except MissingFileError as error:
        raise ConfigError(f"--schema: there is no file {url}; check the path") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{url} has more than {_MOST_BYTES >> 20} MiB, so it is no file for --schema; check the path")
    try:
        tree = load_yaml(data, lambda path: path == ("features",))
    except ValueError as error:
        raise ConfigError(f"{url} is not YAML: {brief(error)}") from error
    return parse_features(tree, url)


def parse_features(tree: object, origin: str) -> dict[str, Feature]:
    """Read features from a parsed document.

    Args:
        tree: ``{"features": {NAME: DTYPE or {"dtype": ..., "shape": [...], "encoding": ...}}}``.
        origin: name of the document in errors, such as its file.

    Raises:
        ConfigError: the document is not of that form; the message says where.

    >>> parse_features({"features": {"zip": "string"}}, "a.yaml")["zip"].dtype
    'string'
    >>> parse_features({"features": {"zip": {"type": "string"}}}, "a.yaml")
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: a.yaml: unknown key 'features.zip.type'; did you mean 'dtype'? The keys are: dtype, shape, encoding
    """  # noqa: E501
    try:
        document: _Document = fit("", tree, _Document, YAML_SCALARS)
        if not document.features:
            raise ConfigError("features must hold NAME: DTYPE, ...; got nothing")
        return {name: _feature(name, entry) for name, entry in document.features.items()}
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _feature(name: str, entry: str | _FeatureKeys) -> Feature:
    keys = _FeatureKeys(dtype=entry) if isinstance(entry, str) else entry
    if keys.dtype not in DTYPES:
        hint = did_you_mean(keys.dtype, DTYPES, f"they are {', '.join(DTYPES)}")
        raise ConfigError(f"features.{name}: there is no dtype {keys.dtype!r}; {hint}")
    if keys.encoding and (keys.encoding, keys.dtype) != ("image", "binary"):
        raise ConfigError(
            f"features.{name}: the only encoding is image, with dtype binary; got {keys.encoding!r} with {keys.dtype}"
        )
    return Feature(name=name, dtype=keys.dtype, shape=keys.shape, encoding=keys.encoding)
