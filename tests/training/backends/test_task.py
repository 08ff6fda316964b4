"""A worker tells the chief why it failed, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfeed.sharding.errors import CorruptionError, StorageError
from ringfeed.training.backends import task as task_module
from ringfeed.training.backends.board import Board, serve_board
from ringfeed.training.backends.cluster import Cluster
from ringfeed.training.config.data import DataConfig
from ringfeed.training.config.train_config import TrainConfig


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CorruptionError("shard 3 is damaged"), "shard 3 is damaged"),
        (StorageError("the store\nrefuses"), "the store refuses"),
        (KeyError("x"), "KeyError: 'x'"),
        (FileNotFoundError("vocabulary.txt"), "FileNotFoundError: vocabulary.txt"),
    ],
)
def test_the_chief_is_told_of_each_failure(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(task_module, "_Reader", fail)
    cluster = Cluster(tasks={"chief": ("a:1",), "ps": ("a:2",), "worker": ("a:3",)}, kind="worker", index=0)
    task = task_module.Task(
        TrainConfig(data=DataConfig(url=str(tmp_path), batch_size=1)), cluster, ends_with_chief=False
    )
    board = Board()
    server = serve_board("127.0.0.1", board)
    try:
        with pytest.raises(type(error)):
            task.next(server.address.encode())
        assert board.failure == f"worker 0: {text}"
    finally:
        server.shutdown()
        server.server_close()
