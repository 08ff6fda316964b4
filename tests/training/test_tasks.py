"""Each task learns, on a dataset without a label, and what it exports answers as its evaluation did."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import yaml

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.cli import main as cli
from ringfeed.training.train import main

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__:DeprecationWarning",  # of Keras, as it saves
)
COLUMNS = ["late", "tags", "delay"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """3,000 records: a number, whether it is above 1,000, and which of three facts hold, follow from two features."""
    folder = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(8)
    miles, hour = rng.normal(0, 1, 3000).astype(np.float32), rng.integers(0, 24, 3000)
    delay = 1000 + 50 * miles + 40 * (hour == 17) + rng.normal(0, 5, 3000)
    tags = [np.flatnonzero(flags).tolist() for flags in zip(miles > 0, hour == 17, hour == 3, strict=True)]
    columns = {"miles": miles, "hour": hour, "delay": delay, "late": delay > 1000, "tags": pa.array(tags)}
    pq.write_table(pa.table(columns), folder / "source.parquet")
    splits = {"train": Fraction(2, 3), "test": Fraction(1, 3)}
    target = str(folder / "dataset")
    build(BuildOptions(source=str(folder / "source.parquet"), destination=target, shards=3, splits=splits))
    return target


@pytest.mark.parametrize(
    ("task", "target", "learned"),
    [
        ("binary", "late", {"auc": 0.98, "average_precision": 0.98, "accuracy": 0.9}),
        ("multilabel", "tags", {"micro_f1": 0.9, "macro_average_precision": 0.95}),
        ("regression", "delay", {"r2": 0.9}),
    ],
)
def test_a_task_learns(
    task: str, target: str, learned: dict[str, float], dataset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [name for name in COLUMNS if name != target]
    tree: dict[str, Any] = {
        "task": task,
        "data": {"url": dataset, "batch_size": 40, "target": target, "exclude": others, "categorical": ["hour"]},
        "model": {"hidden": [16]},
        "optimizer": {"name": "adam", "learning_rate": 0.02},
        "epochs": 4,
        "output": {"model": str(tmp_path / "model.keras")},
        "deterministic": False,
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    assert main(["--config", str(tmp_path / "run.yaml"), "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    final = metrics["final"]
    assert final["samples"] == 1000
    assert {name: final[name] > least for name, least in learned.items()} == dict.fromkeys(learned, True), final
    assert metrics["classes"] == {"binary": ["false", "true"], "multilabel": ["0", "1", "2"]}.get(task, [])
    if task == "regression":  # in the target's unit
        assert final["rmse"] < 20
    assert cli(["export", tree["output"]["model"], "--out", str(tmp_path / "served"), "--quiet"]) == 0
    (batch,) = Loader(dataset, split="test", batch_size=1000).epoch(0)
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    answers = served(miles=batch["miles"], hour=batch["hour"])
    if task == "regression":
        assert _rmse(answers["prediction"], batch["delay"]) == pytest.approx(final["rmse"], rel=1e-5)
        return
    shares = answers["probabilities"].numpy()
    if task == "binary":
        is_right = answers["class"].numpy() == np.where(batch["late"], b"true", b"false")
        assert is_right.mean() == pytest.approx(final["accuracy"])
        np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)
    else:
        true = tf.reduce_max(tf.one_hot(batch["tags"].to_tensor(-1), 3), 1).numpy() > 0
        hits = (true & (shares > 0.5)).sum()
        assert 2 * hits / (true.sum() + (shares > 0.5).sum()) == pytest.approx(final["micro_f1"])


def _rmse(prediction: Any, truth: Any) -> float:
    return float(np.sqrt(np.mean((prediction.numpy() - truth.numpy()) ** 2)))
