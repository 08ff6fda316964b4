"""Predicted gains, and what `--try` then measures: `pytest -m campaign -s` prints the table of docs/profiling.md."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.profile import Profile
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
SECONDS = 8.0
CLOSE = 0.2  # between predicted and measured gain


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("predictions")


def test_a_prediction_says_what_it_brings_and_costs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfeed.tools.measure.other_load.LoadClock.disturbed", lambda _: 0.0)
    result = TRIED["fetch_threads"].profile(folder, seconds=SECONDS)  # so that the loader reads a whole epoch
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
