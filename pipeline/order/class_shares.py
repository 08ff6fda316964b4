"""What share of each batch a class is to have: as the user says it, and as numbers, epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...sharding.common.validation import integer, number
from ...sharding.errors import ConfigError

__all__ = [
    "CLASS_TERMS",
    "DATASET_TERMS",
    "Balance",
    "EpochLength",
    "Ramp",
    "ShareTerms",
    "Shares",
    "epoch_samples",
    "parse_balance",
    "settled_epoch",
    "target_weights",
]

EpochLength: TypeAlias = int | Literal["oversample", "undersample"]
Shares: TypeAlias = str | Mapping[Any, float]
_POWER, _ARROW = "power:", "->"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTerms:
    """What the shares are of, in the words of errors.

    Attributes:
        argument: that the user gives them by.
        one: of those that share.
        many: of these.
    """

    option: str
    singular: str
    plural: str


CLASS_TERMS = ShareTerms(option="balance", singular="class", plural="classes")
DATASET_TERMS = ShareTerms(option="weights", singular="dataset", plural="datasets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """Shares that move from one target to another, in a straight line, from epoch to epoch.

    Attributes:
        start: of epoch 0.
        end: of epoch `epochs` and all that follow.
        epochs: from the one to the other, at least 1.

    Raises:
        ConfigError: fewer epochs.
    """

    start: Shares
    end: Shares
    epochs: int

    def __post_init__(self) -> None:
        if integer("epochs", self.epochs) < 1:
            raise ConfigError(f"a ramp takes at least 1 epoch, got {self.epochs}")


Balance: TypeAlias = Shares | Ramp | Callable[[int], Shares]
"""What `Loader` takes for ``balance``: a text, a share by class value, a `Ramp`, or a function of the epoch."""


def parse_balance(balance: Balance, terms: ShareTerms = CLASS_TERMS) -> Balance:
    """A ramp where the text ``X->Y:EPOCHS`` stands for one; anything else as it is.

    >>> parse_balance("uniform->natural:5")
    Ramp(start='uniform', end='natural', epochs=5)

    Raises:
        ConfigError: the text is no such thing, or `balance` is of another kind.
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
    """The share of each class in every batch of an epoch, float64 [classes], or None for the natural mix.

    Args:
        balance: ``natural``, ``uniform`` (over the classes that have records), ``power:A`` (share proportional to
            records ** A: 0 is uniform, 1 the natural shares in every batch), a share by class value (classes that
            are not named get none), a `Ramp`, or a function of the epoch that returns one of the others.
        classes: values of the label.
        class_counts: records of each in the split.
        epoch: from 0.
        terms: what errors are to call the classes.

    Raises:
        ConfigError: an unknown word or class, shares that do not add up to 1, or a share for a class without records.
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
    """The first epoch from which on shares stay as they are; of a function, which nobody knows, `epoch`.

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
    """How many samples an epoch has, and whether all of the dataset serves them, some records more often than others.

    Args:
        epoch_length: ``oversample``: as many as it takes to serve each record of each class once; ``undersample``: as
            many as there are with none twice, if records of a class are served evenly; or a number of samples, None for
            as many as there are records.
        balance, classes, class_counts: as for `target_weights`.
        batch_size: of the global batch, to the next whole one of which oversampling goes.

    Returns:
        Samples, None for as many as records; and whether they are spread over the dataset. Else a part of it will do.

    Raises:
        ConfigError: the balance does not go with it.
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
    if not (weights.min() >= 0 and abs(weights.sum() - 1) <= 1e-6):  # nor NaN
        raise ConfigError(f"the shares of {terms.option} must be positive and add up to 1, got {dict(balance)}")
    for value, weight, count in zip(classes, weights, counts, strict=True):
        if weight and not count:
            raise ConfigError(f"{terms.option} asks for {terms.singular} {value!r}, which has no record in this split")
    return np.asarray(weights / weights.sum(), np.float64)


def _power(classes: Sequence[Any], counts: npt.NDArray[Any], exponent: float) -> npt.NDArray[np.float64]:
    if tuple(classes) == (None,):
        raise ConfigError("the dataset has no label, so there are no classes to balance; use balance='natural'")
    there = counts > 0
    weights = np.where(there, np.where(there, counts, 1) ** float(exponent), 0.0)
    return np.asarray(weights / weights.sum(), np.float64)


def _not_shares(balance: object, terms: ShareTerms) -> ConfigError:
    given = " ".join(repr(balance).split())  # an array's has several lines
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
