"""`ringfeed export`: what other programs load gives what the evaluation of the run got."""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx.reference
import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.sharding.errors import TrainingError
from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.model_file import encode_model
from ringfeed.training.serving.saved_model import input_names
from ringfeed.training.serving.trained import open_trained

from .conftest import Run, trained

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__:DeprecationWarning",  # of Keras, as it saves
)


def _confusion(loader: Loader, predicted: list[Any]) -> list[list[int]]:
    names = [str(name) for name in loader.manifest.classes]
    truth = np.concatenate([batch["class_id"].numpy() for batch in loader.epoch(0)])
    found = np.array([names.index(name.decode()) for name in np.concatenate(predicted)])
    count = len(names)
    return np.bincount(truth * count + found, minlength=count**2).reshape(count, count).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("source", ["model", "checkpoints"])
def test_a_saved_model_takes_raw_columns(tmp_path: Path, flights: str, flights_run: Run, source: str) -> None:
    out = tmp_path / "served" / "1"
    assert main(["export", getattr(flights_run, source), "--out", str(out), "--quiet"]) == 0
    described = json.loads((out / "assets.extra" / "ringfeed.json").read_text())
    columns = {entry["column"]: entry for entry in described["inputs"]}
    assert {name: entry["dtype"] for name, entry in columns.items()} == {
        "delay": "float32", "distance": "int64", "hour": "int32", "carrier": "string",
    }  # fmt: skip
    masks = {name: entry["missing"] for name, entry in columns.items() if "missing" in entry}
    assert masks == {"distance": "missing_distance", "carrier": "missing_carrier"}
    loader = Loader(flights, split="test", batch_size=100, masks=list(masks), shuffle=False)
    served = tf.saved_model.load(str(out))
    names = served.signatures["classes"]()["classes"].numpy().tolist()
    assert names == [b"late", b"on time"]
    predicted = []
    for batch in loader.epoch(0):
        missing = {name: batch[f"missing:{column}"] for column, name in masks.items()}
        answers = served.signatures["with_missing"](**{name: batch[name] for name in columns}, **missing)
        probabilities = answers["probabilities"].numpy()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        assert answers["class"].numpy().tolist() == [names[i] for i in probabilities.argmax(axis=1)]
        predicted.append(answers["class"].numpy())
    assert _confusion(loader, predicted) == flights_run.metrics["final"]["confusion"]


def test_a_saved_model_takes_the_bytes_of_images(tmp_path: Path, pictures: str) -> None:
    network = {"name": "convnet", "filters": [4], "hidden": [4], "image_shape": [8, 8, 1]}
    config = parse_config({"data": {"url": pictures}, "model": network, "augment": {"flip_left_right": True}}, "a test")
    loader = Loader(pictures, split="test", batch_size=40, columns=["image"])
    untrained = build_model(loader.manifest, config).network
    (tmp_path / "model.keras").write_bytes(encode_model(untrained, config, loader.manifest, step=0))
    assert main(["export", str(tmp_path / "model.keras"), "--out", str(tmp_path / "served"), "--json"]) == 0
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    images = next(iter(loader.epoch(0)))["image"]
    assert images.dtype == tf.string
    pixels = np.stack([tf.io.decode_png(image, 1).numpy() for image in images]) / 255
    expected = keras.ops.softmax(untrained(pixels)).numpy()
    np.testing.assert_allclose(served(image=images)["probabilities"], expected, rtol=1e-4)


def test_keras_and_onnx_take_the_inputs_of_the_network(tmp_path: Path, flights: str, flights_run: Run) -> None:
    for name in ("again.keras", "again.onnx"):
        assert main(["export", flights_run.checkpoints, "--out", str(tmp_path / name), "--quiet"]) == 0
    model = open_trained(flights_run.model)
    loader = Loader(flights, split="test", batch_size=100, masks=[column.name for column in model.masked])
    columns = next(iter(loader.epoch(0)))
    inputs, expected = model.inputs(columns), model.scores(columns).numpy()
    logits = keras.models.load_model(tmp_path / "again.keras")(inputs)
    np.testing.assert_allclose(keras.ops.softmax(logits), expected, rtol=1e-6)
    graph = onnx.load(tmp_path / "again.onnx")
    evaluator = onnx.reference.ReferenceEvaluator(graph)
    (found,) = evaluator.run(None, {name: inputs[name].numpy() for name in inputs})
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert json.loads(graph.metadata_props[0].value) == ["late", "on time"]


def test_what_cannot_be_exported_is_refused_in_one_line(
    tmp_path: Path, flights_run: Run, pictures: str, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign.keras"
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]).save(foreign)
    damaged = tmp_path / "damaged.keras"
    damaged.write_bytes(foreign.read_bytes()[:-40])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for source, out, more, error in [
        (str(foreign), "out", [], "has no preprocessing in it"),
        (str(damaged), "out", [], "is not a .keras file, or is damaged"),
        (str(tmp_path / "none.keras"), "out", [], "there is no model at"),
        (str(tmp_path / "none"), "out", [], "there is no model at"),
        (__file__, "out", [], "name a .keras file (output.model), or a folder of checkpoints"),
        (flights_run.model, "out.pb", [], "--out: a path ends in .keras, in .onnx, or names a folder"),
        (flights_run.model, "full", [], "is not empty (there is 'file'); choose an empty folder"),
        (flights_run.model, "out", ["--data", pictures], "--data goes with a folder of checkpoints"),
        (flights_run.checkpoints, "out", ["--data", pictures], "is not, or no longer, that of the checkpoints"),
        (flights_run.checkpoints, "out", ["--data", str(tmp_path)], "there is no dataset at"),
    ]:
        assert main(["export", source, "--out", str(tmp_path / out), *more]) == 1
        line = capsys.readouterr().err
        assert line.startswith("ringfeed: error: ")
        assert error in line
        assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_weights_of_other_code_are_refused(tmp_path: Path, flights_run: Run) -> None:
    other = tmp_path / "other.keras"
    with zipfile.ZipFile(flights_run.model) as before, zipfile.ZipFile(other, "w") as after:
        for name in before.namelist():
            after.writestr(name, re.sub(rb'("hidden": \[\s*)8', rb"\g<1>9", before.read(name)))
    with pytest.raises(TrainingError, match="do not fit the network that model"):
        open_trained(str(other))


@pytest.mark.parametrize("command", ["export", "predict"])
def test_code_that_a_model_names_is_called_only_if_trusted(
    tmp_path: Path,
    flights: str,
    flights_run: Run,
    capsys: pytest.CaptureFixture[str],
    command: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("planted.py").write_text("def build(manifest, config):\n    open('ran', 'w').close()\n")
    with zipfile.ZipFile(flights_run.model) as before, zipfile.ZipFile("planted.keras", "w") as after:
        for name in before.namelist():
            named = re.sub(rb'("model": \{\s*"name": )"\w+"', rb'\1"planted:build"', before.read(name))
            after.writestr(name, named if name == "ringfeed.json" else before.read(name))
    words = [command, "planted.keras", *([flights] if command == "predict" else []), "--out", "out"]
    split = ["--split", "test"] if command == "predict" else []
    assert main([*words, *split]) == 1
    assert "planted:build), which was not imported; if you trust that file, add --trust-code" in capsys.readouterr().err
    assert not Path("ran").exists()
    assert main([*words, *split, "--trust-code"]) == 1
    assert "must return a keras.Model" in capsys.readouterr().err
    assert Path("ran").exists()


def test_columns_with_names_that_tensorflow_refuses_are_renamed() -> None:
    assert input_names(["hour", "delay (min)", "delay [min]", "7"]) == {
        "hour": "hour", "delay (min)": "delay__min_", "delay [min]": "delay__min__1", "7": "column_7",
    }  # fmt: skip


@pytest.mark.parametrize("free", [0, 16, 40, 100])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    free: int, small_disk: Path, flights_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_disk / "ballast").write_bytes(bytes((os.statvfs(small_disk).f_bavail - free // 4) * 4096))
    for out in ("served", "model.keras"):
        status = main(["export", flights_run.model, "--out", str(small_disk / out), "--quiet"])
        if status:
            (line,) = capsys.readouterr().err.splitlines()
            assert re.search(rf"cannot write {small_disk}/\S+: the disk is full; free space or", line)
            assert [path.name for path in small_disk.iterdir()] == ["ballast"]
        else:
            shutil.rmtree(small_disk / out) if out == "served" else (small_disk / out).unlink()
        assert status or free == 100
    (small_disk / "ballast").unlink()  # the remedy
    assert main(["export", flights_run.model, "--out", str(small_disk / "served"), "--quiet"]) == 0


def test_a_finished_export_is_found_by_the_same_model_and_refused_to_others(
    tmp_path: Path, flights: str, flights_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "served"
    other = trained(tmp_path, {"data": {"url": flights, "batch_size": 100}, "max_steps": 1})
    assert main(["export", flights_run.model, "--out", str(out), "-q"]) == 0
    whole = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    for same in flights_run[:2]:  # the file, and the checkpoint of the same step
        assert main(["export", same, "--out", str(out)]) == 0
        assert f" is there already: {out} (saved_model)\n" in capsys.readouterr().out
    assert main(["export", other.model, "--out", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "holds an export already, but not this one" in said
    assert "remove it, or choose another folder" in said
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == whole
