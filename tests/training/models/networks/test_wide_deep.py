"""The wide and deep network learns what crosses of ids mean, and shares embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.trainer import Trainer


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """3,000 visits; a user, a text, likes an item, an integer, by a coin of the pair, not of either alone."""
    folder = tmp_path_factory.mktemp("visits")
    rng = np.random.default_rng(2)
    user, item, last = (rng.integers(0, 30, 3000) for _ in range(3))
    table = pa.table(
        {
            "user": [f"u{number}" for number in user],
            "item": item * 10**12,
            "last": last * 10**12,
            "age": rng.normal(40, 10, 3000),
            "liked": rng.integers(0, 2, (30, 30))[user, item],
        }
    )
    pq.write_table(table, folder / "visits.parquet")
    source, target = str(folder / "visits.parquet"), str(folder / "dataset")
    build(BuildOptions(source=source, destination=target, label="liked", shards=1))
    return target


def _config(url: str, data: Mapping[str, Any] | None = None, **model: Any) -> Any:
    own = {"url": url, "batch_size": 100, "categorical": ["item", "last"], "eval_split": "train"}
    tree = {
        "data": {**own, **(data or {})},
        "model": {"name": "wide_deep", "hidden": [8], "hash_buckets": 5000, **model},
        "optimizer": {"name": "adam", "learning_rate": 0.06},
        "epochs": 3,
        "eval_every_epochs": 3,
        "deterministic": False,
    }
    return parse_config(tree, "x")


def test_the_linear_part_learns_a_cross_that_single_ids_do_not_tell(visits: str) -> None:
    def accuracy(**model: Any) -> float:
        final: float = Trainer(_config(visits, **model), SoloRing()).run()["final"]["accuracy"]
        return final

    assert accuracy(crosses=[["user", "item"]]) > 0.95 > 0.8 > accuracy()


def test_ids_of_a_shared_table_have_one_embedding_and_equal_values_one_bucket(visits: str) -> None:
    loader = Loader(visits, batch_size=100)
    built = build_model(loader.manifest, _config(visits, shared=[["last", "item"]], embedding_dim=4))
    tables = [layer for layer in built.network.layers if layer.name.startswith("embedding_")]
    assert [table.weights[0].shape for table in tables] == [(5000, 4), (5000, 4)]
    element = dict(next(iter(loader.epoch(0))))
    inputs, _, _ = built.preprocess({**element, "last": element["item"]})
    user, item, last = tf.unstack(inputs["ids"], axis=1)
    np.testing.assert_array_equal(item, last)
    assert inputs["wide"].shape == (100, 3)
    assert np.all(inputs["wide"].numpy() // 5000 == [0, 1, 2])
    assert len(np.unique(item)) == len(np.unique(element["item"]))
    assert np.any(item.numpy() != user.numpy())


def test_mistakes_are_one_line(visits: str) -> None:
    manifest = Loader(visits, batch_size=100).manifest
    with pytest.raises(ConfigError, match=r"model\.crosses: 'age' is no column of ids, .* those are: user, item, last"):
        build_model(manifest, _config(visits, crosses=[["user", "age"]]))
    with pytest.raises(ConfigError, match="categorical: column 'age' must hold one integer or text per record, got"):
        build_model(manifest, _config(visits, data={"categorical": ["item", "last", "age"]}))
    with pytest.raises(ConfigError, match=r"model\.shared must be groups without a common column"):
        _config(visits, shared=[["user", "item"], ["item", "last"]])
