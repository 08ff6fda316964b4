"""Trackers of real runs: each has every step once, also after the run was resumed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf
from fsspec.implementations.memory import MemoryFileSystem

from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.config.config_file import load_config, parse_config
from ringfeed.training.reports.events import EvaluationDone, RunBegan, RunEnded, StepDone, StepsLogged
from ringfeed.training.reports.files import CSVFiles, JSONLines
from ringfeed.training.reports.mlflow import MLflow
from ringfeed.training.reports.open import open_reports
from ringfeed.training.reports.profiler import Profiler
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.trainer import Trainer

STEPS = {"step": 20, "epoch": 0, "loss": float("nan"), "samples_per_second": 9.5}
EVALUATION = {"step": 50, "epoch": 0, "loss": 0.5, "auc": None, "recall": {"late": 1.0, "on time": 0.5}}


def _tensorboard(folder: Path) -> dict[str, list[int]]:
    """The steps of each series."""
    found: dict[str, list[int]] = {}
    for path in folder.glob("events.out.tfevents.*"):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


def test_each_has_every_step_of_a_resumed_run_once(tmp_path: Path, write_config: Callable[..., Path]) -> None:
    mlflow = pytest.importorskip("mlflow.tracking")
    places = {name: str(tmp_path / "t" / name) for name in ("csv", "tensorboard", "mlflow", "profile")}
    track = {**places, "jsonl": str(tmp_path / "t" / "log.jsonl"), "mlflow_run": "first", "profile_steps": [3, 5]}
    path = str(write_config(checkpoint={"url": str(tmp_path / "checkpoints")}, track=track))
    Trainer(load_config(path, ["max_steps=50"]), SoloRing()).run()
    with (tmp_path / "t" / "log.jsonl").open("a") as file:
        file.write('{"event": "steps", "step": 70}\n')  # of a run that was killed after its checkpoint
    history = Trainer(load_config(path), SoloRing()).run()["history"]

    steps = [entry["step"] for entry in history["steps"]]
    assert steps[-1] == 100
    lines = [json.loads(line) for line in (tmp_path / "t" / "log.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if line["event"] == "steps"] == [e["loss"] for e in history["steps"]]
    assert [(line["event"], line["step"]) for line in lines if line["step"] == 50][-1] == ("evaluation", 50)
    restored, own = (line for line in lines if line["event"] == "evaluation")  # that of a checkpoint, and a new one
    assert list(restored) == list(own)
    assert list(restored["recall"]) == list(own["recall"])
    assert list(own)[:3] == ["event", "step", "epoch"]
    with (tmp_path / "t/csv/steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["step"]), float(row["loss"])) for row in rows] == [
        (e["step"], e["loss"]) for e in history["steps"]
    ]
    with (tmp_path / "t/csv/evaluations.csv").open() as file:
        assert [row["accuracy"] for row in csv.DictReader(file)] == [str(e["accuracy"]) for e in history["evaluations"]]
    series = _tensorboard(tmp_path / "t" / "tensorboard")
    assert series["train/loss"] == series["train/learning_rate"] == steps
    assert series["evaluation/balanced_accuracy"] == [50, 100]
    assert all(path.stat().st_size for path in (tmp_path / "t").glob("profile/**/*.xplane.pb"))
    assert len(list((tmp_path / "t").glob("profile/**/*.xplane.pb"))) == 1

    client = mlflow.MlflowClient(tracking_uri=places["mlflow"])
    (run,) = client.search_runs([client.get_experiment_by_name("ringfeed").experiment_id])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["optimizer.name"] == "lars"
    assert run.data.params["ranks"] == "1"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "train/loss")] == steps


def test_a_store_has_the_files_after_each_evaluation_and_at_the_end() -> None:
    lines, tables = JSONLines("memory://runs/log.jsonl"), CSVFiles("memory://runs/1/")
    for tracker in (lines, tables):
        tracker.begin(RunBegan(total_steps=60))
        tracker.steps(StepsLogged(STEPS))
        tracker.evaluation(EvaluationDone(EVALUATION))
    store = MemoryFileSystem()
    first, second = map(json.loads, store.cat("/runs/log.jsonl").splitlines())
    assert first == {"event": "steps", **STEPS, "loss": None}
    assert second == {"event": "evaluation", **EVALUATION}
    assert store.cat("/runs/1/steps.csv") == b"step,epoch,loss,samples_per_second\n20,0,nan,9.5\n"
    assert store.cat("/runs/1/evaluations.csv") == (
        b"step,epoch,auc,loss,recall/late,recall/on time\n50,0,,0.5,1.0,0.5\n"
    )
    tables.evaluation(EvaluationDone(EVALUATION | {"auc": 0.75}))
    assert store.cat("/runs/1/evaluations.csv").endswith(b"50,0,0.75,0.5,1.0,0.5\n")
    lines.steps(StepsLogged(STEPS))
    lines.close(RunEnded(50, 0, is_finished=False))
    assert len(store.cat("/runs/log.jsonl").splitlines()) == 3


def test_what_cannot_be_is_refused_in_one_line() -> None:
    for name in ("tensorboard", "profile", "timeline"):
        with pytest.raises(ConfigError, match=rf"track\.{name} must be a path on a disk, or null, got 's3://b/x'"):
            parse_config({"data": {"url": "x"}, "track": {name: "s3://b/x"}}, "a.yaml")
    with pytest.raises(ConfigError, match=r"track\.profile_steps must be \[first, stop\]"):
        parse_config({"data": {"url": "x"}, "track": {"profile_steps": [5, 5]}}, "a.yaml")
    with pytest.raises(ConfigError, match=r"track\.own must be a list of module:function, got 'Notes'"):
        parse_config({"data": {"url": "x"}, "track": {"own": ["Notes"]}}, "a.yaml")
    config = parse_config({"data": {"url": "x"}, "track": {"own": ["builtins:dict"]}}, "a.yaml")
    assert open_reports(config, is_chief=False) == []
    with pytest.raises(ConfigError, match=r"^track\.own: builtins:dict must return a ringfeed\.training\.Tracker"):
        open_reports(config, is_chief=True)
    tracker = MLflow("nonsense://here", "ringfeed", None)
    with pytest.raises(TrainingError, match=r"^track\.mlflow=nonsense://here: ") as caught:
        tracker.begin(RunBegan(total_steps=60))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("first_step", "calls"), [(0, ["start 3", "stop 5"]), (4, ["start 4", "stop 5"]), (5, [])])
def test_a_trace_is_of_the_steps_that_are_left(
    monkeypatch: pytest.MonkeyPatch, first_step: int, calls: list[str]
) -> None:
    found: list[str] = []
    done = first_step
    monkeypatch.setattr(tf.profiler.experimental, "start", lambda folder: found.append(f"start {done}"))
    monkeypatch.setattr(tf.profiler.experimental, "stop", lambda: found.append(f"stop {done}"))
    profiler = Profiler("unused", 3, 5)
    profiler.begin(RunBegan(first_step=first_step, total_steps=9))
    for done in range(first_step + 1, 10):
        profiler.step(StepDone(done, 0))
    profiler.close(RunEnded(9, 0, is_finished=True))
    assert found == calls


def test_a_trace_that_a_run_ends_before_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The steps that the warning names are traced."""
    start = RunBegan(total_steps=8)
    profiler = Profiler(str(tmp_path / "never"), 10, 20)
    profiler.begin(start)
    for step in range(1, 9):
        profiler.step(StepDone(step, 0))
    profiler.close(RunEnded(9, 0, is_finished=True))
    (warning,) = caplog.messages
    assert "ends after 8 steps, before track.profile_steps=[10, 20]; set track.profile_steps=[1, 8]" in warning
    assert not (tmp_path / "never").exists()
    caplog.clear()
    again = Profiler(str(tmp_path / "trace"), 1, 8)
    again.begin(start)
    for step in range(1, 9):
        again.step(StepDone(step, 0))
    again.close(RunEnded(8, 0, is_finished=True))
    assert not caplog.messages
    assert any(path.is_file() for path in (tmp_path / "trace").rglob("*"))


def test_columns_do_not_depend_on_the_order_that_a_checkpoint_gives_an_entry(tmp_path: Path) -> None:
    entry = {"step": 5, "epoch": 0, "steps": 5, "loss": None, "gradient_norm": 1.0, "bytes_per_step": 2.0}
    headers = []
    for history in ([], [json.loads(json.dumps(entry, sort_keys=True))]):
        tracker = CSVFiles(str(tmp_path / str(len(history))))
        tracker.begin(RunBegan(total_steps=9, history={"steps": history}))
        tracker.steps(StepsLogged({**entry, "step": 9, "loss": 1.0} if history else entry))
        tracker.close(RunEnded(9, 0, is_finished=True))
        headers.append((tmp_path / str(len(history)) / "steps.csv").read_text().splitlines()[0])
    assert headers == ["step,epoch,bytes_per_step,gradient_norm,loss,steps"] * 2
