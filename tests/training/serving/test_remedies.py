"""Errors of `predict` and `export`, and their remedies: with what the error says, the command succeeds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ringfeed.sharding import build, open_dataset
from ringfeed.tools.cli import main
from ringfeed.tools.shard_dataset.program import main as shard_dataset
from ringfeed.training.checkpoint.store import CheckpointStore
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.model_file import encode_model

from .conftest import Run, trained

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of Keras, as it saves

NETWORK = """
import keras
def build(manifest, config):
    n = keras.Input((), dtype="int32", name="n")
    return keras.Model({"n": n}, keras.layers.Dense(2)(keras.ops.cast(n, "float32")[:, None]))
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, flights: str, pictures: str, flights_run: Run) -> Iterator[Path]:
    """A folder with models, runs and datasets, which is the working directory."""
    folder = tmp_path_factory.mktemp("remedies")
    links = {"model.keras": flights_run.model, "run": flights_run.checkpoints, "flights": flights, "pictures": pictures}
    for name, target in links.items():
        (folder / name).symlink_to(target)
    rows = {"n": pa.array(range(40), pa.int32()), "y": ["a", "b"] * 20}
    gaps = {"n": pa.array([None if i % 3 == 0 else i for i in range(40)], pa.int32()), "y": ["a", "b"] * 20}
    for name, table in (("data", rows), ("gaps", gaps)):
        build(source=pa.table(table), destination=str(folder / name), label="y", shards=2, workers=1, split={"s": 1.0})
    splits = {"train_split": "s", "eval_split": None, "batch_size": 10}
    short = {"model": {"hidden": [4]}, "optimizer": {"name": "sgd", "learning_rate": 0.1}, "max_steps": 2}
    (folder / "moving").mkdir()
    shutil.copytree(folder / "data", folder / "before")
    trained(folder / "moving", {**short, "data": {"url": str(folder / "before"), **splits}})
    (folder / "before").rename(folder / "after")
    (folder / "mixed").mkdir()
    mixture = {name: {"url": str(folder / "data")} for name in "ab"}
    trained(folder / "mixed", {**short, "data": {"mixture": mixture, **splits}})
    (folder / "remedy_network.py").write_text(NETWORK)
    (folder / "full").mkdir()
    (folder / "full" / "thesis").touch()
    (folder / "a.keras").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        config = parse_config({"data": {"url": "data", **splits}, "model": {"name": "remedy_network:build"}}, "a test")
        manifest = open_dataset("data").manifest
        content = encode_model(build_model(manifest, config).network, config, manifest, step=0)
        (folder / "own.keras").write_bytes(content)
        yield folder


SUCCEEDED: set[str] = set()  # remedies of several errors, which are run once
PREDICT = "predict model.keras flights"
OWN = "predict own.keras gaps --trust-code"


@pytest.mark.parametrize(
    ("command", "message", "remedies"),
    [
        (PREDICT, "--split: choose a split; flights has train, test", [f"{PREDICT} --split test"]),
        (f"{PREDICT} --split val", "there is no split 'val'; flights has train, test", [f"{PREDICT} --split test"]),
        (f"{PREDICT} --split test --keep lte", "did you mean 'late'", [f"{PREDICT} --split test --keep late"]),
        (f"{PREDICT} --split test --keep zz", "the columns are: delay,", [f"{PREDICT} --split test --keep delay"]),
        (f"{PREDICT} --split test --keep hour --keep hour", "column once", [f"{PREDICT} --split test --keep late"]),
        (f"{PREDICT} --split test --batch-size 0", "at least 1", [f"{PREDICT} --split test --batch-size 500"]),
        (f"{PREDICT} --split test --out full", "name an empty folder", [f"{PREDICT} --split test"]),
        ("predict nowhere flights --split test", r"name a .keras file .output.model., or a folder of checkpoints",
         [f"{PREDICT} --split test", "predict run flights --split test"]),
        ("export model.keras --out a.h5", "a path ends in .keras, in .onnx, or names a folder",
         [f"export model.keras --out {name}" for name in ("b.keras", "b.onnx", "b")]),
        ("export model.keras --out a.keras", "it is a folder; name a file", ["export model.keras --out c.keras"]),
        ("export model.keras --out full", "choose an empty folder", ["export model.keras"]),
        ("export model.keras --data flights", "goes with a folder of checkpoints; model.keras holds all it needs",
         ["export model.keras", "export run --data flights"]),
        ("export run --data pictures", "name another one with --data URL, or use the model's file",
         ["export run --data flights", "export model.keras"]),
        ("export moving/checkpoints", "there is no dataset at .*before.*; name its place now with --data URL",
         ["export moving/checkpoints --data after"]),
        ("export mixed/checkpoints --data data", "use the model's file .output.model., which needs none",
         ["export mixed/model.keras"]),
        ("predict own.keras data", "if you trust that file, add --trust-code", ["predict own.keras data --trust-code"]),
    ],
)  # fmt: skip
def test_the_remedy_of_an_error_lets_the_command_succeed(
    lab: Path, command: str, message: str, remedies: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(line: str) -> int:
        more = [] if "--out" in line else ["--out", "out"]
        return main([*line.split(), *more, "--quiet"])

    shutil.rmtree("out", ignore_errors=True)
    assert run(command) == 1
    said = capsys.readouterr().err
    assert re.search(message, said), said
    assert said.count("\n") == 1
    for remedy in remedies:
        if remedy not in SUCCEEDED:
            assert run(remedy) == 0, capsys.readouterr().err
            SUCCEEDED.add(remedy)
        shutil.rmtree("out", ignore_errors=True)


def test_records_that_the_model_cannot_take_are_left_out_by_the_command_of_the_error(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*OWN.split(), "--out", "scored", "--quiet"]) == 1
    found = re.search(r"drop such records: shard-dataset (reshard) (--filter) '(.*)'", capsys.readouterr().err)
    assert found is not None
    assert shard_dataset([found[1], "gaps", "without", "--workers", "1", found[2], found[3]]) == 0
    assert main([*OWN.replace("gaps", "without").split(), "--out", "scored", "--quiet"]) == 0


@pytest.mark.parametrize("remedy", ["remove it", "name another folder"])
def test_a_folder_of_other_predictions_or_exports_is_removed_or_avoided(
    lab: Path, remedy: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "keys").mkdir()
    for first, second in [
        (f"{PREDICT} --split test", f"{PREDICT} --split test --keep late"),
        ("export model.keras", "export own.keras --trust-code"),
    ]:
        out = tmp_path / first.split()[0]
        assert main([*first.split(), "--out", str(out), "--quiet"]) == 0
        assert main([*second.split(), "--out", str(out), "--quiet"]) == 1
        said = capsys.readouterr().err
        assert "remove it, or" in said
        assert "another folder" in said
        if remedy == "remove it":
            shutil.rmtree(out)
        else:
            out = tmp_path / f"{out.name}-2"
        assert main([*second.split(), "--out", str(out), "--quiet"]) == 0


def test_without_a_damaged_newest_checkpoint_the_earlier_one_is_used(
    tmp_path: Path, lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(lab / "moving" / "checkpoints", tmp_path / "run")
    store = CheckpointStore(str(tmp_path / "run"))
    newest = store.newest()
    assert newest is not None
    before = {path.name for path in (tmp_path / "run").iterdir()}
    for array in newest.arrays.values():
        if "float" in str(array.dtype):
            array.flat[0] = float("nan")
    position = {**newest.state["position"], "step": newest.step + 1}
    store.save(type(newest)(step=newest.step + 1, arrays=newest.arrays, state={**newest.state, "position": position}))
    command = ["export", str(tmp_path / "run"), "--data", "after", "--out", str(tmp_path / "out"), "--quiet"]
    assert main(command) == 1
    assert "remove the newest checkpoint there, to use an earlier one" in capsys.readouterr().err
    (new,) = {path.name for path in (tmp_path / "run").iterdir()} - before
    (tmp_path / "run" / new).unlink()
    assert main(command) == 0
