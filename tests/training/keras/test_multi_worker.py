"""Keras under a strategy of several workers trains as in one process on the same global batches."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from ringfeed.sharding import BuildOptions, build
from tests.helpers import fitting
from tests.helpers.warm import WarmServer
from tests.servers.process import free_ports

ROOT = Path(__file__).parents[3]


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    """A dataset of 1,000 records, in batches of 120: one worker's half of the last batch is all padding."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(1000, 3)).astype(np.float32)
    lists = [rng.normal(size=count).astype(np.float32) for count in rng.integers(1, 6, 1000)]
    columns = {
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 3),
        "numbers": pa.array(lists, pa.list_(pa.float32())),
        "word": pa.array(rng.choice(["a", "bb", "ccc"], 1000)),
        "label": pa.array((vectors.sum(1) + [values.sum() for values in lists] > 0).astype(np.int64)),
    }
    pq.write_table(pa.table(columns), tmp_path / "source.parquet")
    target = str(tmp_path / "dataset")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=target, label="label", shards=4))
    return target


def test_two_workers_train_as_one_process(tmp_path: Path, numbers: str, warm: WarmServer) -> None:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = [
        warm.start(
            ["tests.helpers.fitting", numbers, str(rank), "2"],
            folder=ROOT,
            output=tmp_path / f"output-{rank}",
            environ={"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})},
        )
        for rank in range(2)
    ]
    alone = fitting.train(tf.distribute.get_strategy(), numbers)
    results = []
    for worker in workers:
        output, _ = worker.communicate(timeout=280)
        assert worker.returncode == 0, output[-3000:]
        results.append(json.loads(output.splitlines()[-1]))
    first, second = results
    assert first == second
    assert first["steps"] == alone["steps"] == 18
    assert alone["history"][1]["val_accuracy"][0] > 0.85  # padding counts, too
    for one, other in zip(first["history"], alone["history"], strict=True):
        assert one.keys() == other.keys()
        for name, values in one.items():
            np.testing.assert_allclose(values, other[name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(first["evaluation"], alone["evaluation"], rtol=1e-4)
    np.testing.assert_allclose(first["predictions"], alone["predictions"], atol=1e-3)
    for one, other in zip(first["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
