"""What a profile concludes, and that its text, page, JSON and plots say the same, whatever was measured."""

import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ringfeed.tools.measure.costs import Costs, StoreCosts
from ringfeed.tools.measure.dataset_shape import DatasetShape
from ringfeed.tools.measure.estimates import Estimate, exactly
from ringfeed.tools.measure.part_trials import OpenTrial, WarmTrial
from ringfeed.tools.measure.slow_records import SlowRecord, SlowRecords
from ringfeed.tools.measure.store_trial import StoreTrial
from ringfeed.tools.measure.training_trials import TrainingTrials
from ringfeed.tools.measure.trial import Trial
from ringfeed.tools.predict.gains import MeasuredEpoch
from ringfeed.tools.predict.settings import LoaderFacts, LoaderSimulation, LoaderTrials
from ringfeed.tools.predict.setup import Setup
from ringfeed.tools.report import plots
from ringfeed.tools.report.profile_result import Profile
from ringfeed.tools.verdict.bottleneck import Knob, StageProfile
from ringfeed.tools.verdict.conclusion import Measured, conclude
from ringfeed.tools.verdict.verdict import LIMITS

SAMPLES, SECONDS = 100_000, 2.0
INTERVAL = re.compile(r"([\d.]+) x \(([\d.]+) to ([\d.]+)\)")
LOADER_LIMITS = ("store_latency", "store_bandwidth", "too_few_fetches", "verification", "decode", "hand_over", "cache")
rates = st.floats(50, 1e6)


def trial(rate: float, *, wait: float = 0.0, cpu: float = 0.0) -> Trial:
    return Trial(samples=int(rate * SECONDS) or 1, seconds=SECONDS, wait_seconds=wait, cpu_seconds=cpu)


@st.composite
def trainings(draw: st.DrawFn, loader: float) -> TrainingTrials:
    """A step, and perhaps a transform, behind a loader of some rate."""
    step, transform = draw(rates), draw(st.none() | rates)
    rate = min(step, loader, transform or loader) / draw(st.floats(1, 3))
    waiting = draw(st.floats(0, max(1 - rate / step, 0)))
    return TrainingTrials(
        transform=None if transform is None else trial(transform), input=None, step=trial(step),
        together=trial(rate, wait=waiting * SECONDS, cpu=draw(st.floats(0, 8))), lock_held=draw(st.floats(0, 1)),
        transform_name="prepare", step_name="train",
    )  # fmt: skip


@st.composite
def simulations(draw: st.DrawFn, store: StoreTrial) -> LoaderSimulation:
    """What the simulator is told of a loader of a few shards, local or from a store."""
    shape = DatasetShape(records=np.full(8, 40), data_bytes=np.full(8, 10**5), index_bytes=np.full(8, 400))
    local = StoreCosts(is_local=True)
    remote = StoreCosts(latency_seconds=(store.latency_seconds,), bytes_per_second=store.best_bytes_per_second)
    seconds = st.floats(1e-7, 1e-3)
    costs = Costs(
        store=draw(st.sampled_from([local, remote])), byte_seconds=(draw(seconds) / 100,), gather_seconds=draw(seconds),
        handover_seconds=draw(seconds), start_seconds=draw(seconds),
    )  # fmt: skip
    return LoaderSimulation(shape=shape, costs=costs, setup=Setup(batch_size=32, streams=8, cores=2))


@st.composite
def measurements(draw: st.DrawFn) -> Measured:
    """Any measurements, of a loader alone or with a step, local or from a store."""
    loader, first, spread = draw(rates), draw(st.floats(0.001, 20)), draw(st.floats(1, 8))
    is_local, limit = draw(st.booleans()), draw(st.sampled_from(LOADER_LIMITS))
    training = draw(st.none() | trainings(loader))
    transform = None if training is None or training.transform is None else training.transform.estimate
    figures = MeasuredEpoch(
        samples=SAMPLES, first_batch_seconds=first, loader_seconds=first + SAMPLES / loader,
        loader=Estimate(value=loader, low=loader / spread, high=loader * spread), transform=transform,
        step=None if training is None else training.step.estimate,
        together=None if training is None else training.together.estimate,
        waiting=0.0 if training is None else training.together.wait_seconds / SECONDS,
    )  # fmt: skip
    store = StoreTrial(
        latency_seconds=draw(st.floats(0.001, 0.3)), bytes_per_second={1: 50 * draw(rates), 8: 100 * draw(rates)},
        sizes={}, read_seconds=(0.1, 0.2),
    )  # fmt: skip
    warm = WarmTrial(first_batch_seconds=first / 2, rate=exactly(draw(rates)), steps=9, cached=not is_local)
    slow = SlowRecords(
        records=(SlowRecord(shard="a", record=3, seconds=0.5),), batch_seconds=0.1, share=draw(st.floats(0, 1))
    )
    return Measured(
        figures=figures,
        facts=LoaderFacts(
            streams=8, local_streams=8, threads=4, shards=64, shard_bytes=1e5, window_bytes=1e5,
            epoch_bytes=6.4e6, record_bytes=64.0, batch_size=64, local_batch_size=64,
            is_local=is_local, has_cache=draw(st.booleans()), fetch_bytes_per_second=1e6,
        ),
        parts=LoaderTrials(
            store=None if is_local else store, warm=draw(st.sampled_from([None, warm])), hand_over=trial(draw(rates)),
            opening=OpenTrial(verify=draw(rates), decode=draw(rates), shards=3),
        ),
        simulation=draw(simulations(store)),
        training=training,
        slow=slow if transform is not None and draw(st.booleans()) else None,
        knob=Knob(
            limit=limit, text="this is the limit: try --batch-size 128",
            options=draw(st.sampled_from([{}, {"batch_size": 128}])),
        ),
        seconds=draw(st.sampled_from([0.1, 3.0])), disturbed=draw(st.sampled_from([0.0, 0.0, 0.9])),
        other_load=draw(st.floats(0, 1)), decodes=draw(st.booleans()),
    )  # fmt: skip


def profile_of(measured: Measured) -> Profile:
    figures, verdict = conclude(measured)
    stages = (("fetch", 1.0), ("gather", 0.5), ("deliver", 0.0))
    return Profile(
        url="flights", split="train", batch_size=64, balance="natural", rank=0, world_size=1, steps=99, samples=6336,
        seconds=SECONDS, first_batch_seconds=figures.first_batch_seconds, samples_per_second=figures.loader.value,
        epoch_seconds=figures.loader_seconds, epoch_samples_per_second=SAMPLES / figures.loader_seconds,
        bytes_per_second=1e6, stored_bytes=64.0, slowest_stage="fetch", loader_advice=measured.knob.text, options={},
        stages=tuple(
            StageProfile(
                name=name, items=1, bytes=1, busy_seconds=busy, work_seconds=busy, wait_seconds=0.0, share=busy
            )
            for name, busy in stages
        ),
        verdict=verdict, parts=measured.parts, training=measured.training, slow=measured.slow,
    )  # fmt: skip


@given(measurements())
@settings(max_examples=300, deadline=None)
def test_a_profile_never_contradicts_itself(measured: Measured) -> None:
    result = profile_of(measured)
    verdict, text = result.verdict, str(result)
    first, last = text.splitlines()[0], text.splitlines()[-1]
    assert verdict.bottleneck in LIMITS
    assert first.startswith(verdict.headline)
    assert last.startswith(f"bottleneck: {verdict.bottleneck}")
    assert json.loads(json.dumps(asdict(result)))["verdict"]["bottleneck"] == verdict.bottleneck
    assert f"<b>bottleneck: {verdict.bottleneck}" in result.html()
    if verdict.bottleneck not in ("step", "none", "unknown"):
        assert ("No option of the loader is expected" in last) is (verdict.knob is None)
    if verdict.knob is None:
        assert "--batch-size" not in last or not measured.knob.options
    if "input-bound" in verdict.headline:
        assert ("not input-bound" in verdict.headline) is (verdict.input_bound < 0.05)
        assert ("highly" in verdict.headline) is (verdict.input_bound >= 0.2)
        waited = float(re.findall(r"([\d.]+)%", verdict.headline)[0])
        assert waited == pytest.approx(100 * verdict.input_bound, abs=0.51)
    if verdict.bottleneck == "framework_overhead":
        assert measured.training is not None
        assert measured.training.lock_held > 0.3
    if verdict.bottleneck == "none":
        assert verdict.headroom is not None
        assert verdict.headroom < 1.25
    for value, low, high in INTERVAL.findall(text):
        assert float(low) <= float(value) <= float(high) <= 3 * float(low) + 0.05
    if verdict.gain is not None:
        assert verdict.gain.low <= verdict.gain.value <= verdict.gain.high
        assert verdict.gain.value > 1 - 1e-6


@given(measurements())
@settings(max_examples=30, deadline=None)
def test_a_step_that_is_slower_alone_than_in_training_was_disturbed(measured: Measured) -> None:
    assume(measured.training is not None)
    assert measured.training is not None
    together = replace(measured.training.together, cpu_seconds=1e3)
    training = replace(measured.training, step=replace(together, seconds=1.5 * SECONDS), together=together)
    assert conclude(replace(measured, training=training))[1].bottleneck == "unknown"


@given(measurements())
@settings(max_examples=8, deadline=None)
def test_plots_say_what_the_page_says(measured: Measured) -> None:
    result = profile_of(measured)
    slowest = result.chart.highlighted
    assert f"The slowest part is {slowest}" in result.chart.draw().title
    assert result.ceilings[slowest] == min(rate for name, rate in result.ceilings.items() if name != "training")
    assert plots.plot_stages(result).title == f"The loader alone: {result.slowest_stage} limits it"
    if result.training is not None:
        title = plots.plot_training(result).title
        assert title == (result.verdict.headline or title)
    knob = result.verdict.knob
    if knob is not None and knob.gain is not None:
        assert plots.plot_tried(result).title == f"{knob.text}: {knob.gain.value:.2f} x predicted"
        assert f"predicted {knob.gain}" in str(result)
