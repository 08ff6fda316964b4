"""Missing values in training, `predict` and `export`: a mask travels, and no value of a record stands for one."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
import yaml

from ringfeed.sharding import build, open_dataset
from ringfeed.tools.cli import main
from ringfeed.training.checkpoint.store import CheckpointStore
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.model_file import encode_model

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves

RECORDS = 400
CASES: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    # dtype, values in training, and new values beside them: each of those once stood for a missing one
    "age": (pa.int64(), [18, 40, 90], [17, 91]),
    "grade": (pa.int32(), [1, 3, 5], [0, 6]),
    "count": (pa.uint8(), [0, 100, 200], [201, 255]),
    "full": (pa.int8(), [-128, 0, 127], [1]),
    "flag": (pa.bool_(), [True, False], []),
    "name": (pa.string(), ["ann", "bob"], ["", "missing"]),
}


def _dataset(folder: Path, name: str, values: list[Any], kind: pa.DataType, **options: Any) -> str:
    table = pa.table({"key": pa.array(range(len(values))), "value": pa.array(values, kind)})
    labels = pa.array(["gone" if value is None else "there" for value in values])
    url = str(folder / name)
    build(
        source=table.append_column("label", labels), destination=url, label="label", shards=2, workers=1,
        min_class_records=0, **options,
    )  # fmt: skip
    return url


def _train(folder: Path, data: str, network: str, case: str, **more: Any) -> str:
    is_code = case in ("age", "grade", "count", "full", "flag")
    options = {"categorical": ["value"]} if network == "wide_deep" and is_code else {}
    tree = {
        "data": {"url": data, "batch_size": 40, "exclude": ["key"], "eval_split": None, **options},
        "model": {"name": network, "hidden": [8], "norm": "none"},
        "optimizer": {"name": "adam", "learning_rate": 0.05},
        "epochs": 8,
        "output": {"model": str(folder / "model.keras")},
        **more,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    assert main(["train", "--config", str(folder / "run.yaml"), "--quiet"]) == 0
    return str(folder / "model.keras")


@pytest.mark.parametrize(("network", "case"), [*(("tabular", case) for case in CASES), ("wide_deep", "age"),
                                               ("wide_deep", "name"), ("wide_deep", "flag")])  # fmt: skip
def test_only_a_missing_value_is_predicted_and_kept_as_missing(tmp_path: Path, network: str, case: str) -> None:
    kind, known, new = CASES[case]
    values = [None if i % 3 == 0 else known[i % len(known)] for i in range(RECORDS)]
    model = _train(tmp_path, _dataset(tmp_path, "data", values, kind), network, case)
    asked = [*known, *new, None]
    fresh = _dataset(tmp_path, "fresh", asked, kind, format="tfrecord")
    command = ["predict", model, fresh, "--out", str(tmp_path / "out"), "--keep", "key", "--keep", "value", "--quiet"]
    assert main(command) == 0
    rows = pq.read_table(tmp_path / "out").sort_by("key").to_pylist()
    assert [row["value"] for row in rows] == asked
    predicted = {repr(row["value"]): row["predicted"] for row in rows}
    assert predicted.pop("None") == "gone"
    if network == "tabular" and kind != pa.string():  # else a new value is an unknown id
        assert set(predicted.values()) == {"there"}
    else:
        assert {predicted[repr(value)] for value in known} == {"there"}

    assert main(["export", model, "--out", str(tmp_path / "served"), "--quiet"]) == 0
    served = tf.saved_model.load(str(tmp_path / "served")).signatures
    described = json.loads((tmp_path / "served" / "assets.extra" / "ringfeed.json").read_text())
    assert [entry.get("missing") for entry in described["inputs"]] == ["missing_value"]
    neutral = {"string": "", "bool": False}.get(str(kind), 0)
    tensor = tf.constant([neutral if value is None else value for value in asked], described["inputs"][0]["dtype"])
    plain = served["serving_default"](value=tensor[:-1])["probabilities"].numpy()
    masked = served["with_missing"](value=tensor, missing_value=tf.constant([value is None for value in asked]))
    expected = np.array([row["scores"] for row in rows])
    np.testing.assert_allclose(plain, expected[:-1], rtol=1e-5)
    np.testing.assert_allclose(masked["probabilities"].numpy(), expected, rtol=1e-5)


def test_kept_columns_are_the_stored_ones_of_every_dtype(tmp_path: Path) -> None:
    table = pa.table(
        {
            "x": pa.array([0.5, 1.5, 2.5, 3.5], pa.float32()),
            "text": ["", None, "NaN", "\0"],
            "bytes": pa.array([b"", None, b"\0", b"x"]),
            "share": pa.array([float("nan"), None, 0.0, -0.0], pa.float32()),
            "wide": pa.array([float("nan"), None, 0.0, 1e300]),
            "flag": [False, None, True, False],
            "vector": pa.array([[0, 0], None, [255, 0], [1, 2]], pa.list_(pa.uint8(), 2)),
            "list": pa.array([[], None, [0], [1, 2]], pa.list_(pa.int32())),
            "when": pa.array([0, None, -1, 2**40], pa.timestamp("us")),
            "big": pa.array([0, None, 2**64 - 1, 1], pa.uint64()),
            "y": pa.array([1.0, 2.0, 3.0, 4.0]),
        }
    )
    for shard_format in ("parquet", "tfrecord"):
        folder = tmp_path / shard_format
        data = str(folder / "data")
        build(source=table, destination=data, shards=1, workers=1, format=shard_format, split={"train": 1.0})
        columns = {"url": data, "include": ["x"], "target": "y", "eval_split": None}
        config = parse_config({"data": columns, "model": {"hidden": [4]}, "task": "regression"}, "a test")
        manifest = open_dataset(data).manifest
        network = build_model(manifest, config).network
        (folder / "model.keras").write_bytes(encode_model(network, config, manifest, step=0))
        kept = [word for name in table.column_names for word in ("--keep", name)]
        assert main(["predict", str(folder / "model.keras"), data, "--out", str(folder / "out"), "--quiet", *kept]) == 0
        found = pq.read_table(folder / "out").sort_by("x")
        for name in table.column_names:
            stored, own = found[name].to_pylist(), table[name].to_pylist()
            if name == "when":
                stored, own = found[name].cast(pa.int64()).to_pylist(), table[name].cast(pa.int64()).to_pylist()
            assert repr(stored) == repr(own), name


def test_a_network_that_takes_no_mask_is_refused_and_one_that_does_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "nets_of_masks.py").write_text(
        "import keras\n"
        "def plain(manifest, config):\n"
        "    x = keras.Input((), dtype='int64', name='value')\n"
        "    y = keras.layers.Dense(2)(keras.ops.cast(x[:, None], 'float32'))\n"
        "    return keras.Model({'value': x}, y)\n"
        "def masked(manifest, config):\n"
        "    x = keras.Input((), dtype='int64', name='value')\n"
        "    m = keras.Input((), dtype='bool', name='missing:value')\n"
        "    y = keras.layers.Dense(2)(keras.ops.cast(m[:, None], 'float32'))\n"
        "    return keras.Model({'value': x, 'missing:value': m}, y)\n"
    )
    values = [None if i % 2 else i for i in range(RECORDS)]
    data = _dataset(tmp_path, "data", values, pa.int64())
    network = {"name": "nets_of_masks:plain"}
    tree = {"data": {"url": data, "exclude": ["key"], "batch_size": 40}, "model": network}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    assert main(["train", "--config", "run.yaml", "--set", "data.eval_split=null"]) == 1
    line = capsys.readouterr().err
    assert "'value' (int64) has missing values, which model.name=nets_of_masks:plain cannot tell from others" in line
    assert "give it an input 'missing:value', bool" in line
    model = _train(tmp_path, data, "nets_of_masks:masked", "", model={"name": "nets_of_masks:masked"})
    assert (
        main(["predict", model, data, "--split", "train", "--out", "out", "--trust-code", "-q", "--keep", "label"]) == 0
    )
    found = pq.read_table(tmp_path / "out")
    assert found["predicted"].equals(found["label"])


def test_a_model_of_an_earlier_version_is_refused_if_values_were_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Earlier versions wrote no masks, so a file and a checkpoint without them are theirs."""
    data = _dataset(tmp_path, "holes", [None, 1, 2, 3] * 100, pa.int64())
    run, old = str(tmp_path / "run"), tmp_path / "old.keras"
    model = _train(tmp_path, data, "tabular", "age", checkpoint={"url": run}, max_steps=10)
    with zipfile.ZipFile(model) as before, zipfile.ZipFile(old, "w") as after:
        for member in before.namelist():
            content = before.read(member)
            if member == "ringfeed.json":
                assert b"ringfeed-model-2" in content
                content = re.sub(rb'"masks": \[[^]]*\]', b'"masks": []', content.replace(b"model-2", b"model-1"))
            after.writestr(member, content)
    store = CheckpointStore(run)
    newest = store.newest()
    assert newest is not None
    state = {name: value for name, value in newest.state.items() if name != "masks"}
    assert len(state) == len(newest.state) - 1
    store.save(replace(newest, state=state))
    out = str(tmp_path / "out")
    for command, source in (
        (["export", str(old), "--out", out], old),
        (["predict", str(old), data, "--split", "train", "--out", out], old),
        (["export", run, "--out", out], run),
        (["train", "--config", str(tmp_path / "run.yaml"), "--set", "max_steps=12"], run),
    ):
        assert main(command) == 1
        line = capsys.readouterr().err
        assert f"{source} is of an earlier version of ringfeed, which passed missing values to the network" in line
        assert line.count("\n") == 1
