"""Running tasks: order, reports, and what an error waits for."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from multiprocessing import spawn
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from ringfeed.sharding import BuildOptions, WorkerError, build
from ringfeed.sharding.engines.executors import (
    _CONTEXTS,
    _interrupts_held,
    _start_method,
    local_executor,
    run_tasks,
    stream_tasks,
)


def double(number: int) -> int:
    time.sleep(0.02 * (5 - number))
    return 2 * number


def fail() -> int:
    raise ValueError("planted")


@pytest.mark.parametrize("pool", [None, ThreadPoolExecutor(3)])
def test_results_come_in_the_order_of_the_jobs(pool: Executor | None) -> None:
    seen: list[tuple[int, int | None]] = []
    results = run_tasks(pool, [(double, (i,)) for i in range(5)], lambda done, result: seen.append((done, result)))
    assert results == [0, 2, 4, 6, 8]
    assert [done for done, _ in seen] == [0, 1, 2, 3, 4, 5]
    assert seen[0] == (0, None)
    assert sorted(result for _, result in seen[1:] if result is not None) == results


_BUILD = """from ringfeed.sharding import build
build(source="in*.csv", destination="out", label="y", workers=2, overwrite=True)
print("built")
"""
_GUARDED = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in _BUILD.splitlines())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["script.py"], _BUILD),
        (["script.py"], _GUARDED),
        (["-"], _BUILD),
        (["-"], _GUARDED),
        (["-c", _BUILD], ""),
        (["-m", "script"], _BUILD),
    ],
)
def test_workers_need_nothing_of_the_main_module(arguments: list[str], text: str, tmp_path: Path) -> None:
    for part in range(3):
        (tmp_path / f"in{part}.csv").write_text("x,y\n" + "".join(f"{row},{row % 2}\n" for row in range(20)))
    (tmp_path / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "built\n", "")


def test_processes_that_others_start_meanwhile_keep_their_main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("program", None))
    whole, started = spawn.get_preparation_data("x"), []

    def start(process: BaseProcess) -> None:
        with ThreadPoolExecutor(1) as other:
            started.append((spawn.get_preparation_data("x"), other.submit(spawn.get_preparation_data, "x").result()))

    monkeypatch.setattr(BaseProcess, "start", start)
    _CONTEXTS[_start_method()]().Process(target=fail).start()
    assert started == [({name: whole[name] for name in whole if not name.startswith("init_main_")}, whole)]
    assert whole["init_main_from_name"] == "program"
    assert spawn.get_preparation_data("x") == whole


class Watched(ThreadPoolExecutor):
    """Two threads, whose tasks can wait until those that have not begun are cancelled."""

    def __init__(self) -> None:
        super().__init__(2)
        self.futures: list[Future[Any]] = []

    def submit(self, *call: Any, **options: Any) -> "Future[Any]":
        self.futures.append(super().submit(*call, **options))
        return self.futures[-1]

    def wait_until_cancelled(self, tasks: int) -> None:
        """Until the last of so many tasks is."""
        deadline = time.monotonic() + 60
        while len(self.futures) < tasks or not self.futures[-1].cancelled():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)


def test_an_error_cancels_pending_tasks_and_is_raised_once_none_runs() -> None:
    begun, finished = [], []

    def slow(number: int) -> int:
        begun.append(number)
        pool.wait_until_cancelled(11)
        finished.append(number)
        return number

    with Watched() as pool:
        jobs = [(slow, (0,)), (fail, ()), *((slow, (i,)) for i in range(1, 10))]
        with pytest.raises(ValueError, match="planted"):
            run_tasks(pool, jobs, lambda done, result: None)
        at_the_error = sorted(finished)
    assert at_the_error == sorted(finished) == sorted(begun)
    assert 0 in at_the_error
    assert len(finished) < 4


def test_an_interrupt_of_the_body_waits_for_running_tasks() -> None:
    begun, finished = [], []

    def slow(number: int) -> None:
        begun.append(number)
        if number:
            threads.wait_until_cancelled(9)
        finished.append(number)

    def interrupted() -> None:
        with stream_tasks(threads, [(slow, (i,)) for i in range(9)], 9) as ended:
            next(ended)
            raise KeyboardInterrupt

    with Watched() as threads:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert sorted(finished) == sorted(begun)
        assert len(begun) < 4


INTERRUPTED = """
import os, signal, time
from concurrent.futures import ThreadPoolExecutor, _base
from ringfeed.sharding.engines.executors import run_tasks

lock, times = _base._AcquireFutures.__enter__, []

def interrupted(self):
    lock(self)
    times.append(1)
    if len(times) == 1:
        os.kill(os.getpid(), signal.SIGINT)

_base._AcquireFutures.__enter__ = interrupted
with ThreadPoolExecutor(2) as pool:
    try:
        run_tasks(pool, [(time.sleep, (0.2,))] * 4)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_an_interrupt_while_futures_are_locked_ends_the_run() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=280)
    assert done.stdout == "interrupted\n", done.stderr


def test_an_interrupt_at_any_step_restores_the_signal_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another thread gets it, which does not hold it back: the main one runs the handler."""
    numbers = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    mask, steps, last, heard = signal.pthread_sigmask, 0, 0, 0

    def get() -> None:
        mask(signal.SIG_UNBLOCK, numbers)
        signal.raise_signal(signal.SIGINT)

    def interrupted(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            nonlocal steps
            result = call(*arguments)
            steps += 1
            if steps == last:
                thread = threading.Thread(target=get)
                thread.start()
                thread.join()
            return result

        return step

    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    try:
        with monkeypatch.context() as patch:
            for name in ("signal", "pthread_sigmask"):
                patch.setattr(signal, name, interrupted(getattr(signal, name)))
            while steps >= last:
                steps, last = 0, last + 1
                try:
                    with _interrupts_held():
                        pass
                except KeyboardInterrupt:
                    heard += 1
                assert [signal.getsignal(number) for number in numbers] == [signal.default_int_handler] * 3, last
                assert not mask(signal.SIG_BLOCK, ()) & {*numbers}, last
    finally:
        mask(signal.SIG_UNBLOCK, numbers)
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert heard == last - 1 > 10


def hold(size: int) -> tuple[int, int]:
    """Of this process: its number and its memory, before it holds some for a while."""
    before = psutil.Process().memory_info().rss
    pieces = [pa.allocate_buffer(1 << 20) for _ in range(size >> 20)]
    for piece in pieces:
        np.frombuffer(piece, np.uint8)[:] = 1
    return os.getpid(), before


def test_memory_is_released_if_fewer_tasks_run_than_workers() -> None:
    size, held = 128 << 20, defaultdict(list)
    with local_executor(2) as pool, stream_tasks(pool, [(hold, (size,))] * 16, 1) as ended:
        for _, (process, memory) in ended:
            held[process].append(memory)
    assert max(max(memory) - memory[0] for memory in held.values()) < size / 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_that_cannot_start_its_thread_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Queue, "_start_thread", refuse)
    message = "no more processes or threads; use fewer --workers"
    with pytest.raises(WorkerError, match=message), local_executor(2) as pool:
        run_tasks(pool, [(os.getpid, ())] * 4)


def test_one_worker_is_this_process() -> None:
    with local_executor(1) as pool:
        assert pool.submit(os.getpid).result() == os.getpid()


def test_workers_get_the_environment_and_folder_of_their_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("first", None, "third"):
        monkeypatch.chdir(tmp_path)
        if value is None:
            monkeypatch.delenv("RINGFEED_TESTED", raising=False)
        else:
            monkeypatch.setenv("RINGFEED_TESTED", value)
        with local_executor(2) as pool:
            assert pool.submit(os.getenv, "RINGFEED_TESTED").result() == value
            assert pool.submit(os.getcwd).result() == str(tmp_path)
            assert pool.submit(os.getpid).result() != os.getpid()


def test_the_tasks_of_a_build_import_no_module_of_ringfeed(parquet: str, tmp_path: Path) -> None:
    """The process that workers are forked from has done that: it would take each of them 0.4 s."""
    loaded = eval, "{name for name in __import__('sys').modules if name.startswith('ringfeed.')}"
    options = BuildOptions(source=parquet, destination=str(tmp_path / "out"), label="label", shards=4)
    with local_executor(2) as pool:
        before = pool.submit(*loaded).result()
        build(options, executor=pool)
        for found in [pool.submit(*loaded) for _ in range(8)]:
            assert found.result() == before


PROGRAM = """
import time
from ringfeed.sharding.engines.executors import local_executor

PID = "__import__('time').sleep(0.3) or __import__('os').getpid()"  # it sleeps so that the other one is asked, too

if __name__ == "__main__":
    with local_executor(2) as pool:
        pids = [pool.submit(eval, PID) for _ in range(2)]
        print(*(future.result() for future in pids), flush=True)
        pool.submit(time.sleep, 60).result()
"""


def test_workers_and_sockets_disappear_with_a_killed_parent(tmp_path: Path) -> None:
    program, temporary = tmp_path / "program.py", tmp_path / "t"
    program.write_text(PROGRAM)
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, program], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert list(temporary.glob("*/*"))
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    assert list(temporary.iterdir()) == []
