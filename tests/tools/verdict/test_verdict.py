"""The verdict on measured trainings (`verdict`), and what a knob would bring (`predictions`): functions of figures."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfeed.tools.measure.estimates import Estimate, estimate, ratio
from ringfeed.tools.measure.part_trials import OpenTrial, WarmTrial
from ringfeed.tools.measure.slow_records import SlowRecord, SlowRecords
from ringfeed.tools.measure.store_trial import StoreTrial
from ringfeed.tools.measure.trial import Trial
from ringfeed.tools.predict.gains import MeasuredEpoch, expected_gain
from ringfeed.tools.predict.settings import LoaderFacts, LoaderTrials
from ringfeed.tools.verdict.conclusion import confirmed_limit, rest_of_loader
from ringfeed.tools.verdict.verdict import LIMITS, Verdict, judge

SAMPLES = 100_000
SLOW = SlowRecords(records=(SlowRecord(shard="a", record=3, seconds=0.5),), batch_seconds=0.01, share=0.6)


def exact(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def epoch(
    *, step: float, together: float, loader: float, transform: float | None = None, first: float = 0.0
) -> MeasuredEpoch:
    return MeasuredEpoch(
        samples=SAMPLES,
        first_batch_seconds=first,
        loader=exact(loader),
        loader_seconds=first + SAMPLES / loader,
        transform=None if transform is None else exact(transform),
        step=exact(step),
        together=exact(together),
        waiting=max(1 - together / step, 0.0),
    )


def judged(figures: MeasuredEpoch, **measured: float) -> Verdict:
    given = {"seconds": 3.0, "cpu_share": 1.0} | measured
    figures = replace(figures, disturbed=given.pop("disturbed", 0.0))
    return judge(figures, loader_limit="store_bandwidth", **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figures", "bottleneck", "gain", "input_bound", "next_limit"),
    [
        # an epoch of 10 s computing, and hardly any wait
        (epoch(step=10_000, together=9_900, loader=50_000, first=0.1), "step", None, 0.02, "store_bandwidth"),
        # the loader is hardly faster
        (epoch(step=10_000, together=9_900, loader=11_000), "none", None, 0.01, "store_bandwidth"),
        # the epoch takes 12.5 s for the loader, 10 s for the step
        (epoch(step=10_000, together=8_000, loader=8_000), "store_bandwidth", 1.25, 0.2, "step"),
        # loader and step would take 5 s and 10 s, the transform takes 20 s
        (epoch(step=10_000, together=5_000, transform=5_000, loader=20_000), "transform", 2.0, 0.5, "step"),
        # as before, but next the loader limits, with 12.5 s
        (epoch(step=10_000, together=5_000, transform=5_000, loader=8_000), "transform", 1.6, 0.5, "store_bandwidth"),
        (epoch(step=10_000, together=5_000, transform=50_000, loader=5_000), "store_bandwidth", 2.0, 0.5, "step"),
        # the store brings all in 20 s, most of it before the first batch: that is no matter of the first batch
        (epoch(step=10_000, together=50_000, loader=50_000, first=18.0), "store_bandwidth", 2.0, 0.5, "step"),
        # 10 s computing after 5 s for the first batch
        (epoch(step=10_000, together=10_000, loader=50_000, first=5.0), "shuffle_fill", 1.5, 1 / 3, "step"),
        # each part is fast enough alone
        (epoch(step=10_000, together=6_000, loader=20_000), "cores", 10_000 / 6_000, 0.4, "step"),
    ],
)
def test_the_bottleneck_and_its_gain(
    figures: MeasuredEpoch, bottleneck: str, gain: float | None, input_bound: float, next_limit: str
) -> None:
    verdict = judged(figures)
    assert verdict.bottleneck == bottleneck
    assert (verdict.gain and verdict.gain.value) == (None if gain is None else pytest.approx(gain))
    assert verdict.input_bound == pytest.approx(input_bound, abs=0.001)
    assert verdict.next_limit == next_limit
    assert ("not input-bound" in verdict.headline) is (bottleneck in ("step", "none"))


def test_parts_that_wait_for_each_other_with_free_cores_are_the_frameworks() -> None:
    figures = epoch(step=10_000, together=6_000, loader=20_000)
    assert judged(figures, cpu_share=0.5, lock_held=0.6).bottleneck == "framework_overhead"


def test_a_wait_that_nothing_explains_is_not_given_a_name() -> None:
    figures = epoch(step=10_000, together=6_000, loader=20_000)
    verdict = judged(figures, cpu_share=0.06, lock_held=0.01)
    assert (verdict.bottleneck, verdict.gain) == ("unknown", None)
    assert verdict.input_bound == pytest.approx(0.4)  # though the wait is said
    assert "neither the cores nor Python's lock explain the wait" in verdict.advice
    assert judged(figures, cpu_share=0.06, other_load=0.95).bottleneck == "unknown"  # cores that others have
    assert judged(figures, cpu_share=0.5, other_load=0.5).bottleneck == "cores"


def test_a_step_far_slower_than_its_input_is_the_limit_whatever_is_lost_beside_it() -> None:
    figures = replace(epoch(step=10_000, together=9_200, loader=500_000), waiting=0.01)
    verdict = judged(figures, cpu_share=0.2)
    assert (verdict.bottleneck, verdict.headroom) == ("step", pytest.approx(50))


def test_the_share_of_input_is_the_wait_that_was_measured() -> None:
    figures = replace(epoch(step=10_000, together=7_000, loader=7_100), waiting=0.31)
    assert judged(figures).input_bound == pytest.approx(0.3, abs=0.01)


def test_without_the_store_the_loaders_next_part_limits() -> None:
    figures = replace(epoch(step=1e6, together=1_000, loader=1_000), rest={"hand_over": exact(12_000)})
    verdict = judged(figures)
    assert (verdict.bottleneck, verdict.next_limit) == ("store_bandwidth", "hand_over")
    assert verdict.next_samples_per_second == pytest.approx(12_000)
    assert verdict.gain is not None
    assert verdict.gain.value == pytest.approx(12.0)


def test_a_gain_that_the_measurements_cannot_tell_is_not_given() -> None:
    figures = replace(
        epoch(step=10_000, together=5_000, loader=5_000), together=Estimate(value=5_000, low=600, high=60_000)
    )
    verdict = judged(figures)
    assert (verdict.bottleneck, verdict.gain, verdict.next_limit) == ("store_bandwidth", None, "step")


@pytest.mark.parametrize(
    ("limit", "following", "rate"),
    [
        ("store_bandwidth", "hand_over", 9_000),  # as with the shards at hand
        ("decode", "store_bandwidth", 3_000),
        ("hand_over", "store_bandwidth", 3_000),
        ("shuffle_fill", "hand_over", 5_000),
    ],
)
def test_what_limits_a_loader_next_is_the_slowest_of_its_other_parts(limit: str, following: str, rate: float) -> None:
    figures = epoch(step=1, together=1, loader=5_000)
    facts = Mock(record_bytes=100.0)
    store = StoreTrial(latency_seconds=0.01, bytes_per_second={1: 3e5}, sizes={}, read_seconds=())
    parts = LoaderTrials(
        store=store, warm=WarmTrial(first_batch_seconds=0.0, rate=exact(9_000), steps=9, cached=True),
        hand_over=Trial(samples=10_000, seconds=1.0), opening=OpenTrial(verify=1e6, decode=50_000, shards=3),
    )  # fmt: skip
    ((name, estimate),) = rest_of_loader(limit, figures, facts, parts).items()
    assert (name, estimate.value) == (following, pytest.approx(rate))


def test_slow_records_are_blamed_for_what_no_part_explains() -> None:
    figures = epoch(step=10_000, together=3_000, transform=20_000, loader=20_000)
    verdict = judge(figures, loader_limit="decode", seconds=3.0, slow=SLOW)
    assert verdict.bottleneck == "slow_records"
    assert verdict.gain is not None
    assert verdict.gain.value == pytest.approx(2.5)  # 33 s without their 60 %
    fed = epoch(step=1_000, together=1_000, transform=20_000, loader=20_000)
    assert judge(fed, loader_limit="decode", seconds=3.0, slow=SLOW).bottleneck == "step"


def test_a_slow_transform_of_ours_is_decoding() -> None:
    figures = epoch(step=10_000, together=5_000, transform=5_000, loader=20_000)
    assert judge(figures, loader_limit="x", seconds=3.0, decodes=True).bottleneck == "decode"


def test_what_was_too_short_or_disturbed_is_not_judged() -> None:
    figures = epoch(step=10_000, together=5_000, loader=5_000)
    short, disturbed = judged(figures, seconds=0.1), judged(figures, disturbed=0.6)
    assert (short.bottleneck, short.gain) == (disturbed.bottleneck, disturbed.gain) == ("unknown", None)
    assert short.headline == "The measurement was too short to judge."
    assert "Other programs took the cores" in disturbed.headline
    slow_step = epoch(step=10_000, together=9_900, loader=50_000, first=0.1)
    assert judged(slow_step, disturbed=0.6, cpu_share=0.1).bottleneck == "step"  # which takes no core that others hold
    assert judged(slow_step, disturbed=0.6).bottleneck == "unknown"


rates = st.floats(10, 1e7)


@given(step=rates, loader=rates, transform=st.none() | rates, slowdown=st.floats(1, 10), first=st.floats(0, 100))
def test_every_verdict_is_consistent(
    step: float, loader: float, transform: float | None, slowdown: float, first: float
) -> None:
    together = min(rate for rate in (step, loader, transform) if rate is not None) / slowdown
    figures = epoch(step=step, together=together, loader=loader, transform=transform, first=first)
    verdict = judged(figures)
    assert verdict.bottleneck in LIMITS
    assert 0 <= verdict.input_bound <= 1
    assert (verdict.bottleneck == "step") <= (verdict.input_bound < 0.05)
    assert (verdict.input_bound < 0.05) <= (verdict.bottleneck in ("step", "none"))
    assert (verdict.gain is None) is (verdict.bottleneck in ("step", "none"))
    if verdict.gain is not None:
        assert verdict.gain.value >= 1 - 1e-9
        assert figures.seconds / verdict.gain.value >= SAMPLES / step * (1 - 1e-9)  # nothing is faster than the step


@given(step=rates, loader=rates, first=st.floats(0, 100), faster=st.floats(1, 100), sooner=st.floats(0, 1))
def test_a_knob_never_gains_more_than_the_step_allows(
    step: float, loader: float, first: float, faster: float, sooner: float
) -> None:
    figures = epoch(step=step, together=min(step, loader), loader=loader, first=first)
    gain = expected_gain(
        figures, {}, "", first_batch_seconds=first * sooner, memory_bytes=0,
        seconds=exact(figures.loader_seconds / faster),
    ).gain  # fmt: skip
    assert gain is not None  # all figures are exact
    assert gain.low <= gain.value <= gain.high
    assert 1 - 1e-9 <= gain.value <= figures.seconds / (SAMPLES / step) * (1 + 1e-9)


@given(st.lists(rates, min_size=2, max_size=10))
def test_an_interval_holds_its_value_and_shrinks_with_more_windows(measured: list[float]) -> None:
    few, many = estimate(5.0, measured), estimate(5.0, measured * 4)
    assert 0 < few.low <= few.value <= few.high
    assert many.high - many.low <= few.high - few.low + 1e-9


def test_a_ratio_spreads_more_than_its_parts() -> None:
    part = Estimate(value=2.0, low=1.8, high=2.2)
    both = ratio(part, part)
    assert both.value == 1.0
    assert both.low < 0.9
    assert both.high > 1.1
    assert ratio(part, exact(2.0)).low == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("decode", "first", "windows", "limit"),
    [
        (10_000_000, 2.0, 8, "shuffle_fill"),  # of 3 s, though the loader decodes 300 times as fast
        (40_000, 2.0, 8, "decode"),  # it waits for what is decoded
        (10_000_000, 0.1, 8, "decode"),  # no wait explains it better
        (10_000_000, 2.0, 4, "shuffle_fill"),
        (10_000_000, 2.0, 3, "decode"),  # less than half of the shards: the windows do not explain 2 of 3 s
    ],
)
def test_a_part_that_is_far_faster_than_the_loader_is_not_its_limit(
    decode: float, first: float, windows: int, limit: str
) -> None:
    figures = epoch(step=1, together=1, loader=100_000, first=first)
    parts = LoaderTrials(opening=OpenTrial(verify=1e9, decode=decode, shards=1))
    facts = LoaderFacts(
        streams=windows, local_streams=windows, threads=4, shards=8, shard_bytes=1e5,
        window_bytes=1e5, epoch_bytes=8e5, record_bytes=8.0, batch_size=64, local_batch_size=64,
        is_local=True, has_cache=False, fetch_bytes_per_second=1e6,
    )  # fmt: skip
    assert confirmed_limit("decode", figures, facts, parts) == limit
    assert confirmed_limit("store_bandwidth", figures, facts, parts) == "store_bandwidth"
