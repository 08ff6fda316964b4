"""Bottlenecks made on purpose: the profile names each of them right.

`collective` and straggling ranks take several ranks, which runs on their own are profiled for.
"""

from pathlib import Path

import pytest

from ringfeed.tools.verdict.verdict import LIMITS
from tests.helpers.bottlenecks import CASES

RUNS = 10
MOST_OWN = 0.01  # of the loader's time, that measuring it takes
SHORT = ("one slow record", "small batches", "gzip", "too short")
"""Those that other tests of profiles do not make, and that are quickly told."""
UNPROVOKED = {"cache", "planning"}
"""A disk slower than a store, and a balance that takes longer to plan than to read."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bottlenecks")


def test_every_class_has_a_case() -> None:
    assert {case.expected for case in CASES.values()} == LIMITS.keys() - UNPROVOKED


@pytest.mark.parametrize("name", SHORT)
def test_a_bottleneck_is_named(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfeed.tools.measure.other_load.LoadClock.disturbed", lambda _: 0.0)  # other tests
    case = CASES[name]
    result = case.profile(folder)
    assert result.verdict.bottleneck == case.expected, str(result)
    assert f"bottleneck: {case.expected}" in str(result).splitlines()[-1]
    if case.expected == "slow_records":
        assert result.slow is not None
        assert [record.shard.endswith(".tfrecord") for record in result.slow.records] == [True]
        assert result.slow.records[0].seconds == pytest.approx(0.3, rel=0.3)


@pytest.mark.campaign
@pytest.mark.parametrize("name", CASES)
def test_a_bottleneck_is_named_each_time(folder: Path, name: str) -> None:
    named = [CASES[name].profile(folder) for _ in range(RUNS)]
    wrong = [str(result) for result in named if result.verdict.bottleneck != CASES[name].expected]
    assert not wrong, wrong[0]
    assert max(result.own_share for result in named) < MOST_OWN
