"""The verdict on measured trainings, as a pure function of the figures."""

from dataclasses import replace

import pytest

from ringfeed.tools.profile.training_trials import TrainingTrials, Trial
from ringfeed.tools.profile.verdict import FirstBatchTrial, LoaderEpoch, judge


def trial(rate: float, seconds: float = 1.0) -> Trial:
    return Trial(samples=round(rate * seconds), seconds=seconds)


def trials(*, step: float, together: float, transform: float | None = None) -> TrainingTrials:
    return TrainingTrials(
        transform=None if transform is None else trial(transform), input=trial(1.0), step=trial(step),
        together=trial(together), transform_name="my:augment", step_name="my:step",
    )  # fmt: skip


def epoch(rate: float, first: float = 0.0, streams: int = 16) -> LoaderEpoch:
    return LoaderEpoch(samples=100_000, first_batch_seconds=first, samples_per_second=rate, streams=streams)


@pytest.mark.parametrize(
    ("measured", "loader", "bottleneck", "gain", "input_bound"),
    [
        # an epoch of 10 s computing, and hardly any wait
        (trials(step=10_000, together=9_900), epoch(50_000, 0.1), "step", None, 0.02),
        # the epoch takes 12.5 s for the loader, 10 s for the step
        (trials(step=10_000, together=8_000), epoch(8_000), "loader", 1.25, 0.2),
        # loader and step would take 5 s and 10 s, the transform takes 20 s
        (trials(step=10_000, together=5_000, transform=5_000), epoch(20_000), "transform", 2.0, 0.5),
        # as before, but next the loader limits, with 12.5 s
        (trials(step=10_000, together=5_000, transform=5_000), epoch(8_000), "transform", 1.6, 0.5),
        (trials(step=10_000, together=5_000, transform=50_000), epoch(5_000), "loader", 2.0, 0.5),
        # the store brings all in 20 s, most of it before the first batch: that is no matter of the first batch
        (trials(step=10_000, together=50_000), epoch(50_000, 18.0), "loader", 2.0, 0.5),
        # 10 s computing after 5 s for the first batch
        (trials(step=10_000, together=10_000), epoch(50_000, 5.0), "first_batch", 1.5, 1 / 3),
        # each part is fast enough alone
        (trials(step=10_000, together=6_000), epoch(20_000), "cores", 10_000 / 6_000, 0.4),
    ],
)
def test_the_bottleneck_and_its_gain(
    measured: TrainingTrials, loader: LoaderEpoch, bottleneck: str, gain: float | None, input_bound: float
) -> None:
    verdict = judge(measured, loader, "the knob", fewer=None, other_load=0.0)
    assert verdict.bottleneck == bottleneck
    assert verdict.gain == (None if gain is None else pytest.approx(gain))
    assert verdict.input_bound == pytest.approx(input_bound, abs=0.001)
    assert ("not input-bound" in verdict.headline) is (bottleneck == "step")
    assert (verdict.advice == "the knob") is (bottleneck == "loader")


def test_fewer_streams_are_advised_if_they_were_faster() -> None:
    measured, loader = trials(step=10_000, together=10_000), epoch(50_000, 5.0)
    faster = judge(measured, loader, "", fewer=FirstBatchTrial(streams=4, seconds=1.0), other_load=0.0)
    assert "comes after 5.00 s; with --streams 4 (Loader(streams=4)) it came after 1.00 s" in faster.advice
    assert faster.gain == pytest.approx(15 / 11)
    no_faster = judge(measured, loader, "", fewer=FirstBatchTrial(streams=4, seconds=4.5), other_load=0.0)
    assert "--streams" not in no_faster.advice
    assert "smaller shards" in no_faster.advice


def test_what_was_too_short_or_disturbed_is_not_judged() -> None:
    short = replace(trials(step=10_000, together=5_000), step=trial(10_000, 0.1))
    verdict = judge(short, epoch(5_000), "", fewer=None, other_load=0.0)
    assert verdict.headline == "The measurement was too short to judge."
    disturbed = judge(trials(step=10_000, together=5_000), epoch(5_000), "", fewer=None, other_load=0.6)
    assert (disturbed.bottleneck, disturbed.gain) == ("unknown", None)
    assert "Other programs took the cores" in disturbed.headline


def test_utilisation_is_at_most_one() -> None:
    assert trials(step=10_000, together=8_000).utilisation == pytest.approx(0.8)
    assert trials(step=10_000, together=10_100).utilisation == 1.0
