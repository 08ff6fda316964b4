"""Predicted gains, and what `--try` then measures: `pytest -m campaign -s` prints the table of docs/profiling.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.measure.loader_trial import LoaderTrial
from ringfeed.tools.measure.store_trial import StoreTrial
from ringfeed.tools.profile import Profile, procedure
from tests.helpers.bottlenecks import CASES, Case, make_dataset, measured_gains, sleeping_step

TRIED = {
    "fetch_threads": CASES["one fetch at a time"],
    "prefetch_bytes": CASES["no prefetch"],
    "batch_size": CASES["small batches"],
    "streams": Case(expected="shuffle_fill", dataset="blobs", store={"bytes_per_second": 8e6}, options={
        "batch_size": 50, "streams": 25, "fetch_threads": 2, "step": sleeping_step(0.05)}),
    "cache": Case(expected="store_bandwidth", dataset="blobs", store={"bytes_per_second": 6e6}, options={
        "batch_size": 50, "streams": 10, "step": sleeping_step(0.01)}),
}  # fmt: skip
"""By option, a case in which the profile suggests it."""
READING = LoaderTrial(
    steps=32, first_batch_seconds=1.05, seconds=1.99, decoded_bytes=6_218_600, disk_bytes=0,
    rates=(5e4, 7e5, 1.2e6, 1.5e6, 290, 1.1e6, 1.4e6, 1.4e6, 1.5e6, 115),
    fetch_rates=(5.1e6, 3.7e6, 6.4e6, 5.1e6, 6.7e6, 5.8e6, 5.1e6, 4.7e6, 2.4e6, 7.1e6),
)  # fmt: skip
COUNTED = {
    "fetch": {"items": 72, "size": 16_273_152, "busy": 3.049, "cpu": 0.0197, "wait": 3.048},
    "verify": {"items": 72, "size": 16_273_152, "busy": 0.0059, "cpu": 0.0059},
    "open": {"items": 40, "size": 16_184_000, "busy": 0.0251, "cpu": 0.0251},
    "plan": {"items": 4000, "busy": 0.0053, "cpu": 0.0047},
    "gather": {"items": 4000, "busy": 0.0057, "cpu": 0.0046, "wait": 3.101},
    "deliver": {"items": 3150, "wait": 0.0114},
}
STORE = StoreTrial(
    latency_seconds=0.0415, bytes_per_second={1: 12.1e6, 4: 47.2e6, 8: 87.8e6, 16: 167.9e6, 32: 310.3e6}, sizes={},
    read_seconds=(0.043,),
)  # fmt: skip
"""An epoch of the case of `fetch_threads`, and its store, as measured on 2026-11-28."""
SECONDS = 8.0
CLOSE = 0.2  # between predicted and measured gain


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predictions")


def recorded_reading(loader: Loader, *_: object, **__: object) -> LoaderTrial:
    """Count in a loader what was recorded, in place of a reading, which other programs would disturb."""
    for stage, counted in COUNTED.items():
        loader._counters.add(stage, **counted)  # type: ignore[arg-type]
    return READING


def test_a_prediction_says_what_it_brings_and_costs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfeed.tools.measure.other_load.LoadClock.disturbed", lambda _: 0.0)
    monkeypatch.setattr(procedure, "try_loader", recorded_reading)
    monkeypatch.setattr(procedure, "try_store_of", lambda *_: STORE)
    result = TRIED["fetch_threads"].profile(folder)
    knob = result.verdict.knob
    assert knob is not None
    assert knob.options.keys() == {"fetch_threads"}
    assert knob.gain is not None
    assert 1.5 < knob.gain.low <= knob.gain.value <= knob.gain.high
    assert knob.memory_bytes > 0
    assert knob.first_batch_seconds[1] < knob.first_batch_seconds[0]
    assert f"predicted {knob.gain}, first batch " in str(result)
    case = TRIED["fetch_threads"]
    (measured,) = measured_gains(case, case.changed(**knob.options), folder, rounds=1)
    assert measured > 1.3


@pytest.mark.campaign
@pytest.mark.parametrize("option", TRIED)
def test_predicted_gains_are_measured(folder: Path, option: str) -> None:
    result = TRIED[option].profile(folder, seconds=SECONDS, try_knob=True)
    knob, tried = result.verdict.knob, result.tried
    assert knob is not None, str(result)
    assert tried is not None
    assert knob.options.keys() == {option}
    assert knob.gain is not None, str(result)
    _report(knob.text, knob.gain.value, f"{knob.gain}", tried.gain.value)
    assert knob.gain.value == pytest.approx(tried.gain.value, rel=CLOSE)


@pytest.mark.campaign
def test_the_predicted_gain_of_larger_shards_is_measured(folder: Path) -> None:
    make_dataset(folder, "blobs")
    for name, shards in (("small", 128), ("larger", 4)):
        build(BuildOptions(source=str(folder / "blobs"), destination=str(folder / name), shards=shards))
    measured: Callable[[str], Profile] = lambda name: Case(  # noqa: E731
        expected="store_latency", dataset=name, store={"latency_seconds": 0.15}, seconds=SECONDS,
        options={"batch_size": 50, "streams": 2, "fetch_threads": 32},
    ).profile(folder)  # fmt: skip
    before, after = measured("small"), measured("larger")
    knob = before.verdict.knob
    assert knob is not None, str(before)
    assert "reshard" in knob.text
    assert knob.gain is not None, str(before)
    gain = after.epoch_samples_per_second / before.epoch_samples_per_second
    _report("larger shards", knob.gain.value, f"{knob.gain}", gain)
    assert knob.gain.value == pytest.approx(gain, rel=CLOSE)


def _report(option: str, predicted: float, shown: str, measured: float) -> None:
    print(f"| {option} | {shown} | {measured:.2f} x | {predicted / measured - 1:+.0%} |")
