"""The time of a profile is shared out, and kept (tools/profile/procedure.py)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.tools.profile.procedure import Budget

parts = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.5, 8), min_size=1)


@given(parts, st.floats(0.1, 100))
def test_parts_that_keep_to_their_time_have_all_of_it(weights: dict[str, float], seconds: float) -> None:
    budget, given = Budget(seconds, weights), 0.0
    for part in weights:
        given += (share := budget.share(part))
        budget.spend(part, share)
    assert given == pytest.approx(seconds)


@given(parts, st.floats(0.1, 100), st.floats(1, 3))
def test_what_one_part_takes_longer_the_later_ones_have_less(
    weights: dict[str, float], seconds: float, longer: float
) -> None:
    budget, taken = Budget(seconds, weights), 0.0
    first = next(iter(weights))
    for part in weights:
        own = budget.share(part) * (longer if part == first else 1)
        budget.spend(part, own)
        taken += own
    fair = seconds * weights[first] / sum(weights.values())
    assert taken <= max(seconds, longer * fair + 0.2 * seconds) + 1e-6
