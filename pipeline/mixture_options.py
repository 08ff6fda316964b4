"""The arguments of a `Mixture` as one frozen value, checked as far as that needs no dataset.

Tested in tests/pipeline/test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any

from ringfeed.sharding.common.validation import boolean, mapping, text
from ringfeed.sharding.errors import ConfigError

from .loader_options import LoaderOptions, take_integers
from .order.class_shares import DATASET_TERMS, Balance, parse_balance

ALL_DATASETS = "mixture"
"""The name in `Mixture.stats` of the work done for all datasets together."""

_SET_BY_MIXTURE = {"batch_size", "seed", "rank", "world_size", "streams", "remainder", "sample_keys"}


@dataclass(frozen=True, slots=True, eq=False)
class MixtureOptions:
    """The arguments of a `Mixture`, which documents them. Integers of NumPy become Python's.

    Raises:
        ConfigError: an argument breaks its rule; where it is one of a dataset's, the message names the dataset.
    """

    sources: Mapping[str, Mapping[str, Any]]
    _: KW_ONLY
    batch_size: int
    weights: Balance = "natural"
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    steps_per_epoch: int | None = None
    streams: int | None = None
    sample_keys: bool = False

    def __post_init__(self) -> None:
        for name, arguments in mapping("sources", self.sources, "Loaders' arguments by dataset").items():
            text("the name of a dataset in sources", name)  # states hold it as a JSON key
            mapping(f"dataset {name!r} of the mixture", arguments, "its Loader's arguments")
        if not self.sources:
            raise ConfigError("a mixture needs at least one dataset")
        if ALL_DATASETS in self.sources:
            raise ConfigError(
                f"no dataset of a mixture may be called {ALL_DATASETS!r}: stats() has all of them together under it"
            )
        take_integers(self, batch_size=1, seed=None, rank=None, world_size=None)
        take_integers(self, optional=True, steps_per_epoch=None, streams=1)
        object.__setattr__(self, "sample_keys", boolean("sample_keys", self.sample_keys))
        parse_balance(self.weights, DATASET_TERMS)
        for name, arguments in self.sources.items():
            _check_source(name, arguments)


def _check_source(name: str, arguments: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(LoaderOptions)}
    unknown = [key for key in arguments if key not in known]
    if unknown or "url" not in arguments:
        reason = f"a Loader has no argument {unknown[0]!r}" if unknown else "it has no url"
        raise ConfigError(f"dataset {name!r} of the mixture: {reason}")
    clashes = sorted(set(arguments) & _SET_BY_MIXTURE)
    if clashes:
        raise ConfigError(f"dataset {name!r} of the mixture has its own {clashes[0]}; give it to the mixture instead")
    if arguments.get("bucket_by") is not None:
        raise ConfigError(f"dataset {name!r} of the mixture has a bucket_by, but a mixture's batches hold all lengths")
