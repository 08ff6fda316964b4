"""The transformer over token lists: packed and unpacked rows give the same, and it learns."""

from __future__ import annotations

from fractions import Fraction
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
from ringfeed.training.models.networks.packing import first_fit
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.trainer import Trainer


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> str:
    """1,000 records of 1 to 16 tokens; of class 1 are those that begin with a token below 10, which position tells."""
    folder = tmp_path_factory.mktemp("sentences")
    rng = np.random.default_rng(3)
    tokens = [rng.integers(0, 20, rng.integers(1, 17)).tolist() for _ in range(1000)]
    table = pa.table({"tokens": pa.array(tokens, pa.list_(pa.int32())), "label": [int(row[0] < 10) for row in tokens]})
    pq.write_table(table, folder / "a.parquet")
    splits = {"train": Fraction(4, 5), "test": Fraction(1, 5)}
    source, target = str(folder / "a.parquet"), str(folder / "dataset")
    build(BuildOptions(source=source, destination=target, label="label", splits=splits, shards=2))
    return target


def _tree(url: str, **model: Any) -> dict[str, Any]:
    model = {"name": "text", "max_length": 16, "layers": 1, "heads": 2, "width": 32, **model}
    return {
        "data": {"url": url, "batch_size": 50},
        "model": model,
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "epochs": 4,
        "eval_every_epochs": 4,
        "deterministic": False,
    }


def test_packed_and_unpacked_rows_give_the_same_logits_and_gradients(sentences: str) -> None:
    loader = Loader(sentences, batch_size=50)
    built = build_model(loader.manifest, parse_config(_tree(sentences, layers=2), "x"))
    element = next(iter(loader.epoch(0)))
    assert built.augmented is not None
    results, shapes = [], []
    for preprocess in (built.preprocess, built.augmented):
        inputs, class_id, _ = preprocess(element)
        with tf.GradientTape() as tape:
            logits = built.network(inputs, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(class_id, logits))
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, built.network.trainable_variables)]
        results.append([logits, *gradients])
        shapes.append(inputs["tokens"].shape)
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert (shapes[0], shapes[1][1]) == ((50, 16), 16)
    assert shapes[1][0] < 35


def test_a_record_is_blind_to_others_of_its_row(sentences: str) -> None:
    loader = Loader(sentences, batch_size=4)
    built = build_model(loader.manifest, parse_config(_tree(sentences), "x"))
    assert built.augmented is not None
    label = {"class_id": tf.zeros(3, tf.int32)}
    logits = []
    for other in ([7, 8], [1, 19]):
        inputs, _, _ = built.augmented({"tokens": tf.ragged.constant([[1, 2, 3], other, []], dtype=tf.int32), **label})
        assert inputs["tokens"].shape == (1, 16)
        logits.append(built.network(inputs).numpy())
    np.testing.assert_allclose(logits[0][[0, 2]], logits[1][[0, 2]], atol=1e-6)
    assert np.abs(logits[0][1] - logits[1][1]).max() > 1e-3


def test_first_fit_fills_rows_without_overlap() -> None:
    lengths = np.random.default_rng(0).integers(0, 33, 500)
    rows, starts = first_fit(lengths, 32)
    taken = np.zeros((500, 32), np.int64)
    for row, start, length in zip(rows, starts, lengths, strict=True):
        taken[row, start : start + length] += 1
    assert taken.max() == 1
    assert taken.sum() == lengths.sum()
    assert rows.max() + 1 <= 11 / 9 * np.ceil(lengths.sum() / 32) + 1  # Johnson et al., SIAM J. Comput. 3 (1974)


def test_learns_from_packed_rows_and_shows_their_padding(sentences: str) -> None:
    packed = Trainer(parse_config(_tree(sentences), "x"), SoloRing()).run()
    assert packed["final"]["accuracy"] > 0.9
    assert packed["final"]["samples"] == 200
    assert 0 < packed["history"]["steps"][-1]["padding_fraction"] < 0.1


def test_mistakes_are_one_line(sentences: str) -> None:
    with pytest.raises(
        ConfigError, match=r"optimizer\.accumulate=2 does not go with model\.name=text and model\.packing=true"
    ):
        parse_config({**_tree(sentences), "optimizer": {"accumulate": 2}}, "x")
    with pytest.raises(ConfigError, match=r"model\.width must be a multiple of model\.heads=3, got 32"):
        parse_config(_tree(sentences, heads=3), "x")
