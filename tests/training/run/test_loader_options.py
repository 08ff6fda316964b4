"""Options of the loader in a configuration choose the samples of a run, the same where it resumes at a step."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.errors import ConfigError, CorruptionError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.inputs import open_evaluations, open_loader, open_manifests
from ringfeed.training.run.trainer import Trainer
from tests.helpers.checkpoints import saved_steps

STOPPED_AT = 7  # a step in the middle of the second epoch of each run here


@pytest.fixture
def resumed(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """A function that runs to the end, and again from a step; both must agree; returns the metrics of both."""

    def run(tree: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = tmp_path / "run"
        checkpoint = {"url": str(folder), "every_steps": STOPPED_AT, "keep": 9}
        config = parse_config({**tree, "deterministic": False, "checkpoint": checkpoint}, "x")
        results = []
        for _ in range(2):
            trainer = Trainer(config, SoloRing())
            results.append((trainer.run(), [weight.numpy() for weight in trainer.parts.network.weights]))
            assert STOPPED_AT in saved_steps(folder)
            for path in folder.glob("step-*"):
                if int(path.name.split("-")[1]) != STOPPED_AT:
                    path.unlink()
        (first, weights), (second, again) = results
        assert (first["resumed_from_step"], second["resumed_from_step"]) == (None, STOPPED_AT)
        assert STOPPED_AT % first["steps_per_epoch"] != 0
        for expected, got in zip(weights, again, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        return first, second

    return run


def _tree(url: str, data: dict[str, Any], **groups: Any) -> dict[str, Any]:
    return {
        "data": {"url": url, "batch_size": 60, **data},
        "model": {"hidden": [4], "norm": "none"},
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
        "epochs": 2,
        "eval_every_epochs": 2,
        **groups,
    }


def test_where_chooses_records_of_training_and_evaluation(flights: str, resumed: Callable[..., Any]) -> None:
    where = "carrier == 'AA' and hour > 17"
    counts = [
        Loader(flights, split=split, batch_size=1, where=where, columns=["delay"]).records
        for split in ("train", "test")
    ]
    metrics, _ = resumed(_tree(flights, {"where": where}))
    assert metrics["steps_per_epoch"] == counts[0] // 60 == 5
    assert metrics["final"]["samples"] == counts[1]


def test_mistakes_name_the_key(flights: str) -> None:
    for data, message in [
        ({"where": "hoor > 3"}, r"^data\.where 'hoor > 3': there is no column 'hoor'"),
        ({"bucket_by": "hour"}, r"^data\.bucket_by: all values of 'hour' have one length"),
        (
            {"where": "hour > 3", "on_bad_shard": "quarantine"},
            r"^data\.on_bad_shard='quarantine' needs a `where` on the",
        ),
    ]:
        with pytest.raises(ConfigError, match=message):
            open_loader(parse_config(_tree(flights, data), "x"), SoloRing())


def test_a_damaged_shard_is_left_out_and_stays_out(
    flights: str, tmp_path: Path, resumed: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(flights, damaged)
    shard = sorted(damaged.glob("train-*"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    tree = _tree(str(damaged), {"batch_size": 600}, epochs=3)
    metrics, again = resumed({**tree, "data": {**tree["data"], "on_bad_shard": "quarantine"}})
    assert metrics["quarantined"] == again["quarantined"] == [shard.name]
    said = [record.getMessage() for record in caplog.records if record.name == "ringfeed.pipeline.quarantine"]
    assert len([text for text in said if shard.name in text]) == 1  # the resumed run does not even try it
    with pytest.raises(CorruptionError, match=shard.name):
        Trainer(parse_config({**tree, "deterministic": False}, "x"), SoloRing()).run()
    strict = {**tree, "deterministic": False, "epochs": 4, "schedule": {"total_epochs": 3}}
    strict["checkpoint"] = {"url": str(tmp_path / "run")}
    assert Trainer(parse_config(strict, "x"), SoloRing()).run()["quarantined"] == [shard.name]


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Records of 1 to 40 tokens, of which class 1 begins with a token below 50."""
    folder = tmp_path_factory.mktemp("lists")
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 100, rng.integers(1, 41)).tolist() for _ in range(800)]
    label = [int(row[0] < 50) for row in tokens]
    pq.write_table(pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32())), "label": label}), folder / "a.parquet")
    splits = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
    target = str(folder / "dataset")
    build(
        BuildOptions(
            source=str(folder / "a.parquet"), destination=target, label="label", splits=splits, shard_format="parquet",
            shards=2,
        )
    )  # fmt: skip
    return target


def test_buckets_hold_records_of_similar_length_in_training_alone(lists: str) -> None:
    data = {"bucket_by": "tokens", "bucket_steps": 5, "eval_split": "train"}
    config = parse_config(_tree(lists, data), "x")
    evaluated = open_evaluations(config, SoloRing(), open_manifests(config.data))[""].loader
    spreads = []
    for loader in (open_loader(config, SoloRing()), evaluated):
        batches = [batch["tokens"].row_lengths for batch in loader.numpy_epoch(0)]
        spreads.append(np.mean([np.std(lengths) for lengths in batches]))
    assert spreads[0] < spreads[1] / 2


def test_a_run_on_mixed_images_resumes(pictures: str, resumed: Callable[..., Any]) -> None:
    tree = _tree(pictures, {"batch_size": 40}, augment={"mixup": 0.3, "cutmix": 1.0, "crop_area": [0.5, 1]})
    metrics, _ = resumed({**tree, "model": {"name": "convnet", "filters": [8], "hidden": [], "image_shape": [8, 8, 1]}})
    assert metrics["history"]["steps"][0]["loss"] > 0
