"""The arguments of a `Loader` and of a `Mixture` as one frozen value each, checked as far as that needs no dataset.

Tested in tests/pipeline/test_loader_options.py and tests/pipeline/test_mixture.py.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ringfeed.sharding.common.validation import boolean, choice, integer, mapping, text, texts
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.storage import StorageLike

from .fetch.quarantine import OnBadShard
from .fetch.shard_cache import ShardCache
from .order.class_shares import DATASET_TERMS, Balance, EpochLength, parse_balance
from .order.epoch_order import Remainder

if TYPE_CHECKING:
    import pyarrow.compute as pc

ALL_DATASETS = "mixture"
"""The name in `Mixture.stats` of the work done for all datasets together."""
_SET_BY_MIXTURE = {"batch_size", "seed", "rank", "world_size", "streams", "remainder", "sample_keys"}

P = ParamSpec("P")
Self = TypeVar("Self")
Options = TypeVar("Options")


@dataclass(frozen=True, slots=True, eq=False)
class LoaderOptions:
    """The arguments of a `Loader`, which documents them. Integers of NumPy become Python's, and lists tuples.

    Raises:
        ConfigError: an argument breaks its rule, or two do not go together.
    """

    url: StorageLike
    _: KW_ONLY
    split: str = "train"
    batch_size: int
    balance: Balance = "natural"
    epoch_length: EpochLength | None = None
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    remainder: Remainder = "drop"
    shuffle: bool = True
    fill: Mapping[str, Any] | None = None
    masks: Sequence[str] = ()
    streams: int | None = None
    window_shards: int = 1
    fetch_threads: int | None = None
    cache: str | os.PathLike[str] | ShardCache | None = None
    columns: Sequence[str] | None = None
    where: str | pc.Expression | None = None
    sample_keys: bool = False
    bucket_by: str | None = None
    bucket_steps: int = 32
    on_bad_shard: OnBadShard = "raise"
    quarantined: Sequence[str] = ()
    hedging: bool = True
    prefetch_bytes: int | None = None

    def __post_init__(self) -> None:
        take_integers(self, batch_size=1, seed=None, rank=None, world_size=None, window_shards=None, bucket_steps=None)
        take_integers(self, optional=True, streams=None, fetch_threads=1, prefetch_bytes=0)
        for name in ("shuffle", "sample_keys", "hedging"):
            object.__setattr__(self, name, boolean(name, getattr(self, name)))
        object.__setattr__(self, "split", text("split", self.split))
        object.__setattr__(self, "quarantined", texts("quarantined", self.quarantined, "paths"))
        object.__setattr__(self, "masks", texts("masks", self.masks, "names of features"))
        if self.columns is not None:
            object.__setattr__(self, "columns", texts("columns", self.columns, "at least one name"))
        parse_balance(self.balance)
        choice("remainder", self.remainder, ("drop", "pad", "wrap"))
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.balance != "natural" and self.remainder != "drop":
            raise ConfigError(
                f"remainder={self.remainder!r} needs balance='natural': a balanced epoch has no rest to "
                f"{self.remainder}"
            )
        if self.balance != "natural" and not self.shuffle:
            raise ConfigError("shuffle=False needs balance='natural': in the dataset's order, no record comes twice")
        if self.bucket_by is not None and self.remainder == "wrap":
            raise ConfigError(
                "bucket_by needs remainder='drop' or 'pad': which records wrap around would depend on their lengths"
            )


def take_integers(options: object, *, optional: bool = False, **least: int | None) -> None:
    """Make Python integers of fields of a frozen dataclass.

    Args:
        options: the dataclass.
        optional: whether None may stand for an integer.
        least: the smallest value that each field may have, by its name; None for any.

    Raises:
        ConfigError: names a field that holds no integer, or too small a one.
    """
    for name, smallest in least.items():
        value = getattr(options, name)
        if not (optional and value is None):
            object.__setattr__(options, name, integer(name, value, smallest))


def as_arguments(options: Any) -> dict[str, Any]:
    """The fields of an options dataclass by name, not copied; `dataclasses.asdict` would copy caches and stores."""
    return {field.name: getattr(options, field.name) for field in fields(options)}


def flat_arguments(
    options: Callable[P, Options],
) -> Callable[[Callable[[Self, Options], None]], Callable[Concatenate[Self, P], None]]:
    """Decorate an `__init__` that takes an options dataclass, so that callers pass the dataclass's fields instead.

    The fields are declared once, and `help`, `inspect.signature` and type checkers show them as parameters.

    >>> @dataclass
    ... class Size:
    ...     width: int
    ...     height: int = 1
    >>> class Box:
    ...     @flat_arguments(Size)
    ...     def __init__(self, size: Size) -> None:
    ...         self.area = size.width * size.height
    >>> Box(3, height=2).area
    6
    >>> list(inspect.signature(Box).parameters)
    ['width', 'height']
    """

    def decorate(init: Callable[[Self, Options], None]) -> Callable[Concatenate[Self, P], None]:
        @functools.wraps(init)
        def flat(self: Self, /, *args: P.args, **keywords: P.kwargs) -> None:
            init(self, options(*args, **keywords))

        signature = inspect.signature(options)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = [own, *signature.parameters.values()]
        flat.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return flat

    return decorate


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
