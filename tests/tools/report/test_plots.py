"""Plots of profiles: well-formed SVG, whose titles say what was measured."""

import html
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, ConfigError, build
from ringfeed.tools.charts.bars import Bars
from ringfeed.tools.cli import main
from ringfeed.tools.measure.estimates import Estimate
from ringfeed.tools.predict.gains import ExpectedGain
from ringfeed.tools.profile import profile
from ringfeed.tools.report import comparisons, plots
from ringfeed.tools.report.pages import write_page
from ringfeed.tools.report.profile_result import Profile, TriedKnob
from tests.servers.web import Behaviour, served


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("plots")
    rows = range(1200)
    labels = [f"class {i % 12}" if i % 3 else "often & <again>" for i in rows]
    pq.write_table(pa.table({"x": [float(i) for i in rows], "y": labels}), folder / "s.parquet")
    build(BuildOptions(source=str(folder / "s.parquet"), destination=str(folder / "d"), label="y", shards=4))
    return str(folder / "d")


@pytest.fixture(scope="module")
def result(dataset: str) -> Profile:
    """Of a store with few fetches at once, with a step."""
    disturbed = "ringfeed.tools.measure.other_load.LoadClock.disturbed"
    with served(Path(dataset), behaviour=Behaviour(latency_seconds=0.02)) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(disturbed, lambda _: 0.0)  # by other tests, beside which nothing would be judged or tried
        found = profile(
            url, batch_size=40, fetch_threads=1, step=lambda _: None, transform=lambda batch: batch, seconds=3.0,
        )  # fmt: skip
    # Which option the verdict names depends on what else runs here; tests of the profile try it.
    options, gain = {"fetch_threads": 8}, Estimate(value=2.0, low=1.8, high=2.2)
    knob = ExpectedGain(
        options=options, text="try fetch_threads=8", gain=gain, first_batch_seconds=(0.2, 0.1), memory_bytes=0,
        disk_bytes=0, later=False,
    )  # fmt: skip
    tried = TriedKnob(options=options, epoch_samples_per_second=4000.0, first_batch_seconds=0.1, gain=gain)
    return replace(found, tried=tried, verdict=replace(found.verdict, knob=knob))


def texts(plot: plots.Plot) -> str:
    """The texts of a plot, in one line."""
    root = ET.fromstring(plot._repr_svg_())
    return " ".join("".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text"))


def test_of_a_dataset(dataset: str) -> None:
    shards = texts(plots.plot_shards(dataset))
    assert "Balance: 4 shards differ by at most 0 records, and by 0 in any class" in shards
    assert "2 other classes" in shards  # of nine
    assert "often & <again>" in shards
    loaders = {name: Loader(dataset, batch_size=90, balance=name) for name in ("natural", "uniform")}
    batches = texts(comparisons.plot_batches(loaders, batches=5))
    assert all(text in batches for text in ("natural", "uniform", "often & <again>", "2 other classes", "batch"))
    assert "11.1% to 11.1% uniform" in batches
    assert "a batch mixes 4.0 shards, a full shuffle 4.0" in texts(plots.plot_shuffle(loaders["natural"]))
    assert "Ranks share the reading: 8 ranks together read " in texts(plots.plot_ranks(dataset, 40))
    assert "Waits for a batch: half take" in texts(plots.plot_waits(loaders["natural"], batches=10))


def test_of_a_profile(result: Profile) -> None:
    assert f"An epoch takes {result.epoch_seconds:.2f} s" in texts(plots.plot_epoch(result))
    assert f"{result.slowest_stage} limits it" in texts(plots.plot_stages(result))
    training = texts(plots.plot_training(result))
    assert all(part in training for part in ("loader alone", "transform alone", "step alone", "samples a second"))
    assert "The store gives" in texts(plots.plot_store(result))
    assert f"{result.tried.gain.value:.2f} x measured" in texts(plots.plot_tried(result))  # type: ignore[union-attr]
    assert "the slowest part is" in texts(result.chart.draw()).lower()
    assert "Shards being fetched" in texts(plots.plot_queues(result))
    assert "Reads of the store: half take" in texts(plots.plot_latencies(result))
    rates = comparisons.plot_rates({1: result, 2: result}, "streams")
    assert rates.title == "By streams: no difference beyond the spread of the measurements"
    assert repr(rates) == f"Plot: {rates.title}"
    measured = {1: Estimate(value=1000.0, low=900.0, high=1100.0), 4: Estimate(value=2000.0, low=1900.0, high=2100.0)}
    compared = comparisons.plot_predictions({1: 900.0, 4: 2200.0}, measured, "streams")
    assert (
        compared.title
        == "Predicted by streams: the largest error is +10%; measured: 4 is the fastest, 2.00 x the slowest"
    )
    assert "2.2k" in texts(compared)


def test_what_was_not_measured_is_said(dataset: str) -> None:
    alone = profile(dataset, batch_size=40, seconds=0.2)
    cases: list[tuple[Any, str]] = [
        (plots.plot_training, "needs a profile with a step"),
        (plots.plot_tried, "names no option"),
        (plots.plot_store, "the store of a local dataset is not measured"),
    ]
    for plot, message in cases:
        with pytest.raises(ConfigError, match=message):
            plot(alone)


def test_a_notebook_without_matplotlib_shows_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Bars(title="Two", values={"a": 1.0, "b": 2.0}, texts=["1", "2"], highlighted="b", x_label="seconds")
    assert bars.html().startswith("<svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "ringfeed.tools.charts.drawing")
    assert bars.html().startswith("<p>plots need matplotlib; install it with: pip install")


def test_a_page_needs_no_other_file(result: Profile, tmp_path: Path) -> None:
    write_page(result, str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 8
    assert html.escape(result.verdict.headline) in text  # type: ignore[union-attr]
    assert html.escape(result.verdict.advice) in text  # type: ignore[union-attr]
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "<script" not in text


def test_the_command_writes_the_page_and_checks_its_place_first(
    dataset: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["profile", dataset, "--batch-size", "40", "--seconds", "0.2", "--html"]
    assert main([*command, str(tmp_path / "new" / "page.html")]) == 0
    assert "The loader alone: " in (tmp_path / "new" / "page.html").read_text()
    capfd.readouterr()
    assert main([*command, str(tmp_path / "new")]) == 1
    assert capfd.readouterr().err == f"ringfeed: error: cannot write {tmp_path}/new: it is a folder; name a file\n"
