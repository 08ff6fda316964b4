"""A run that cannot train ends soon, and names the records where the data is to blame."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ringfeed.pipeline import Mixture
from ringfeed.sharding import BuildOptions, build, open_dataset, read_records
from ringfeed.training.run.overflows import bad_records, finite_samples
from ringfeed.training.train import main

WriteConfig = Callable[..., Path]


@pytest.fixture(scope="module")
def with_infinity(tmp_path_factory: pytest.TempPathFactory) -> str:
    """240 records, one of which has an infinite delay."""
    folder = tmp_path_factory.mktemp("infinite")
    rng = np.random.default_rng(2)
    delay = rng.normal(size=240).astype(np.float32)
    delay[77] = np.inf
    names = np.where(rng.random(240) < 0.5, "late", "on time")
    pq.write_table(pa.table({"id": np.arange(240), "delay": delay, "late": names}), folder / "a.parquet")
    splits = {"train": Fraction(1)}
    build(
        BuildOptions(
            source=str(folder / "a.parquet"), destination=str(folder / "d"), label="late", splits=splits, shards=1
        )
    )
    return str(folder / "d")


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_record_that_is_not_finite_is_named(
    precision: str, with_infinity: str, write_config: WriteConfig, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "networks_of_delays.py").write_text(
        "import keras\n"
        "def network(manifest, config):\n"
        "    x = keras.Input((), name='delay')\n"
        "    return keras.Model(x, keras.layers.Dense(2, dtype='float32')(keras.ops.expand_dims(x, 1)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    data = {"url": with_infinity, "eval_split": None, "include": ["delay"], "categorical": [], "batch_size": 24}
    model = {"name": "networks_of_delays:network"}
    config = write_config(data=data, model=model, precision=precision, epochs=1000, output={"log_every": 5000})
    assert main(["--config", str(config), "--set", "deterministic=false"]) == 1
    said = capfd.readouterr().err.splitlines()[-1]
    assert "the gradients of step" in said
    assert int(said.partition("of step ")[2].split()[0]) < 10  # an epoch has 10 steps
    record, shard = said.partition("are not: record ")[2].split(" (")[0].split(" of ")
    assert "(delay); fix these records" in said
    stored = list(read_records(open_dataset(with_infinity), "train", 240))
    assert np.isinf(stored[int(record)]["delay"])
    assert [shard] == [info.path for info in open_dataset(with_infinity).split_shards("train")]


def test_the_record_of_a_mixture_is_named_with_its_dataset(with_infinity: str, tmp_path: Path) -> None:
    copy = shutil.copytree(with_infinity, tmp_path / "copy")
    sources = {"finite": {"url": with_infinity, "where": "id != 77"}, "other": {"url": str(copy)}}
    mixture = Mixture(sources, batch_size=240 + 239)
    (line,) = bad_records(mixture, lambda batch: (batch["delay"], batch["id"], tf.ones(479)), 0, 0)
    (shard,) = open_dataset(str(copy)).split_shards("train")
    assert line.endswith(f" of {shard.path} in {copy} (delay)")


def test_samples_of_ragged_and_wide_tensors_are_judged_one_by_one() -> None:
    ragged = tf.ragged.constant([[[1.0], [np.inf, 2.0]], [[3.0]], []])
    assert finite_samples(ragged).tolist() == [False, True, True]
    assert finite_samples(tf.constant([[[1.0, np.nan]], [[0.0, 1.0]]])).tolist() == [False, True]
    assert finite_samples(tf.constant([np.nan, 1.0])).tolist() == [False, True]
