"""The share of each class in a batch: parsed from an option, and as numbers for each epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ringfeed.sharding.common.validation import integer, number
from ringfeed.sharding.errors import ConfigError

EpochLength: TypeAlias = int | Literal["oversample", "undersample"]
Shares: TypeAlias = str | Mapping[Any, float]
_POWER, _ARROW = "power:", "->"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTerms:
    """The words of error messages about shares."""

    option: str  # option with the shares
    singular: str  # one of the things that have shares
    plural: str
    needs_all: bool = False  # whether each must have a share; else those left out have 0


CLASS_TERMS = ShareTerms(option="balance", singular="class", plural="classes")
DATASET_TERMS = ShareTerms(option="weights", singular="dataset", plural="datasets", needs_all=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Shares that move linearly from one target to another over some epochs.

    Attributes:
        start: shares of epoch 0.
        end: shares from epoch `epochs` on.
        epochs: epochs from `start` to `end`, at least 1.

    Raises:
        ConfigError: `epochs` is below 1.

    >>> from ringfeed.pipeline import Loader
    >>> loader = Loader("flights", batch_size=64, balance=Ramp(start="uniform", end="natural", epochs=10))
    >>> [loader.plan(epoch).class_mix["late"].samples / 320 for epoch in (0, 10)]
    [0.5, 0.125]
    """

    start: Shares
    end: Shares
    epochs: int

    def __post_init__(self) -> None:
        if integer("epochs", self.epochs) < 1:
            raise ConfigError(f"a ramp takes at least 1 epoch, got {self.epochs}")


Balance: TypeAlias = Shares | Ramp | Callable[[int], Shares]
"""Values of the option ``balance``: a text, a share by class value, a `Ramp`, or a function of the epoch."""


def parse_balance(balance: Balance, terms: ShareTerms = CLASS_TERMS) -> Balance:
    """Return the ramp that the text ``X->Y:EPOCHS`` denotes; any other balance unchanged.

    >>> parse_balance("uniform->natural:5")
    Ramp(start='uniform', end='natural', epochs=5)

    Raises:
        ConfigError: `balance` has the wrong type, or its ramp no epochs.
    """
    if not isinstance(balance, str | Mapping | Ramp) and not callable(balance):
        raise _not_shares(balance, terms)
    if not isinstance(balance, str) or _ARROW not in balance:
        return balance
    start, _, rest = balance.partition(_ARROW)
    end, colon, epochs = rest.rpartition(":")
    if not colon or not epochs.strip().isdecimal():
        raise ConfigError(f"{terms.option} {balance!r} does not say over how many epochs, as in 'uniform->natural:10'")
    return Ramp(start=start.strip(), end=end.strip(), epochs=int(epochs))


def target_weights(
    balance: Balance,
    classes: Sequence[Any],
    class_counts: Sequence[int],
    epoch: int = 0,
    terms: ShareTerms = CLASS_TERMS,
) -> npt.NDArray[np.float64] | None:
    """Return the share of each class in every batch of an epoch, float64 [classes]; None for the natural mix.

    Args:
        balance: ``natural``, ``uniform`` (over the classes that have records), ``power:A`` (share proportional to
            records ** A: 0 is uniform, 1 the natural shares in every batch), a weight by class value (others get none,
            but each dataset needs one; the weights are scaled to add up to 1), a `Ramp`, or a function of the epoch
            that returns one of the others.
        classes: values of the label.
        class_counts: records of each class in the split.
        epoch: number of the epoch, from 0.
        terms: words of error messages.

    Raises:
        ConfigError: a word or class is unknown, a dataset has no weight, a weight is negative or all are 0, or a class
            with a weight has no records.

    >>> target_weights({"a": 1, "b": 3}, ("a", "b", "c"), (10, 10, 10)).tolist()
    [0.25, 0.75, 0.0]
    """
    if callable(balance):
        return target_weights(parse_balance(balance(epoch), terms), classes, class_counts, epoch, terms)
    counts = np.asarray(class_counts)
    if not isinstance(balance, Ramp):
        return _shares(balance, classes, counts, terms)
    if epoch >= balance.epochs:
        return _shares(balance.end, classes, counts, terms)
    start, end = (
        _power(classes, counts, 1.0) if shares is None else shares
        for shares in (_shares(side, classes, counts, terms) for side in (balance.start, balance.end))
    )
    return np.asarray(start + (end - start) * (epoch / balance.epochs), np.float64)


def settled_epoch(balance: Balance, epoch: int) -> int:
    """Return the epoch from which shares are constant; for a function, which may never settle, `epoch`.

    >>> settled_epoch("uniform", 9), settled_epoch(Ramp(start="uniform", end="natural", epochs=5), 9)
    (0, 5)
    """
    if isinstance(balance, Ramp):
        return balance.epochs
    return epoch if callable(balance) else 0


def epoch_samples(
    epoch_length: EpochLength | None,
    balance: Balance,
    classes: Sequence[Any],
    class_counts: Sequence[int],
    batch_size: int,
) -> tuple[int | None, bool]:
    """Return the samples of an epoch, and whether they are spread over the whole dataset.

    Args:
        epoch_length: ``oversample``: as many samples as it takes to serve each record of each class once;
            ``undersample``: as many as there are without serving a record twice; a number; or None for the number of
            records.
        balance, classes, class_counts: as for `target_weights`.
        batch_size: size of the global batch; oversampling rounds up to a multiple of it.

    Returns:
        Samples, None for the number of records; and whether to spread them. If not, an epoch may read only a part of
        the dataset.

    Raises:
        ConfigError: the length has the wrong type, or does not fit the balance.
    """
    if epoch_length is None:
        return None, False
    if isinstance(epoch_length, int | np.integer):
        samples = integer("epoch_length", epoch_length)
        return samples, balance != "natural" and samples > sum(class_counts)
    given: object = epoch_length
    if not isinstance(given, str) or given not in ("oversample", "undersample"):
        raise ConfigError(f"epoch_length must be an integer, 'oversample' or 'undersample', got {epoch_length!r}")
    if callable(balance) or isinstance(balance, Ramp):
        raise ConfigError(f"epoch_length={epoch_length!r} needs one balance for all epochs; give a number instead")
    weights = target_weights(balance, classes, class_counts)
    if weights is None:
        raise ConfigError(f"epoch_length={epoch_length!r} needs a balance; in natural order each record comes once")
    lengths = np.asarray(class_counts)[weights > 0] / weights[weights > 0]
    if epoch_length == "undersample":
        return int(lengths.min() + 1e-6), True
    if lengths.max() >= 1 << 63:
        raise ConfigError("an epoch must have fewer than 2**63 samples; give epoch_length a number")
    return int(np.ceil(lengths.max() / batch_size - 1e-9)) * batch_size, True


def _shares(
    balance: Shares, classes: Sequence[Any], counts: npt.NDArray[Any], terms: ShareTerms
) -> npt.NDArray[np.float64] | None:
    if not isinstance(balance, str | Mapping):
        raise _not_shares(balance, terms)
    if balance == "natural":
        return None
    if balance == "uniform":
        return _power(classes, counts, 0.0)
    if isinstance(balance, str):
        return _power(classes, counts, _exponent(balance, terms))
    unknown = [value for value in balance if value not in classes]
    if unknown:
        known = ", ".join(map(repr, classes[:20]))
        raise ConfigError(
            f"{terms.option}: there is no {terms.singular} {unknown[0]!r}; the {terms.plural} are: {known}"
        )
    shares = {value: number(f"the share of {value!r} in {terms.option}", share) for value, share in balance.items()}
    weights = np.array([shares.get(value, 0.0) for value in classes])
    if not (weights.min() >= 0 and 0 < weights.sum() < np.inf):  # nor NaN
        raise ConfigError(
            f"the shares of {terms.option} must be numbers from 0 up, and one of them above 0, got {dict(balance)}"
        )
    omitted = [value for value in classes if value not in shares]
    if omitted and terms.needs_all:
        raise ConfigError(
            f"{terms.option} has no share for the {terms.singular} {omitted[0]!r}; give it one, or 0 to serve none"
        )
    for value, weight, count in zip(classes, weights, counts, strict=True):
        if weight and not count:
            raise ConfigError(f"{terms.option} asks for {terms.singular} {value!r}, which has no record in this split")
    return np.asarray(weights / weights.sum(), np.float64)


def _power(classes: Sequence[Any], counts: npt.NDArray[Any], exponent: float) -> npt.NDArray[np.float64]:
    if tuple(classes) == (None,):
        raise ConfigError("the dataset has no label, so there are no classes to balance; use balance='natural'")
    present = counts > 0
    weights = np.where(present, np.where(present, counts, 1) ** float(exponent), 0.0)
    return np.asarray(weights / weights.sum(), np.float64)


def _not_shares(balance: object, terms: ShareTerms) -> ConfigError:
    given = " ".join(repr(balance).split())  # the repr of an array has several lines
    return ConfigError(
        f"{terms.option} must be 'natural', 'uniform', 'power:A', 'X->Y:EPOCHS' or a share by {terms.singular}, "
        f"got {given}"
    )


def _exponent(balance: str, terms: ShareTerms) -> float:
    if not balance.startswith(_POWER):
        raise _not_shares(balance, terms)
    try:
        exponent = float(balance.removeprefix(_POWER))
    except ValueError:
        exponent = np.nan
    if not 0 <= exponent <= 1:
        raise ConfigError(f"the exponent of {balance!r} must lie between 0 (uniform) and 1 (the natural shares)")
    return exponent
