"""`ringfeed predict`: the predictions of the evaluation, with the keys of the records, on any number of ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, DestinationError, build, open_dataset
from ringfeed.sharding.destination.held_folder import hold_folder
from ringfeed.sharding.storage.storage import Storage
from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.model_file import encode_model
from ringfeed.training.serving.predictions import Predictor, hold_predictions
from ringfeed.training.serving.trained import open_trained
from tests.helpers.thread_ring import on_ranks

from .conftest import Run, trained

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves


def test_each_record_once_on_any_number_of_ranks(tmp_path: Path, flights: str, flights_run: Run) -> None:
    command = ["predict", flights_run.model, flights, "--split", "test", "--keep", "late", "--keep", "distance"]
    assert main([*command, "--out", str(tmp_path / "alone"), "--batch-size", "300", "--quiet"]) == 0
    alone = pq.read_table(tmp_path / "alone")
    assert alone["record"].to_pylist() == list(range(1000))
    summary = json.loads((tmp_path / "alone" / "_predictions.json").read_text())
    assert (summary["records"], summary["classes"]) == (1000, ["late", "on time"])

    classes = np.array(summary["classes"])
    truth, found = (np.searchsorted(classes, alone[name].to_numpy()) for name in ("late", "predicted"))
    confusion = np.bincount(truth * 2 + found, minlength=4).reshape(2, 2)
    assert confusion.tolist() == flights_run.metrics["final"]["confusion"]
    scores = np.array(alone["scores"].to_pylist())
    assert (classes[scores.argmax(axis=1)] == alone["predicted"].to_numpy()).all()
    np.testing.assert_array_equal(scores.max(axis=1), alone["score"])

    loader = Loader(flights, split="test", batch_size=1, columns=["distance"], fill={"distance": -1})
    stored = [int(loader.sample(index)["distance"]) for index in range(0, 1000, 97)]
    assert alone["distance"].fill_null(-1).to_pylist()[::97] == stored
    assert alone["distance"].null_count > 50

    manifest = open_dataset(flights).manifest
    predictor = Predictor(
        model=open_trained(flights_run.model),
        url=flights,
        manifest=manifest,
        split="test",
        keep=["late"],
        batch_size=64,
    )
    on_ranks(3, lambda ring: predictor.run(ring, Storage(str(tmp_path / "parts"))))
    parts = [pq.read_table(path) for path in sorted((tmp_path / "parts").glob("*.parquet"))]
    assert [part.num_rows for part in parts] == [333, 333, 334]
    joined = pa.concat_tables(parts)
    for name in ("record", "late", "predicted"):
        assert joined[name].equals(alone[name])
    np.testing.assert_allclose(joined["score"], alone["score"], rtol=1e-5)


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_other_tasks_have_predictions_of_their_own(tmp_path: Path, task: str) -> None:
    number = np.arange(60)
    table = {"x": (number % 7).astype(np.float32), "y": number % 5 / 3, "tags": [[i % 3] * (i % 2) for i in number]}
    flag = number % 7 > 3
    pq.write_table(pa.table({**table, "flag": flag}), tmp_path / "source.parquet")
    data = str(tmp_path / "data")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=data, shards=2))
    target = {"binary": "flag", "multilabel": "tags", "regression": "y"}[task]
    columns = {"url": data, "include": ["x"], "target": target, "eval_split": None}
    config = parse_config({"data": columns, "model": {"hidden": [4]}, "task": task}, "a test")
    manifest = open_dataset(data).manifest
    network = build_model(manifest, config).network
    (tmp_path / "model.keras").write_bytes(encode_model(network, config, manifest, step=0))
    command = ["predict", str(tmp_path / "model.keras"), data, "--keep", "x", "--keep", "tags", "--quiet"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    found = pq.read_table(tmp_path / "out")
    assert sorted(zip(found["x"].to_pylist(), map(len, found["tags"].to_pylist()), strict=True)) == sorted(
        zip(table["x"].tolist(), map(len, table["tags"]), strict=True)
    )
    own = open_trained(str(tmp_path / "model.keras"))
    outputs = network(own.inputs({"x": found["x"].to_numpy()})).numpy()
    probabilities = 1 / (1 + np.exp(-outputs))
    if task == "regression":
        np.testing.assert_allclose(found["predicted"], outputs[:, 0], rtol=1e-5)
        assert found.column_names == ["record", "x", "tags", "predicted"]
    elif task == "binary":
        np.testing.assert_allclose(np.array(found["scores"].to_pylist())[:, 1], probabilities[:, 0], rtol=1e-5)
        assert found["predicted"].to_pylist() == np.where(probabilities[:, 0] > 0.5, "true", "false").tolist()
    else:
        np.testing.assert_allclose(found["scores"].to_pylist(), probabilities, rtol=1e-5)
        names = [[str(label) for label in np.flatnonzero(row >= 0.5)] for row in probabilities]
        assert found["predicted"].to_pylist() == names


@pytest.mark.usefixtures("s3_env")
def test_predictions_go_to_a_store(
    flights: str, flights_run: Run, s3_bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = f"s3://{s3_bucket}/predictions"
    storage = Storage(out)
    storage.write("part-00001-of-00002.parquet", b"of a command that did not end")
    assert main(["predict", flights_run.checkpoints, flights, "--split", "test", "--out", out, "--json"]) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert sorted(storage.list()) == ["_predictions.json", "part-00000-of-00001.parquet"]
    assert pq.read_table(pa.BufferReader(storage.read(summary["files"][0]["path"]))).num_rows == 1000


def test_what_cannot_be_predicted_is_refused_in_one_line(
    tmp_path: Path, flights: str, pictures: str, flights_run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "_predictions.json").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    damaged = tmp_path / "damaged"
    shutil.copytree(flights, damaged)
    shard = next(damaged.glob("test-*"))
    shard.write_bytes(shard.read_bytes()[:-7])
    for url, out, more, error in [
        (str(damaged), "out", ["--split", "test"], f"{shard} is damaged: it has "),
        (flights, "out", [], "--split: choose a split; "),
        (flights, "out", ["--split", "val"], "--split: there is no split 'val'"),
        (pictures, "out", ["--split", "test"], "has no column 'delay', which the model takes"),
        (flights, "out", ["--split", "test", "--keep", "lte"], "has no column 'lte'; did you mean 'late'?"),
        (flights, "out", ["--split", "test", "--batch-size", "0"], "--batch-size must be at least 1"),
        (flights, "done", ["--split", "test"], "holds predictions already"),
        (flights, "other", ["--split", "test"], "holds other files (file)"),
        (str(tmp_path), "out", ["--split", "test"], "there is no dataset at"),
    ]:
        assert main(["predict", flights_run.model, url, "--out", str(tmp_path / out), *more]) == 1
        line = capsys.readouterr().err
        assert line.startswith("ringfeed predict: error: ")
        assert error in line
        assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_parts_of_a_command_that_did_not_end_are_removed(tmp_path: Path) -> None:
    for name in ("part-00003-of-00004.parquet", ".part-00000-of-00004.parquet.0123abcd.part"):
        (tmp_path / name).touch()
    with hold_predictions(str(tmp_path), "a"):
        assert [path.name for path in tmp_path.iterdir()] == ["_predicting.json"]
        with pytest.raises(DestinationError, match=r"another predict is writing to .*, or name another folder with"):
            hold_predictions(str(tmp_path), "a").__enter__()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "centre"),
    [("int64", 1_700_000_000), ("float64", 10**11), ("int64", 2**53 - 10**6), ("uint64", 2**53), ("float32", 0)],
)
def test_metrics_of_a_regression_are_those_of_its_predictions_far_from_0(
    tmp_path: Path, kind: str, centre: int
) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    draw = np.random.default_rng(0).normal(size=500)
    true = (centre + 1000 * draw).astype(kind) if centre < 2**52 else centre + np.round(1000 * draw).astype(kind)
    table = pa.table({"key": np.arange(500), "x": draw, "y": pa.array(true, pa.type_for_alias(kind))})
    data, out = str(tmp_path / "data"), tmp_path / "out"
    build(source=table, destination=data, split={"train": 0.8, "test": 0.2}, workers=1)
    tree = {
        "task": "regression",
        "data": {"url": data, "batch_size": 50, "target": "y", "exclude": ["key"]},
        "model": {"name": "tabular", "hidden": []},
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.5},
        "epochs": 4,
    }
    run = trained(tmp_path, tree)
    command = ["predict", run.model, data, "--split", "test", "--out", str(out), "--keep", "key", "--quiet"]
    assert main(command) == 0
    found = pq.read_table(out)
    predicted, truth = found["predicted"].to_numpy(), true[found["key"].to_numpy()].astype(np.float64)
    assert predicted.dtype == np.float64
    final = run.metrics["final"]
    assert final["rmse"] == pytest.approx(metrics.root_mean_squared_error(truth, predicted), rel=1e-6)
    assert final["mae"] == pytest.approx(metrics.mean_absolute_error(truth, predicted), rel=1e-6)
    assert final["r2"] == pytest.approx(metrics.r2_score(truth, predicted), rel=1e-4, abs=1e-7)
    assert final["r2"] > 0.9  # it has learned, from the mean on


@pytest.mark.parametrize("task", ["binary", "multilabel", "regression"])
def test_scores_that_are_nan_predict_nothing_and_are_counted(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A network of the user takes missing floats as NaN, where the built-in ones have the mean."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    width = 3 if task == "multilabel" else 1
    (tmp_path / f"nan_{task}.py").write_text(
        "import keras\n"
        "def build(manifest, config):\n"
        "    x = keras.Input((), name='x')\n"
        f"    return keras.Model({{'x': x}}, keras.layers.Dense({width})(x[:, None]))\n"
    )
    x = [None if i % 4 == 0 else float(i) for i in range(40)]
    tags, y = [[i % 3] for i in range(40)], [float(i) for i in range(40)]
    table = pa.table({"x": pa.array(x, pa.float32()), "y": y, "tags": tags, "flag": [i % 2 == 0 for i in range(40)]})
    build(source=table, destination="d", shards=1, workers=1, split={"train": 1.0})
    target = {"binary": "flag", "multilabel": "tags", "regression": "y"}[task]
    data = {"url": "d", "include": ["x"], "target": target, "eval_split": None}
    config = parse_config({"data": data, "model": {"name": f"nan_{task}:build"}, "task": task}, "a test")
    manifest = open_dataset("d").manifest
    Path("m.keras").write_bytes(encode_model(build_model(manifest, config).network, config, manifest, step=0))
    command = ["predict", "m.keras", "d", "--out", "out", "--keep", "x", "--trust-code", "--json"]
    assert main(command) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["undefined"] == 10
    assert "the scores of 10 records are NaN" in said.err
    found = pq.read_table("out")
    assert [value is None for value in found["predicted"].to_pylist()] == [v is None for v in found["x"].to_pylist()]


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("killed", [False, True])
def test_finished_predictions_are_found_by_the_same_command_and_refused_to_others(
    tmp_path: Path, flights: str, flights_run: Run, capsys: pytest.CaptureFixture[str], killed: bool
) -> None:
    """Killed: after the last file was written, before the lease was released."""
    out, trained_again = tmp_path / "out", tmp_path / "again"
    command = ["predict", flights_run.model, flights, "--split", "test", "--out", str(out)]
    assert main(command) == 0
    whole = _contents(out)
    if killed:
        with hold_folder(Storage(str(tmp_path / "other")), {"task": "predict"}, "_predicting.json", "") as held:
            (out / "_predicting.json").write_bytes(held.read("_predicting.json"))
    capsys.readouterr()
    for same in ([], ["--batch-size", "7"]):  # the batch size changes no prediction
        assert main([*command, *same]) == 0
        assert capsys.readouterr().out == f"the predictions of 1,000 records of 'test' are there already: {out}\n"
        assert _contents(out) == whole
    assert main([command[0], flights_run.checkpoints, *command[2:], "--json"]) == 0  # the same step of the same run
    said = json.loads(capsys.readouterr().out)
    assert {key: value for key, value in said.items() if key != "seconds"} == json.loads(whole["_predictions.json"])

    rebuilt = shutil.copytree(flights, tmp_path / "elsewhere")
    assert main([*command[:2], str(rebuilt), *command[3:]]) == 0  # the same dataset at another place
    trained_again.mkdir()
    other = trained(trained_again, {"data": {"url": flights, "batch_size": 100}, "max_steps": 1})
    for model, more in [(other.model, []), (flights_run.model, ["--keep", "late"])]:
        assert main([command[0], model, *command[2:], *more]) == 1
        said_last = capsys.readouterr().err.splitlines()[-1]
        assert "holds predictions already, but not" in said_last
        assert "remove it, or name another folder" in said_last
        assert _contents(out) == whole
    (out / "part-00000-of-00001.parquet").unlink()
    assert main(command) == 1  # not complete
