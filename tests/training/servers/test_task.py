"""A worker's functions: a damaged shard ends the run with the line that names it, and with no trace of TensorFlow's."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from ringfeed.training.config.config_file import load_config
from ringfeed.training.servers.board.board import Board, serve_board
from ringfeed.training.servers.board.part_plan import PartPlan
from ringfeed.training.servers.cluster import Cluster
from ringfeed.training.servers.task import Task


def test_a_worker_that_cannot_read_tells_the_chief_and_takes_no_more_steps(tmp_path: Path, flights: str) -> None:
    folder = Path(shutil.copytree(flights, tmp_path / "damaged"))
    for shard in folder.glob("train-*.tfrecord"):
        shard.write_bytes(shard.read_bytes()[:-3])
    tree = {
        "backend": "parameter_server",
        "data": {"url": str(folder), "batch_size": 60, "eval_split": None},
        "optimizer": {"name": "sgd"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    cluster = Cluster(tasks={"chief": ("a:1",), "ps": ("a:2",), "worker": ("a:3",)}, kind="worker", index=0)
    board = Board()
    board.begin(0, PartPlan(1, 0, 5), 0)
    server = serve_board("127.0.0.1", board)
    task = Task(load_config(str(tmp_path / "run.yaml")), cluster, ends_with_chief=False)
    try:
        is_step, *_ = task.next(server.address.encode())
    finally:
        if task._board is not None:
            task._board.close()
        server.shutdown()
        server.server_close()
    assert not is_step
    assert board.failure is not None
    assert board.failure.startswith(f"worker 0: {folder}/train-")
    assert board.failure.endswith(f"repair it with: shard-dataset repair {folder}")
