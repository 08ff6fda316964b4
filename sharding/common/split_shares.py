"""Shares of splits that add up to exactly 1, from shares that were rounded."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

_ROUNDING = Fraction(1, 10**6)  # 0.2 of 32 bits differs by 3e-9; thirds may be typed with six digits
_SIMPLE = 10_000  # largest denominator of the shares that people mean


def exact_shares(shares: Mapping[str, Fraction]) -> dict[str, Fraction]:
    """Undo the rounding of shares, such as those that Python computes for ``1 - 0.8`` and ``2 / 3``.

    Raises:
        ValueError: there is no share, one is not positive, or their sum differs from 1 by more than rounding.

    >>> exact_shares({"train": Fraction("0.8"), "test": Fraction(str(1 - 0.8))})["test"]
    Fraction(1, 5)
    """
    total = sum(shares.values(), Fraction(0))
    if not shares or min(shares.values()) <= 0 or abs(total - 1) > _ROUNDING:
        listed = ", ".join(f"{name}={float(share):.10g}" for name, share in shares.items())
        raise ValueError(
            f"the shares of the splits must be positive and add up to 1, got {listed}, which add up to "
            f"{float(total):.10g}"
        )
    if total == 1:
        return dict(shares)
    simple = {name: share.limit_denominator(_SIMPLE) for name, share in shares.items()}
    if sum(simple.values()) == 1 and all(abs(simple[name] - share) <= _ROUNDING for name, share in shares.items()):
        return simple
    return {name: share / total for name, share in shares.items()}
