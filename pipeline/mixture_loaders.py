"""The loaders of a mixture's datasets: opened with one number of streams, and compared with each other.

Tested in tests/pipeline/test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.dataset.combined import check_same_features
from ringfeed.sharding.errors import ConfigError, DatasetError
from ringfeed.sharding.schema import Schema

from .loader import Loader
from .loader_options import MixtureOptions
from .order.epoch_order import default_streams
from .select.sample_columns import SOURCE_ID


def open_loaders(options: MixtureOptions) -> list[Loader]:
    """A loader for each dataset, whose global batch is one sample of each stream.

    Raises:
        ConfigError: a loader refuses its arguments; the message names the dataset.
        DatasetError: there is no such dataset or split; the message names the dataset.
    """
    loaders = {}
    for name, arguments in options.sources.items():
        with name_dataset_in_errors(name):
            loaders[name] = Loader(**arguments, batch_size=1, streams=1, seed=derive_key(options.seed, "mixture", name))
    streams = options.streams
    if streams is None:
        fewest = min(min(loader.steps_per_epoch, loader.records) for loader in loaders.values())
        streams = default_streams(options.batch_size, fewest)
    made = []
    for name, loader in loaders.items():
        with name_dataset_in_errors(name):
            made.append(loader.with_streams(streams))
    return made


@contextmanager
def name_dataset_in_errors(name: str) -> Iterator[None]:
    """Make errors raised in the body name the dataset they are about."""
    try:
        yield
    except (ConfigError, DatasetError) as error:
        raise type(error)(f"dataset {name!r} of the mixture: {error}") from error


def common_schema(names: Sequence[str], loaders: Sequence[Loader]) -> Schema:
    """The schema that all datasets share.

    Raises:
        ConfigError: schemas differ, or TensorFlow would have to parse the records of some datasets only.
    """
    first = loaders[0]
    if SOURCE_ID in first.schema.names:
        raise ConfigError(f"a feature is called {SOURCE_ID!r}, a name that mixtures need; rename it and build again")
    check_same_features({name: loader.schema for name, loader in zip(names, loaders, strict=True)})
    for name, loader in zip(names[1:], loaders[1:], strict=True):
        if loader.masks != first.masks:
            raise ConfigError(f"{names[0]!r} and {name!r} cannot be mixed: give all datasets the same `masks`")
        if loader.undecoded != first.undecoded:
            raise ConfigError(
                f"{names[0]!r} and {name!r} cannot be mixed: records of one share a layout or are Parquet, those of "
                "the other are examples of various lengths; reshard one to the format of the other"
            )
    return first.schema


def common_fill(loaders: Sequence[Loader]) -> Mapping[str, Any]:
    """The fill for missing values, by feature, where records of all datasets are parsed together.

    Raises:
        ConfigError: the datasets differ in it.
    """
    fill = loaders[0].fill
    if loaders[0].undecoded and any(loader.fill != fill for loader in loaders):
        raise ConfigError("the records of these datasets are parsed together; give all of them the same `fill`")
    return fill
