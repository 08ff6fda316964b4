"""The datasets of a mixture, each as its loader: opened with one number of streams, and held against each other."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from ..sharding.compute.keyed_random import derive_key
from ..sharding.errors import ConfigError, DatasetError
from ..sharding.schema import Feature, Schema
from .loader import Loader
from .order.epoch_order import default_streams
from .select.sample_columns import SOURCE_ID
from .select.selected_columns import check_fill

__all__ = ["common_fill", "common_schema", "name_dataset_in_errors", "open_loaders"]

_OF_THE_MIXTURE = {"batch_size", "seed", "rank", "world_size", "streams", "remainder", "sample_keys"}


def open_loaders(
    sources: Mapping[str, Mapping[str, Any]], batch_size: int, seed: int, streams: int | None
) -> list[Loader]:
    """A loader for each dataset, whose global batch is one sample of each stream.

    Args:
        sources: by a name for each dataset, the arguments of its `Loader`.
        batch_size: of the mixture.
        seed: of the mixture; each loader's own is derived from it and the name.
        streams: of each loader, a divisor of `batch_size`; None: the default of `Mixture`.

    Raises:
        ConfigError: an argument that a `Loader` has not, or that is the mixture's to say, or that a loader refuses; the
            message names the dataset.
        DatasetError: there is no such dataset or split; likewise.
    """
    loaders = {}
    known = inspect.signature(Loader).parameters
    for name, given in sources.items():
        unknown = [key for key in given if key not in known]
        if unknown or "url" not in given:
            reason = f"a Loader has no argument {unknown[0]!r}" if unknown else "it has no url"
            raise ConfigError(f"dataset {name!r} of the mixture: {reason}")
        taken = sorted(set(given) & _OF_THE_MIXTURE)
        if taken:
            raise ConfigError(f"dataset {name!r} of the mixture has its own {taken[0]}, which is the mixture's to say")
        if given.get("bucket_by") is not None:
            raise ConfigError(f"dataset {name!r} of the mixture has a bucket_by, but batches of all hold any lengths")
        with name_dataset_in_errors(name):
            loaders[name] = Loader(**given, batch_size=1, streams=1, seed=derive_key(seed, "mixture", name))
    if streams is None:
        streams = default_streams(batch_size, min(min(each.steps_per_epoch, each.records) for each in loaders.values()))
    made = []
    for name, loader in loaders.items():
        with name_dataset_in_errors(name):
            made.append(loader.with_streams(streams))
    return made


@contextmanager
def name_dataset_in_errors(name: str) -> Iterator[None]:
    """Let an error say which dataset's options it is about."""
    try:
        yield
    except (ConfigError, DatasetError) as error:
        raise type(error)(f"dataset {name!r} of the mixture: {error}") from error


def common_schema(names: Sequence[str], loaders: Sequence[Loader]) -> Schema:
    """The schema of all the datasets.

    Raises:
        ConfigError: they have not one schema, or not all have to be parsed or none.
    """
    first = loaders[0]
    if SOURCE_ID in first.schema.names:
        raise ConfigError(f"a feature is called {SOURCE_ID!r}, a name that mixtures need; rename it and build again")
    for name, loader in zip(names[1:], loaders[1:], strict=True):
        for mine, other in zip_longest(first.schema.features, loader.schema.features):
            if mine != other:
                what = f"{names[0]!r} has {_said(mine)}, {name!r} has {_said(other)}"
                raise ConfigError(f"the datasets of a mixture must have the same features in the same order: {what}")
        if loader.undecoded != first.undecoded:
            raise ConfigError(
                f"{names[0]!r} and {name!r} cannot be mixed: records of one share a layout or are Parquet, those of "
                "the other are examples of various lengths; reshard one to the format of the other"
            )
    return first.schema


def common_fill(sources: Mapping[str, Mapping[str, Any]], loaders: Sequence[Loader]) -> Mapping[str, Any]:
    """What stands for missing values in records of all the datasets, where they are parsed together.

    Raises:
        ConfigError: the datasets do not agree.
    """
    fills = [
        check_fill(loader.manifest.schema, given.get("fill") or {})
        for given, loader in zip(sources.values(), loaders, strict=True)
    ]
    if loaders[0].undecoded and any(fill != fills[0] for fill in fills):
        raise ConfigError("the records of these datasets are parsed together; give all of them the same `fill`")
    return fills[0]


def _said(feature: Feature | None) -> str:
    return "no more features" if feature is None else f"{feature.name!r} of {feature.dtype}{list(feature.shape or ())}"
