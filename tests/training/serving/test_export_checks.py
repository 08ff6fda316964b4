"""Every export is opened and compared before it is committed; what no runtime loads is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnx.reference
import pyarrow as pa
import pytest
import tensorflow as tf

from ringfeed.sharding import build, open_dataset
from ringfeed.sharding.errors import TrainingError
from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.model_file import encode_model
from ringfeed.training.serving import check_export
from ringfeed.training.serving.check_export import trial_batch
from ringfeed.training.serving.trained import open_trained

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves

RECORDS = 60
COLUMNS: dict[str, Any] = {
    "number": pa.array([None if i % 7 == 0 else i for i in range(RECORDS)], pa.int32()),
    "share": pa.array(np.linspace(-1, 1, RECORDS), pa.float32()),
    "word": pa.array([None if i % 5 == 0 else "abc"[i % 3] for i in range(RECORDS)]),
    "tokens": pa.array([[f"t{j}" for j in range(i % 4)] for i in range(RECORDS)], pa.list_(pa.string())),
    "y": pa.array(1e9 + np.arange(RECORDS) * 10.0),
}
NETWORKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "tabular": ({"hidden": [4]}, ["number", "share", "word"]),
    "wide_deep": ({"hidden": [4], "hash_buckets": 16, "crosses": [["word", "number"]]}, ["number", "share", "word"]),
    "convnet": ({"filters": [2], "hidden": [4], "image_shape": [8, 8, 1]}, ["picture"]),
    "lenet": ({"image_shape": [28, 28, 1]}, ["picture"]),
    "resnet18": ({"image_shape": [32, 32, 1]}, ["picture"]),
    "resnet50": ({"image_shape": [32, 32, 1]}, ["picture"]),
    "text": ({"width": 8, "heads": 2, "layers": 1, "hash_buckets": 16, "max_length": 8}, ["tokens"]),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of all kinds of columns, with missing values."""
    rng = np.random.default_rng(0)
    pictures = [tf.io.encode_png(rng.integers(0, 256, (8, 8, 1), np.uint8)).numpy() for _ in range(RECORDS)]
    table = pa.table({**COLUMNS, "picture": pa.array(pictures), "label": ["a", "b", "c"] * (RECORDS // 3)})
    url = str(tmp_path_factory.mktemp("columns") / "d")
    build(source=table, destination=url, label="label", shards=1, workers=1, split={"train": 1.0})
    return url


def _model(folder: Path, dataset: str, network: str, task: str = "multiclass", **more: Any) -> str:
    """The file of an untrained model."""
    options, columns = NETWORKS.get(network, ({}, ["share"]))
    codes = ["number"] if network == "wide_deep" else []
    target = "y" if task == "regression" else None
    data = {"url": dataset, "include": columns, "categorical": codes, "eval_split": None, "target": target}
    tree = {"task": task, "data": data, "model": {"name": network, **options}, **more}
    config, manifest = parse_config(tree, "a test"), open_dataset(dataset).manifest
    network_of = build_model(manifest, config).network
    path = folder / "model.keras"
    path.write_bytes(encode_model(network_of, config, manifest, step=0))
    return str(path)


LARGE = [pytest.param(name, marks=pytest.mark.campaign) for name in ("resnet18", "resnet50")]


@pytest.mark.parametrize("network", [*(name for name in NETWORKS if "resnet" not in name), *LARGE])
def test_each_built_in_network_is_exported_in_each_format(tmp_path: Path, dataset: str, network: str) -> None:
    source = _model(tmp_path, dataset, network)
    model = open_trained(source)
    batch = trial_batch(model)
    inputs, expected = model.inputs(batch), model.scores(batch).numpy()
    for out in ("again.keras", "again.onnx", "served"):
        assert main(["export", source, "--out", str(tmp_path / out), "--quiet"]) == 0
    logits = keras.models.load_model(tmp_path / "again.keras")(inputs)
    np.testing.assert_allclose(tf.nn.softmax(logits), expected, rtol=1e-3, atol=1e-5)
    graph = onnx.load(tmp_path / "again.onnx")
    assert {node.domain for node in graph.graph.node} <= {"", "ai.onnx"}
    given = [inputs] if tf.is_tensor(inputs) else list(inputs.values())
    names = [model.network.input.name] if tf.is_tensor(inputs) else list(inputs)
    evaluator = onnx.reference.ReferenceEvaluator(graph)
    tensors = {name: tensor.numpy() for name, tensor in zip(names, given, strict=True)}
    with np.errstate(all="ignore"):  # the mean over no tokens
        (found,) = evaluator.run(None, {name: tensors[name] for name in evaluator.input_names})
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_a_regression_far_from_0_is_exported_with_all_its_digits(tmp_path: Path, dataset: str) -> None:
    source = _model(tmp_path, dataset, "tabular", "regression")
    model = open_trained(source)
    batch = trial_batch(model)
    expected = model.scores(batch).numpy()
    assert expected.dtype == np.float64
    for out in ("again.keras", "again.onnx", "served"):
        assert main(["export", source, "--out", str(tmp_path / out), "--quiet"]) == 0
    again = keras.models.load_model(tmp_path / "again.keras")(model.inputs(batch))
    np.testing.assert_allclose(again, expected, rtol=1e-12)
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load(tmp_path / "again.onnx"))
    (found,) = evaluator.run(None, {name: tensor.numpy() for name, tensor in model.inputs(batch).items()})
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_what_no_runtime_loads_is_refused_and_nothing_is_written(
    tmp_path: Path, dataset: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`StringLookup` has no counterpart in ONNX; tf2onnx only logs that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "looking_up.py").write_text(
        "import keras\n"
        "def build(manifest, config):\n"
        "    word = keras.Input((), dtype='string', name='label_text')\n"
        "    codes = keras.layers.StringLookup(vocabulary=['a', 'b'], output_mode='one_hot')(word)\n"
        "    return keras.Model({'label_text': word}, keras.layers.Dense(3)(codes))\n"
    )
    table = pa.table({"label_text": ["a", "b", "c"] * 20, "label": ["a", "b", "c"] * 20})
    build(source=table, destination="texts", label="label", shards=1, workers=1, split={"train": 1.0})
    data = {"url": "texts", "eval_split": None}
    config = parse_config({"data": data, "model": {"name": "looking_up:build"}}, "a test")
    manifest = open_dataset("texts").manifest
    Path("model.keras").write_bytes(encode_model(build_model(manifest, config).network, config, manifest, step=0))
    assert main(["export", "model.keras", "--out", "m.onnx", "--trust-code"]) == 1
    line = capsys.readouterr().err
    assert "model.name=looking_up:build cannot be exported as ONNX" in line
    assert "export it as a SavedModel: --out FOLDER" in line
    assert line.count("\n") == 1
    assert not Path("m.onnx").exists()
    for out in ("again.keras", "served"):
        assert main(["export", "model.keras", "--out", out, "--trust-code", "--quiet"]) == 0


def test_an_export_of_other_weights_is_found(tmp_path: Path, dataset: str) -> None:
    source = _model(tmp_path, dataset, "tabular")
    other = open_trained(source)
    for name in ("m.onnx", "served"):
        assert main(["export", source, "--out", str(tmp_path / name), "--quiet"]) == 0
    for weight in other.network.weights:
        weight.assign(weight + 0.5)
    with pytest.raises(TrainingError, match="its scores differ from the model's, by up to"):
        check_export.check_saved_model(other, tmp_path / "served")
    with pytest.raises(TrainingError, match="its scores differ from the model's, by up to"):
        check_export.check_keras(other, Path(source))
    with pytest.raises(TrainingError, match="its scores differ from the model's, by up to"):
        check_export.check_onnx(other, (tmp_path / "m.onnx").read_bytes())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_whose_weights_are_not_finite_is_refused(
    tmp_path: Path, dataset: str, bad: float, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(_model(tmp_path, dataset, "tabular"))
    model = open_trained(str(source))
    weight = model.network.trainable_variables[0]
    values = weight.numpy()
    values.flat[0] = bad
    weight.assign(values)
    source.write_bytes(encode_model(model.network, model.config, model.manifest, step=3))
    for command in (["export", str(source)], ["predict", str(source), dataset]):
        assert main([*command, "--out", str(tmp_path / "out")]) == 1
        line = capsys.readouterr().err
        assert f"{source}: its weights are not all finite" in line
        assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()
