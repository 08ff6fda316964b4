"""The report's page and charts: self-contained, true to the results, accessible."""

import base64
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra `report` is not installed")

from ringfeed.tools.charts.drawing import counts, curves
from ringfeed.tools.demo.report import BuiltDataset, CommandRecord, DemoResult, compare_runs, render_report
from ringfeed.tools.demo.samples import Prediction, SampleImage
from ringfeed.tools.shard_dataset.balance_report import SplitBalance

VOID = {"meta", "link", "br", "img", "hr", "input"}


def metrics(classes: list[str], confusion: list[list[int]], balance: str) -> dict[str, Any]:
    totals = [sum(row) for row in confusion]
    recall = {name: confusion[i][i] / totals[i] for i, name in enumerate(classes)}
    steps = [
        {"step": 10 * n, "loss": 1 / n, "learning_rate": 0.1 * n, "samples_per_second": 1000.0 * n,
         "input_wait_fraction": 0.25 * (n == 3)}
        for n in range(1, 6)
    ]  # fmt: skip
    return {
        "ranks": 2, "classes": classes, "parameters": 1234, "steps_per_epoch": 25, "total_steps": 50,
        "train_seconds": 3.0, "history": {"steps": steps},
        "config": {
            "precision": "bfloat16", "epochs": 2, "data": {"batch_size": 2048, "balance": balance},
            "optimizer": {"base_batch_size": 256}, "schedule": {"warmup_epochs": 0.5},
        },
        "final": {
            "samples": sum(totals), "loss": 0.4,
            "accuracy": sum(row[i] for i, row in enumerate(confusion)) / sum(totals),
            "balanced_accuracy": sum(recall.values()) / len(recall), "recall": recall,
            "auc": 0.8 if len(classes) == 2 else None, "confusion": confusion, "average_precision": 0.3,
            "precision_recall": {"threshold": [0.9, 0.2], "recall": [0.25, 1.0], "precision": [0.5, 0.1]},
        },
    }  # fmt: skip


def dataset(name: str, shard_format: str, classes: list[str]) -> BuiltDataset:
    counts = np.full((4, len(classes)), 25, np.int64)
    split = SplitBalance(
        name="train", shard_records=counts.sum(axis=1), shard_bytes=counts.sum(axis=1) * 10, shard_class_counts=counts
    )
    stages = [
        {"name": stage, "busy_seconds": 0.0 if stage == "deliver" else 0.5} for stage in ("fetch", "open", "deliver")
    ]
    build = {
        "records": 400,
        "bytes": 4000,
        "seconds": 0.5,
        "records_per_second": 800.0,
        "splits": {"train": {"shards": 4}},
    }
    profile = {
        "samples": 1000, "samples_per_second": 50_000.0, "bytes_per_second": 1e6, "first_batch_seconds": 0.1,
        "batch_size": 100, "steps": 10, "stages": stages, "verdict": {"bottleneck": "decode"},
    }  # fmt: skip
    return BuiltDataset(
        name=name, shard_format=shard_format, build=build, classes=classes, balance=[split], profile=profile
    )


def sample(label: str, predicted: str, score: float) -> SampleImage:
    said = Prediction(record=7, label=label, predicted=predicted, score=score)
    return SampleImage(png=b"PNG of " + label.encode(), prediction=said)


@pytest.fixture(scope="module")
def result() -> DemoResult:
    flights, digits = ["late", "on time"], [str(digit) for digit in range(10)]
    return DemoResult(
        created="2026-11-21 08:00 UTC",
        seconds=100.0,
        is_quick=False,
        machine={"processor": "A & B <fast>, 2 cores"},
        commands=[CommandRecord(purpose="Building", command="shard-dataset build 'a b' <dst>", seconds=1.5)],
        datasets=[
            dataset(name, form, classes)
            for name, classes in (("flights", flights), ("digits", digits))
            for form in ("tfrecord", "parquet")
        ],
        natural=metrics(flights, [[10, 90], [5, 895]], "natural"),
        uniform=metrics(flights, [[70, 30], [200, 700]], "uniform"),
        digits=metrics(digits, (np.eye(10, dtype=int) * 36 + np.eye(10, k=4, dtype=int)).tolist(), "natural"),
        right_images=[sample("3", "3", 0.84)],
        wrong_images=[sample("6", "8", 0.994)],
    )


class Page(HTMLParser):
    """Collects what the tests check, and fails if tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data


@pytest.fixture(scope="module")
def rendered(result: DemoResult) -> str:
    return render_report(result)


@pytest.fixture(scope="module")
def page(rendered: str) -> Page:
    return Page(rendered)


def test_the_page_loads_nothing(rendered: str, page: Page) -> None:
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png;base64,")), (tag, attributes)
    assert "@import" not in rendered
    assert "url(http" not in rendered


def test_ids_are_unique_and_every_reference_has_its_target(page: Page) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(attributes["href"] or "")[1:] for tag, attributes in page.tags if tag in ("use", "a")}
    assert {"results", "own"} <= targets <= set(ids)


def test_every_chart_has_a_title_and_a_description(page: Page) -> None:
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 15
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    described = " ".join(picture["aria-label"] or "" for picture in pictures)
    assert "recall of late 10.0% and 70.0%" in described
    assert "time spent waiting for input. natural: median 0.0 %" in described
    assert "samples per second. digits: median 3,000" in described
    assert "natural finds 10.0 % at a precision of 66.7 %; uniform finds 70.0 % at a precision of 25.9 %" in described


def test_the_page_says_what_was_found(page: Page) -> None:
    words = " ".join(page.text.split())
    assert "100 of the 1,000 flights of the test split arrived more than an hour late" in words
    assert "the model finds 10 of them, with 5 false alarms" in words
    assert "the same model finds 70, with 200 false alarms" in words
    assert "10.0 → 70.0 %" in words
    assert "quick run" not in words


def test_images_stand_beside_what_the_network_says_of_them(page: Page) -> None:
    words = " ".join(page.text.split())
    assert "3 84 %" in words
    assert "Those of its 6 errors that it is surest of 8 99 % is a 6" in words
    pictures = [(attributes["alt"], attributes["src"]) for tag, attributes in page.tags if tag == "img"]
    assert [alt for alt, _ in pictures] == ["a handwritten 3", "a handwritten 6"]
    assert base64.b64decode((pictures[1][1] or "").partition(",")[2]) == b"PNG of 6"


def test_text_of_results_is_escaped(page: Page) -> None:
    assert "A & B <fast>, 2 cores" in page.text
    assert "shard-dataset build 'a b' <dst>" in page.text


def test_the_same_results_make_the_same_page(result: DemoResult, rendered: str) -> None:
    assert render_report(result) == rendered


def test_the_better_run_is_marked_and_a_lower_loss_is_better() -> None:
    first = {"recall": {"late": 0.1}, "balanced_accuracy": 0.5, "auc": 0.8, "accuracy": 0.9, "loss": 0.2}
    first |= {"average_precision": 0.3}
    second = first | {"recall": {"late": 0.7}, "loss": 0.5}
    assert {row.metric: row.better for row in compare_runs(first, second)} == {
        "recall of late": 1, "balanced accuracy": None, "AUC": None, "average precision": None, "accuracy": None,
        "loss": 0,
    }  # fmt: skip


def test_charts_take_their_colours_from_the_page() -> None:
    chart = curves({"a": ([0, 10], [1, 0])}, "T", "step", "loss", in_page=True).themed("D")
    assert "var(--series-1)" in chart
    assert not re.findall(r"#[0-9a-f]{6}", chart)
    assert ">step</text>" in chart
    assert ">loss</text>" in chart


def test_cells_of_a_heat_map_take_colour_and_ink_from_the_page_and_set_errors_apart() -> None:
    cells_of = np.array([[40, 2], [0, 20]])
    chart = counts(cells_of, ["a", "b"], ["a", "b"], "T", "x", "y", is_confusion=True).themed("D")
    cells = re.findall(r'style="fill: (\S+);(?: fill-opacity: (\S+);)? stroke: var\(--page\)', chart)
    first, second = "var(--series-1)", "var(--series-2)"
    assert cells == [(first, "0.55"), (second, "0.55"), ("none", ""), (first, "0.325")]
    assert not re.findall(r"#[0-9a-f]{6}", chart)
