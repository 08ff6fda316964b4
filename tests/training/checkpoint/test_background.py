"""Checkpoints that are written while training goes on."""

from __future__ import annotations

from threading import Event, Thread, current_thread

import numpy as np
import pytest

from ringfeed.sharding.errors import StorageError
from ringfeed.training import Checkpoint, CheckpointStore
from ringfeed.training.checkpoint.background import BackgroundWriter


def _checkpoint(step: int, value: float) -> Checkpoint:
    return Checkpoint(step=step, arrays={"w": np.full(3, value)}, state={})


def test_what_changes_after_the_call_is_not_written() -> None:
    written: list[Checkpoint] = []
    is_due = Event()

    def write(checkpoint: Checkpoint) -> None:
        is_due.wait(60)
        written.append(checkpoint)

    writer, checkpoint = BackgroundWriter(), _checkpoint(1, 7.0)
    writer.save(write, checkpoint)
    checkpoint.arrays["w"][:] = 8.0  # as the next step does
    assert written == []  # the caller goes on
    is_due.set()
    writer.wait()
    assert [entry.arrays["w"].tolist() for entry in written] == [[7.0] * 3]


def test_writes_come_one_after_the_other_and_in_order(tmp_path: object) -> None:
    store, writer = CheckpointStore(str(tmp_path), keep=9), BackgroundWriter()
    running: list[int] = []

    def write(checkpoint: Checkpoint) -> None:
        running.append(checkpoint.step)
        store.save(checkpoint)
        assert running.pop() == checkpoint.step
        assert not running

    for step in range(9):
        writer.save(write, _checkpoint(step, step))
    writer.wait()
    newest = store.newest()
    assert newest is not None
    assert (newest.step, newest.arrays["w"].tolist(), len(store.names())) == (8, [8.0] * 3, 9)


def test_an_error_of_a_write_is_raised_once_by_the_next_call() -> None:
    def write(checkpoint: Checkpoint) -> None:
        raise StorageError(f"cannot write step {checkpoint.step}")

    for call in (
        lambda writer: writer.wait(),
        lambda writer: writer.save(write, _checkpoint(2, 0)),
        lambda writer: (writer.join(), writer.check(), writer.wait()),
    ):
        writer = BackgroundWriter()
        writer.save(write, _checkpoint(1, 0))
        with pytest.raises(StorageError, match="cannot write step 1"):
            call(writer)
        writer.wait()


def test_all_writes_are_made_by_one_thread_so_that_malloc_needs_one_arena() -> None:
    writers: set[Thread] = set()
    writer = BackgroundWriter()
    for step in range(20):
        writer.save(lambda _: writers.add(current_thread()), _checkpoint(step, 0))
        writer.wait()
    assert len(writers) == 1
    assert current_thread() not in writers
    writer.join()  # at the end of a run
    assert not writers.pop().is_alive()
