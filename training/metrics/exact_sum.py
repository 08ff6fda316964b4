"""Sums without rounding, which do not depend on the order, nor on how samples are spread over batches and ranks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ringfeed.training.ring.ring import Ring

_HALF = 26  # bits: sums of halves of 53-bit mantissas are exact in float64 for up to 2**26 values


def exact_squares(values: npt.ArrayLike) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return squares in two parts: rounded, and what rounding took away; exact unless they leave the range of float64.

    Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik 18 (1971).

    >>> rounded, rest = exact_squares([2.0**27 + 1])
    >>> int(rounded[0]) + int(rest[0]) == (2**27 + 1) ** 2
    True
    """
    numbers = np.asarray(values, np.float64)
    split = numbers * (2.0**27 + 1)
    high = split - (split - numbers)
    low = numbers - high
    rounded = numbers * numbers
    return rounded, ((high * high - rounded) + 2 * high * low) + low * low


class ExactSum:
    """A sum of floats, exact until it is read.

    >>> total = ExactSum()
    >>> for values in ([1e16, 1.0], [-1e16, 1.0]):
    ...     total.add(values)
    >>> float(total.value)
    2.0
    """

    def __init__(self) -> None:
        self._total: Fraction | None = Fraction(0)

    def add(self, values: npt.ArrayLike) -> None:
        """Add up to 2**26 values; the sum is NaN if one is not finite."""
        numbers = np.asarray(values, np.float64).ravel()
        if self._total is None or not np.isfinite(numbers).all():
            self._total = None
            return
        mantissas, exponents = np.frexp(numbers)
        whole = np.ldexp(mantissas, 2 * _HALF + 1).astype(np.int64)
        known, group = np.unique(exponents, return_inverse=True)
        sums = (np.bincount(group, half, len(known)) for half in (whole >> _HALF, whole & ((1 << _HALF) - 1)))
        for exponent, high, low in zip(known.tolist(), *sums, strict=True):
            self._total += ((int(high) << _HALF) + int(low)) * Fraction(2) ** (exponent - 2 * _HALF - 1)

    def reduce(self, ring: Ring) -> None:
        """Add up the sums of all ranks (a collective)."""
        own = None if self._total is None else [str(self._total.numerator), str(self._total.denominator)]
        parts = ring.allgather_object(own)
        self._total = None if None in parts else sum((Fraction(int(n), int(d)) for n, d in parts), Fraction(0))

    @property
    def value(self) -> Fraction | float:
        return float("nan") if self._total is None else self._total
