"""Workers take steps over real connections; one that goes away is missed, and what it had is done by others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ringfeed.training.ring.run_lines import Connection, connect
from ringfeed.training.servers.board.board import Board, Done, serve_board
from ringfeed.training.servers.board.client import HEARD, BoardClient
from ringfeed.training.servers.board.part_plan import PartPlan
from ringfeed.training.servers.board.task_watch import Heard, judge_tasks

Connect = Callable[[int], BoardClient]
DONE = {"loss": 1.0, "gradient_norm": 2.0, "staleness": 0, "wait_seconds": 0.0, "sent_share": 1.0}


@pytest.fixture
def board() -> Iterator[tuple[Board, Connect]]:
    """A board, and a function that connects a worker to it."""
    board, clients = Board(), []
    server = serve_board("127.0.0.1", board)

    def connect(worker: int) -> BoardClient:
        clients.append(BoardClient(server.address, worker))
        return clients[-1]

    yield board, connect
    for client in clients:
        client.close()
    server.shutdown()
    server.server_close()


def test_a_worker_does_its_part_and_reports(board: tuple[Board, Connect]) -> None:
    board[0].begin(7, PartPlan(1, 2, 4), 10)
    worker = board[1](0)
    assert worker.ask({"take": True}) == {"epoch": 7, "part": 0, "step": 2, "update": 10}
    assert worker.ask({"take": True}) == {"epoch": 7, "part": 0, "step": 2, "update": 10}  # it has not finished
    worker.ask({"done": DONE})
    assert worker.ask({"take": True}) == {"epoch": 7, "part": 0, "step": 3, "update": 11}
    worker.ask({"done": DONE})
    assert worker.ask({"take": True}) == {"over": True}
    assert board[0].reports(0.0) == [Done(**DONE)] * 2  # type: ignore[arg-type]
    assert board[0].deaths == 0


def test_a_worker_that_waits_does_the_step_of_one_that_dies(
    board: tuple[Board, Connect], caplog: pytest.LogCaptureFixture
) -> None:
    board[0].begin(0, PartPlan(2, 0, 1), 0)
    first, second = board[1](0), board[1](1)
    taken = [client.ask({"take": True}) for client in (first, second)]
    second.ask({"done": DONE})
    answers: list[dict[str, object]] = []
    waiting = threading.Thread(target=lambda: answers.append(second.ask({"take": True})))
    waiting.start()
    first.close()  # as the kernel does when a process dies
    waiting.join(60)
    assert answers == [{**taken[0], "update": 2}]
    assert "worker 0 has died in step 0 of epoch 0" in caplog.text
    assert board[0].deaths == 1
    second.ask({"done": DONE})
    assert board[1](0).ask({"take": True}) == {"over": True}  # it is back


def test_the_board_knows_what_tasks_report_and_which_worker_the_others_wait_for(board: tuple[Board, Connect]) -> None:
    server = serve_board("127.0.0.1", board[0])
    with connect(server.address, 60) as line, line.makefile("rb") as file:
        connection = Connection(file, line)
        connection.send({"task": "worker 1"})
        connection.send({"place": "net.py:3 in f"})
        assert next(iter(connection)) == HEARD
        assert board[0].task_states().heard["worker 1"].place == "net.py:3 in f"

    board[0].begin(0, PartPlan(2, 0, 2, bound=0), 0)
    fast, slow = board[1](0), board[1](1)
    for client in (fast, slow):
        client.ask({"take": True})
    fast.ask({"done": DONE})
    waiting = threading.Thread(target=lambda: fast.ask({"take": True}))
    waiting.start()
    while not (states := board[0].task_states()).waiting:
        pass
    assert states.busy == {1}
    seen = {"worker 1": Heard(seen=states.moved + 8, place="net.py:3 in f")}
    states = replace(states, heard=seen)
    assert judge_tasks(states, states.moved + 9, 10) is None
    line_of_end = judge_tasks(states, states.moved + 11, 10)
    assert line_of_end == "worker 1 has stalled in net.py:3 in f: the others have waited for 11 s"
    slow.ask({"done": DONE})
    waiting.join(60)
    assert board[0].task_states().busy == {0}
    server.shutdown()
    server.server_close()


def test_nobody_waits_for_a_worker_that_died_between_phases() -> None:
    board = Board()
    connection, _ = board.attach(0), board.attach(1)
    board.begin(0, PartPlan(2, 0, 0), 0)
    board.detach(0, connection)
    board.begin(1, PartPlan(2, 0, 1, bound=0), 0)
    for part in (1, 0):
        assert board.handle(1, {"take": True}) == {"epoch": 1, "part": part, "step": 0, "update": 1 - part}
        board.handle(1, {"done": DONE})
    assert board.handle(1, {"take": True}) == {"over": True}
    assert board.deaths == 0  # it died with no batch


def test_a_worker_that_is_back_before_its_old_connection_closes_has_died_once() -> None:
    board = Board()
    board.begin(0, PartPlan(1, 0, 1), 0)
    old = board.attach(0)
    board.handle(0, {"take": True})
    board.attach(0)
    board.detach(0, old)
    assert board.deaths == 1


def test_an_error_of_a_worker_ends_all(board: tuple[Board, Connect]) -> None:
    board[0].begin(0, PartPlan(2, 0, 5), 0)
    first, second = board[1](0), board[1](1)
    first.ask({"error": "shard 3 is damaged"})
    assert second.ask({"take": True}) == {"over": True}
    assert board[0].failure == "worker 0: shard 3 is damaged"
