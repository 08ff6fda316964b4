"""`ringfeed train` as users run it: real processes, real datasets, alone and on a real ring."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from ringfeed.pipeline import Loader
from ringfeed.training import Checkpoint, CheckpointStore
from ringfeed.training.run import step_log, trainer
from ringfeed.training.train import main
from tests.helpers.checkpoints import saved_steps

Train = Callable[..., tuple[int, str]]
WriteConfig = Callable[..., Path]
TrainInTurn = Callable[..., tuple[str, list[dict[str, Any]]]]
Metrics = Callable[[], dict[str, Any]]


def _wait_for(checkpoints: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Wait for a checkpoint of this step or a later one; old ones are removed."""
    deadline = time.monotonic() + 280
    while max(saved_steps(checkpoints), default=-1) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_learns_and_writes_metrics_and_a_model(
    tmp_path: Path, write_config: WriteConfig, train: Train, metrics: Metrics
) -> None:
    model = tmp_path / "out" / "model.keras"
    config = write_config(output={"model": str(model)}, precision="bfloat16")
    status, output = train(config, f"data.cache={tmp_path / 'cache'}", "data.cache_bytes=1000000000", is_cold=True)
    assert status == 0, output
    assert list((tmp_path / "cache").glob("*/*.tfrecord@*"))
    result = metrics()
    assert result["final"]["samples"] == 1000
    assert result["final"]["auc"] > 0.85
    losses = [entry["loss"] for entry in result["history"]["steps"]]
    assert losses[-1] < losses[0]
    assert [entry["step"] for entry in result["history"]["steps"]] == [20, 40, 50, 60, 80, 100]
    assert model.stat().st_size > 0
    assert "Traceback" not in output
    # TensorFlow logs that op determinism takes the loader's parallel map back to one thread.
    lines = [line for line in output.splitlines() if "use_unbounded_threadpool" not in line]
    assert all(line.startswith("epoch ") for line in lines), output


def test_ctrl_c_is_not_reported_as_an_error(tmp_path: Path, write_config: WriteConfig, start: Any) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "checkpoints"), "every_steps": 2}, epochs=1000)
    process = start(config)
    _wait_for(tmp_path / "checkpoints", 0, process)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    url = tmp_path / "checkpoints"
    advice = f"the same command resumes from the last checkpoint in {url}, or starts anew if none is there yet"
    assert (process.returncode, output.splitlines()[-1]) == (130, f"ringfeed train: interrupted; {advice}")


def test_a_run_killed_anywhere_and_resumed_ends_bit_identical(
    tmp_path: Path, write_config: WriteConfig, start: Any, train_in_turn: TrainInTurn
) -> None:
    checkpoints = tmp_path / "checkpoints"
    keep = {"url": str(checkpoints), "every_steps": 7, "keep": 2}
    config = write_config(checkpoint=keep, data={"balance": "uniform"}, epochs=6)  # which it is not soon through with
    for step in (14, 77):  # in the first epoch, and in the second
        process = start(config, is_cold=step == 14)  # with another seed of Python's hashes
        _wait_for(checkpoints, step, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)
    others = [f"checkpoint.url={tmp_path / 'others'}"], ["checkpoint.url=null", "seed=1", "max_steps=20"]
    output, (killed, again, whole, other) = train_in_turn(config, [], [], *others)
    assert killed["resumed_from_step"] >= 77
    assert len(list(checkpoints.glob("*.safetensors"))) == 2
    assert whole["weights_digest"] == killed["weights_digest"]
    assert whole["final"] == killed["final"]
    history = [[(e["step"], e["loss"]) for e in m["history"]["steps"]] for m in (killed, whole)]
    assert history[0][-1] == history[1][-1]
    assert other["history"]["steps"][0]["loss"] != whole["history"]["steps"][0]["loss"]

    # A finished run has nothing left to do, and says the same.
    _, first, second = output.partition("is of the last step: nothing is left to train")
    assert first
    assert "resuming" not in second
    assert output.count("resuming") == 1
    assert again["weights_digest"] == killed["weights_digest"]


def test_images_are_augmented_in_training_and_not_in_evaluation(
    pictures: str, write_config: WriteConfig, metrics: Metrics
) -> None:
    """Which quadrant is bright cannot be learned from images that are mirrored both ways."""
    config = write_config(
        data={"url": pictures, "batch_size": 40, "categorical": []},
        model={"name": "convnet", "filters": [8], "hidden": [16], "image_shape": [8, 8, 1], "dropout": 0.0},
        optimizer={"name": "sgd", "learning_rate": 0.05},
        epochs=6,
    )

    def accuracy(augment: str) -> float:
        settings = [part for item in ("deterministic=false", f"augment={augment}") for part in ("--set", item)]
        assert main(["--config", str(config), *settings]) == 0
        final: float = metrics()["final"]["accuracy"]
        return final

    assert accuracy("{flip_left_right: true, flip_up_down: true}") < 0.6
    assert accuracy("{crop_area: [0.9, 1], brightness: 0.1}") > 0.9


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.batchsize=3", "unknown key 'data.batchsize'; did you mean 'data.batch_size'?"),
        ("data.url=/no/such/place", "there is no dataset at /no/such/place"),
        ("data.exclude=[dealy]", "data.exclude: the dataset has no column 'dealy'; did you mean 'delay'?"),
        ("data.train_split=trian", "data.train_split: there is no split 'trian'; the dataset has 'train', 'test'"),
        (
            "data.eval_split=val",
            "data.eval_split: there is no split 'val'; the dataset has 'train', 'test'; to train without evaluation: "
            "data.eval_split: null",
        ),
        ("data.batch_size=100000", "data.batch_size=100000 is more than the 3000 records of 'train'; use at most 3000"),
        ("data.balance={late: 0.5, never: 0.5}", "never"),
        ("model.name=no_module:f", "model.name no_module:f: there is no module 'no_module'"),
    ],
)
def test_a_mistake_is_one_line(
    override: str, message: str, write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_refused(capfd, message, write_config(), override)


@pytest.mark.parametrize("output", ["metrics", "model"])
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("taken/x.keras", "taken/x.keras: a name in its path belongs to a file"),
        ("folder.keras", "it is a folder; name a file"),
    ],
)
def test_an_output_that_cannot_be_written_is_reported_before_training(
    output: str, place: str, reason: str, tmp_path: Path, write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").touch()
    (tmp_path / "folder.keras").mkdir()
    config = write_config(output={output: str(tmp_path / place)}, data={"url": str(tmp_path / "not looked at yet")})
    assert_refused(capfd, reason, config)


class ReadOnly(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A store that refuses writes."""

    protocol = "readonly"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", path)


def test_a_store_that_refuses_checkpoints_is_reported_before_training(
    write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    fsspec.register_implementation("readonly", ReadOnly, clobber=True)
    assert_refused(
        capfd, "cannot write readonly://run/_training.json", write_config(checkpoint={"url": "readonly://run"})
    )


@pytest.mark.parametrize("output", ["metrics", "model"])
@pytest.mark.parametrize(
    ("place", "reason"),
    [("run/x.keras", "cannot write readonly://run/x.keras.trial: "), ("run/.keras/", "it is a folder; name a file")],
)
def test_a_store_that_refuses_outputs_is_reported_before_training(
    output: str, place: str, reason: str, write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    fsspec.register_implementation("readonly", ReadOnly, clobber=True)
    if output == "model" and place.endswith("/"):
        reason = "output.model must be a path that ends in .keras"
    config = write_config(output={output: f"readonly://{place}"}, data={"url": "/not looked at yet"})
    assert_refused(capfd, reason, config)


class NoModels(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """A store that accepts a trial file, and then refuses the model."""

    protocol = "nomodels"

    def mv(self, path1: str, path2: str, **kwargs: Any) -> None:
        if path2.endswith(".keras"):
            raise PermissionError(errno.EACCES, "Permission denied", path2)
        super().mv(path1, path2, **kwargs)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves a model
def test_metrics_are_written_although_the_model_is_refused(
    write_config: WriteConfig, metrics: Metrics, capfd: pytest.CaptureFixture[str]
) -> None:
    fsspec.register_implementation("nomodels", NoModels, clobber=True)
    config = write_config(output={"model": "nomodels://run/x.keras"}, data={"eval_split": None}, max_steps=2)
    assert main(["--config", str(config), "--set", "deterministic=false"]) == 1
    assert "ringfeed train: error: cannot write nomodels://run/x.keras: permission denied" in capfd.readouterr().err
    assert metrics()["total_steps"] == 2


def test_a_trial_of_the_outputs_leaves_nothing(
    tmp_path: Path, write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    config = write_config(output={"model": str(tmp_path / "new" / "run" / "x.keras")}, data={"url": "/nowhere"})
    before = sorted(tmp_path.rglob("*"))
    assert_refused(capfd, "/nowhere", config)
    assert sorted(tmp_path.rglob("*")) == before


def train_here(config: Path, *overrides: str) -> int:
    """Run in this process, for speed; without determinism, which cannot be switched off again."""
    settings = [part for item in ("deterministic=false", *overrides) for part in ("--set", item)]
    return main(["--config", str(config), *settings])


def assert_refused(capfd: pytest.CaptureFixture[str], message: str, config: Path, *overrides: str) -> None:
    capfd.readouterr()
    assert train_here(config, *overrides) == 1
    output = capfd.readouterr()
    assert output.out == ""
    assert output.err.startswith("ringfeed train: error: ")
    assert message in output.err
    assert output.err.count("\n") == 1, output.err


def test_a_damaged_shard_ends_the_run_with_one_line_that_names_it(
    tmp_path: Path, flights: str, write_config: WriteConfig, train_in_turn: TrainInTurn
) -> None:
    damages = ["flip", "cut", "remove"]
    for damage in damages:
        shutil.copytree(flights, tmp_path / damage)
        shard = sorted((tmp_path / damage).glob("train-*.tfrecord"))[1]
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.unlink()
        if damage != "remove":
            shard.write_bytes(data if damage == "flip" else data[:-9])
    runs = [[f"data.url={tmp_path / damage}"] for damage in damages]
    output, metrics = train_in_turn(write_config(), *runs, status=1)
    lines = [line for line in output.splitlines() if "ringfeed train: error: " in line]
    assert [f"/{damage}/{shard.name}" in line for damage, line in zip(damages, lines, strict=True)] == [True] * 3, lines
    assert metrics == []
    assert "Traceback" not in output, output


def test_an_ended_run_is_not_shortened_but_evaluated_if_it_was_not(
    tmp_path: Path, write_config: WriteConfig, metrics: Metrics, capfd: pytest.CaptureFixture[str]
) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "run")}, data={"eval_split": None}, epochs=1)
    assert train_here(config) == 0
    assert metrics()["final"] is None
    assert_refused(capfd, "this run ends at step 5: raise epochs or max_steps", config, "max_steps=5")
    assert train_here(config, "data.eval_split=test") == 0
    final = metrics()["final"]
    assert (final["epoch"], final["step"]) == (0, metrics()["total_steps"])


def test_the_final_evaluation_is_of_the_last_step_and_the_given_split(
    tmp_path: Path, write_config: WriteConfig, metrics: Metrics
) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "run")}, epochs=1)

    def final(*overrides: str) -> tuple[int, int] | None:
        assert train_here(config, *overrides) == 0
        evaluation = metrics()["final"]
        return evaluation and (evaluation["samples"], evaluation["step"])

    assert final("max_steps=5") == (1000, 5)
    assert final("max_steps=5", "data.eval_split=train") == (3000, 5)
    assert final("max_steps=6", "data.eval_split=null") is None
    assert final("max_steps=6") == (1000, 6)


def test_throughput_does_not_count_checkpoints(
    tmp_path: Path, write_config: WriteConfig, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, seconds_saved = CheckpointStore.save, []

    def save_slowly(store: CheckpointStore, checkpoint: Checkpoint, **options: Any) -> str:
        seconds_saved.append(5.0)
        return save(store, checkpoint, **options)

    monkeypatch.setattr(CheckpointStore, "save", save_slowly)
    clock = SimpleNamespace(**dict.fromkeys(("monotonic", "perf_counter", "time"), lambda: sum(seconds_saved)))
    for module in (step_log, trainer):
        monkeypatch.setattr(module, "time", clock)
    checkpoint = {"url": str(tmp_path / "run"), "every_steps": 25, "background": False}
    assert train_here(write_config(checkpoint=checkpoint, data={"eval_split": None}, epochs=1)) == 0
    seconds = {entry["step"]: entry["seconds"] for entry in metrics()["history"]["steps"]}
    assert list(seconds) == [20, 25, 40, 50]
    assert (set(seconds.values()), len(seconds_saved)) == ({0.0}, 2)


def test_a_checkpoint_whose_position_contradicts_the_dataset_is_refused(
    tmp_path: Path, write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "run")}, data={"eval_split": None}, max_steps=3)
    assert train_here(config) == 0
    store = CheckpointStore(str(tmp_path / "run"))
    newest = store.newest()
    assert newest is not None
    assert newest.state["position"] == {"step": 3, "epoch": 0, "epoch_step": 3}
    (path,) = (tmp_path / "run").iterdir()
    path.unlink()
    store.save(replace(newest, state={**newest.state, "position": {"step": 3, "epoch": 1, "epoch_step": 3}}))
    assert train_here(write_config(checkpoint={"url": str(tmp_path / "run")}, max_steps=4)) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert "contradicts itself: Position(step=3, epoch=1, epoch_step=3) with 50 steps per epoch; remove it" in last


def test_gradients_that_are_not_finite_are_an_error(
    write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    config = write_config(optimizer={"name": "sgd", "learning_rate": 1e30}, model={"norm": "none"})
    assert train_here(config) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("ringfeed train: error: the gradients of step ")
    assert "not finite in float32" in last


def test_a_model_too_large_for_memory_is_one_line(write_config: WriteConfig, capfd: pytest.CaptureFixture[str]) -> None:
    config = write_config(model={"hidden": [40000, 2**31 - 1]})
    assert main(["--config", str(config), "--set", "deterministic=false"]) == 1
    output = capfd.readouterr().err
    start = "ringfeed train: error: out of memory: lower data.batch_size, or the sizes in model: OOM when allocating"
    assert output.splitlines()[-1].startswith(start)
    assert "Traceback" not in output


def test_useless_boundaries_are_a_warning_in_one_line(
    write_config: WriteConfig, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_again: list[object] = []  # as nothing is where only the scaled gradients overflow
    monkeypatch.setattr(Loader, "batch_with_origins", lambda *place: read_again.append(place))
    schedule = {"decay": "step", "warmup_epochs": 0.5, "boundaries": [0.25, 0.5, 2, 3]}
    config = write_config(data={"eval_split": None}, schedule=schedule, epochs=2, max_steps=2)
    overflow = "precision=float16", f"loss_scale.initial={2.0**126}", "deterministic=false"
    assert main(["--config", str(config), *(part for item in overflow for part in ("--set", item))]) == 1
    said = capfd.readouterr().err.splitlines()
    assert said[:2] == [
        "schedule.boundaries: [0.25] lie within the warm-up of 0.5 epochs; they take effect when it ends",
        "schedule.boundaries: [2.0, 3.0] are not reached in a run of 2 epochs",
    ]
    assert said[-1].startswith(
        "ringfeed train: error: the gradients of all 2 steps overflowed in float16, so the weights are still"
    )
    assert not read_again


def test_a_checkpoint_of_another_run_is_not_resumed(
    tmp_path: Path, write_config: WriteConfig, capfd: pytest.CaptureFixture[str]
) -> None:
    config = write_config(checkpoint={"url": str(tmp_path / "checkpoints")}, max_steps=3)
    assert train_here(config) == 0
    other = "are of a run with different model.hidden, optimizer.momentum"
    assert_refused(capfd, other, config, "model.hidden=[4]", "optimizer.momentum=0.5")
    assert_refused(capfd, "checkpoint.resume is false, but", config, "checkpoint.resume=false")


def test_an_error_of_all_ranks_is_reported_once(write_config: WriteConfig, train: Train) -> None:
    pytest.importorskip("horovod", reason="Horovod is built by: make setup")
    status, output = train(write_config(data={"batch_size": 6100}), ranks=2)
    assert status != 0
    assert output.count("ringfeed train: error: ") == 1
    assert "data.batch_size=6100 is more than the 3000 records of 'train'; use at most 3000" in output


def test_help_lists_the_keys_without_tensorflow() -> None:
    code = (
        "import sys\nfrom ringfeed.training.train import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'tensorflow', 'keras', 'horovod'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "horovodrun -np 2 --gloo ringfeed train --config" in done.stdout
    assert "optimizer.trust_coefficient" in done.stdout
