"""`ringfeed launch --ray` on a real Ray cluster of this machine: its ranks, SIGTERM, and refusals of one line."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.cli import main
from tests.helpers.checkpoints import saved_steps, sigterm_after_a_checkpoint
from tests.helpers.lean import lean_environment
from tests.helpers.listeners import noted_listeners
from tests.servers.ray import ray_cluster

pytest.importorskip("horovod", reason="Horovod is built by: make setup")
pytest.importorskip("ray", reason="Ray is not installed")

CONFIG = """
data: {url: data, batch_size: 12, eval_split: null}
model: {name: tabular, hidden: []}
optimizer: {name: sgd, learning_rate: 0.1}
checkpoint: {url: run, every_steps: 5, keep: 1000}
epochs: 100000
"""


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = pa.table({"value": [row / 240 for row in range(240)], "label": ["a", "b"] * 120})
    pq.write_table(table, tmp_path / "source.parquet")
    build(BuildOptions(source=str(tmp_path / "source.parquet"), destination=str(tmp_path / "data"), label="label"))
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch(*flags: str) -> int:
    return main(["launch", *flags, "train", "--config", "run.yaml"])


@pytest.mark.filterwarnings("ignore:placement_group:DeprecationWarning")  # Horovod's own way to place actors
def test_ranks_train_on_a_ray_cluster_and_stop_with_a_checkpoint(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in lean_environment().items():
        monkeypatch.setenv(name, value)
    with ray_cluster(run_folder, 2) as cluster:
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        assert launch("--ray", "auto", "-n", "3") == 1
        message = "-n 3 needs a processor for each rank, and the Ray cluster has 2"
        assert capfd.readouterr().err == f"ringfeed: error: {message}\n"
        with sigterm_after_a_checkpoint(run_folder / "run"), noted_listeners(os.getpid()) as found:
            status = launch("--ray", "auto", "-n", "2")
        shown = capfd.readouterr()
        assert status == 75, shown
        # Horovod's store; Ray's own port is at all addresses, by IPv6.
        assert {listener.address for listener in found} - {"::"} == {"127.0.0.1"}
        step = max(saved_steps(run_folder / "run"))
        assert f"stopped by SIGTERM; the checkpoint of step {step} is in" in shown.err.splitlines()[-1]
        assert "starts with 12 samples per step over 2 ranks" in shown.out + shown.err


def test_what_ray_cannot_start_is_refused(run_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch("--ray", "ray://127.0.0.1:1", "-n", "2") == 1
    assert launch("--ray", "auto", "--elastic", "-n", "2") == 1
    assert main(
        ["launch", "--ray", "auto", "-n", "2", "train", "--config", "run.yaml", "--set", "backend=multi_worker"]
    )
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition("error: ")[2] for line in lines] == [
        "no Ray cluster answers at 127.0.0.1:1; check the address, and that it runs",
        "--ray goes with -n, not with --elastic or --workers: ringfeed launch --ray auto -n 2 train ...",
        "--ray does not go with backend=multi_worker: Ray starts the ranks of a ring; leave out --ray",
    ]
