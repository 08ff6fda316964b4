"""Training on several datasets, mixed in every batch (docs/training.md).

Covers `inputs`, `datasets` and what goes with `data.mixture`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tensorflow.python.framework.config import disable_op_determinism  # there is no public name for it

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.errors import ConfigError, DatasetError, TrainingError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.run.inputs import open_loader
from ringfeed.training.run.trainer import Trainer
from ringfeed.training.serving.trained import open_trained
from tests.helpers.checkpoints import saved_steps
from tests.helpers.thread_ring import on_ranks

RECORDS = {"large": 300, "small": 80}
STOPPED_AT = 9  # in the middle of the second epoch, after the small dataset has begun anew
Tree = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two datasets with the same columns; only the second has class `b`, and their classes are numbered apart."""
    folder = tmp_path_factory.mktemp("mixture")
    places = {}
    for name, records in RECORDS.items():
        rng = np.random.default_rng(records)
        x = rng.normal(records / 100, 1, records)
        y = np.where(x > records / 100, "c", "a" if name == "large" else "b")
        code = pa.array(rng.integers(0, 9, records), mask=np.arange(records) % 7 == 0)
        pq.write_table(pa.table({"x": x, "code": code, "y": y}), folder / f"{name}.parquet")
        source, places[name] = str(folder / f"{name}.parquet"), str(folder / name)
        splits = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
        options = {"label": "y", "shards": 2, "splits": splits, "shard_format": "parquet"}
        build(BuildOptions(source=source, destination=places[name], **options))
    return places


@pytest.fixture
def tree(urls: dict[str, str]) -> Tree:
    """A function that makes a configuration, with groups of keys put over it."""

    def make(**groups: dict[str, Any]) -> dict[str, Any]:
        data = {
            "mixture": {"small": {"url": urls["small"], "balance": "uniform"}, "large": {"url": urls["large"]}},
            "weights": {"large": 0.6, "small": 0.4},
            "batch_size": 40,
        }
        plain = {"hidden": [4], "norm": "none"}
        base = {"data": data, "model": plain, "optimizer": {"name": "sgd", "learning_rate": 0.1}, "epochs": 2}
        return {**base, "deterministic": False, **{key: {**base.get(key, {}), **own} for key, own in groups.items()}}

    return make


@pytest.fixture
def _nondeterministic_afterwards() -> Iterator[None]:
    yield
    disable_op_determinism()


@pytest.mark.usefixtures("_nondeterministic_afterwards")
@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves
def test_a_run_resumes_bit_identical_and_its_model_serves_all_datasets(
    tree: Tree, urls: dict[str, str], tmp_path: Path
) -> None:
    run, model = tmp_path / "run", tmp_path / "model.keras"
    checkpoint = {"url": str(run), "every_steps": STOPPED_AT, "keep": 9}
    config = parse_config({**tree(checkpoint=checkpoint, output={"model": str(model)}), "deterministic": True}, "x")
    results = []
    for _ in range(2):
        results.append(Trainer(config, SoloRing()).run())
        assert STOPPED_AT in saved_steps(run)
        for path in run.glob("step-*"):
            if int(path.name.split("-")[1]) != STOPPED_AT:
                path.unlink()
    first, second = results
    assert (first["resumed_from_step"], second["resumed_from_step"]) == (None, STOPPED_AT)
    assert (first["steps_per_epoch"], first["classes"]) == (285 // 40, ["a", "c", "b"])
    assert (second["weights_digest"], second["final"]) == (first["weights_digest"], first["final"])

    final = first["final"]
    own = final["datasets"]
    assert {name: entry["samples"] for name, entry in own.items()} == {"large": 75, "small": 20}
    assert final["samples"] == 95
    together = (own["large"]["loss"] * 75 + own["small"]["loss"] * 20) / 95
    np.testing.assert_allclose(final["loss"], together, rtol=1e-6)
    np.testing.assert_array_equal(final["confusion"], np.sum([own[name]["confusion"] for name in own], axis=0))

    trained, restored = open_trained(str(model)), open_trained(str(run))
    for name, entry in own.items():
        loader = Loader(urls[name], split="test", batch_size=5, masks=[column.name for column in trained.masked])
        hits = 0
        for batch in loader.epoch(0):
            columns = {name: batch[name] for name in ("x", "code", "missing:code")}
            scores = trained.scores(columns).numpy()
            assert scores.shape == restored.scores(columns).shape == (5, 3)
            hits += sum(
                trained.classes[best] == label.decode()
                for best, label in zip(scores.argmax(1), batch["y"].numpy(), strict=True)
            )
        assert hits / entry["samples"] == entry["accuracy"]


def test_ranks_take_the_step_of_one_process(tree: Tree) -> None:
    config = parse_config({**tree(data={"eval_split": None, "test_split": None}), "max_steps": 1}, "x")

    def weights(ring: Ring) -> list[np.ndarray]:
        trainer = Trainer(config, ring)
        trainer.run()
        return [weight.numpy() for weight in trainer.parts.network.trainable_variables]

    whole = weights(SoloRing())
    for found in on_ranks(3, weights):
        for mine, expected in zip(found, whole, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6)


def test_options_of_one_dataset_are_its_own(tree: Tree, urls: dict[str, str]) -> None:
    mixture = {"large": {"url": urls["large"], "where": "x > 3"}, "small": {"url": urls["small"]}}
    loader = open_loader(
        parse_config(tree(data={"mixture": mixture, "where": "code < 5"}), "x"),
        SoloRing(),
    )
    for batch in loader.numpy_epoch(0):
        is_large = batch["source_id"] == 0
        assert is_large.sum() == 24
        assert (batch["x"][is_large] > 3).all()
        assert (batch["code"][~is_large] < 5).all()
        assert (batch["code"][is_large] >= 5).any()


def test_a_change_of_the_mixture_does_not_resume_but_one_of_its_place_does(tree: Tree, tmp_path: Path) -> None:
    groups: dict[str, Any] = {"checkpoint": {"url": str(tmp_path / "run")}}
    Trainer(parse_config({**tree(**groups), "max_steps": 1}, "x"), SoloRing()).run()
    moved = tree(**groups)
    moved["data"]["mixture"]["large"]["url"] += "/"
    assert Trainer(parse_config(moved, "x"), SoloRing()).position.step == 1
    for data in (
        {"weights": "natural"},
        {"mixture": {**moved["data"]["mixture"], "small": moved["data"]["mixture"]["large"]}},
    ):
        with pytest.raises(TrainingError, match="of a run with different data"):
            Trainer(parse_config(tree(**groups, data=data), "x"), SoloRing())


def test_mistakes_name_dataset_and_key(tree: Tree, urls: dict[str, str], flights: str) -> None:
    large = {"large": {"url": urls["large"]}}
    for data, message in [
        ({"url": "x"}, r"^x: data\.url=x does not go with data\.mixture"),
        ({"bucket_by": "x"}, r"^x: data\.bucket_by=x does not go with data\.mixture"),
        ({"mixture": {}}, r"^x: data\.mixture must be at least one dataset"),
        ({"mixture": {"a/b": {"url": "d"}}}, r"^x: a name in data\.mixture must be .*, got 'a/b'"),
        ({"mixture": {"a": {"ulr": "d"}}}, r"^x: unknown key 'data\.mixture\.a\.ulr'; did you mean 'url'\?"),
        ({"mixture": {"a": {}}}, r"^x: data\.mixture\.a\.url is missing"),
        ({"mixture": {"a": {"url": "/no/such"}}}, r"^data\.mixture\.a: there is no dataset at /no/such"),
        ({"mixture": {**large, "f": {"url": flights}}}, "'f' has 'delay' of float32.*, 'large' has 'x' of float64"),
        ({"mixture": {"a": {"url": urls["large"], "where": "z > 1"}}}, "^dataset 'a' of the mixture: where 'z > 1'"),
        ({"weights": {"larg": 1}}, r"^data\.weights: there is no dataset 'larg'; the datasets are: 'large', 'small'"),
        ({"train_split": "trai"}, r"^data\.train_split: there is no split 'trai'; dataset 'large' has 'train', 'test'"),
        ({"batch_size": 286}, r"^data\.batch_size=286 is more than the 285 records of 'train'"),
    ]:
        with pytest.raises((ConfigError, DatasetError), match=message):
            open_loader(parse_config(tree(data=data), "x"), SoloRing())
    with pytest.raises(ConfigError, match=r"data\.mixture=.* does not go with backend=parameter_server"):
        parse_config({**tree(), "backend": "parameter_server"}, "x")
    with pytest.raises(ConfigError, match=r"sync\.clients=.* does not go with data\.mixture"):
        parse_config(tree(sync={"method": "fedavg", "clients": ["train"]}), "x")
    with pytest.raises(ConfigError, match=r"data\.weights=uniform does not go with data\.mixture=null"):
        parse_config({"data": {"url": "x", "weights": "uniform"}}, "x")
