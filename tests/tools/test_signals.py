"""Interrupted and terminated programs (signals.py): one line, an exit status, resumable work."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.tools.shard_dataset.program import main
from ringfeed.tools.signals import Terminated, deferred_signals, raise_on_termination
from tests.helpers.lean import lean_environment


@pytest.fixture(autouse=True)
def hangups_heard() -> Iterator[None]:
    """Let started programs receive SIGHUP, also when the tests run under `nohup`, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def children_of(pid: int) -> list[str]:
    """Return the command lines of a process's children; some may end meanwhile."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with suppress(psutil.NoSuchProcess):
                found.append(" ".join(child.cmdline()))
    return found


@pytest.mark.parametrize("after", [0.2, 0.4, 0.6, 0.8])
def test_an_interrupt_while_workers_start_is_one_line(source: str, tmp_path: Path, after: float) -> None:
    """A terminal sends it to every process of the job; workers must print nothing."""
    command = [Path(sys.executable).with_name("shard-dataset"), "build", source, tmp_path / "o"]
    flags = ["--label", "status", "--workers", "2", "--json"]
    with subprocess.Popen(
        [*map(str, command), *flags], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 280
        while process.poll() is None and not any("forkserver" in words for words in children_of(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(after)  # it imports, then the workers are forked
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        events = [json.loads(line) for line in process.communicate(timeout=280)[1].splitlines()]
    assert process.returncode in (0, 130)
    assert events[-1]["event"] == ("interrupted" if process.returncode else "progress")


@pytest.mark.parametrize(
    ("sig", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)]
)
def test_a_signal_that_a_callback_loses_comes_again(
    sig: signal.Signals, kind: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    """Python's import has such callbacks, and prints what they raise."""
    before = sys.unraisablehook

    class Module:
        pass

    def lose_a_signal() -> None:
        with raise_on_termination():
            module = Module()
            reference = weakref.ref(module, lambda _: signal.raise_signal(sig))
            del module  # calls the callback, whose exception is dropped
            assert reference() is None
            time.sleep(60)

    with pytest.raises(kind):
        lose_a_signal()
    assert sys.unraisablehook is before
    assert capfd.readouterr().err == ""


def test_what_a_callback_raises_otherwise_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(repr(lost.exc_value)))
    with raise_on_termination():
        module = type("Module", (), {})()
        reference = weakref.ref(module, lambda _: 1 // 0)
        del module
        assert reference() is None
    assert reported == ["ZeroDivisionError('integer division or modulo by zero')"]


def test_a_signal_ends_a_program_whose_terminal_is_gone() -> None:
    waits = "import time\nfrom ringfeed.tools.signals import ending_on_signals\n"
    waits += "with ending_on_signals('waits'):\n print('ready', flush=True)\n time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=280) == 129


@pytest.mark.parametrize(("sig", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_says_how_to_resume_and_clean_leaves_nothing(tmp_path: Path, sig: int, status: int) -> None:
    """Signals of a terminal are reported as text, the other as an event."""
    rows = 300_000
    pq.write_table(pa.table({"x": range(rows), "y": ["a", "b"] * (rows // 2)}), tmp_path / "x.parquet")
    out = tmp_path / "new" / "out"
    flags = ["--json"] if sig == signal.SIGTERM else []
    command = [Path(sys.executable).with_name("shard-dataset"), "build", tmp_path / "x.parquet", out]
    process = subprocess.Popen(
        [*map(str, command), "--label", "y", "--shards", "3000", "--workers", "2", *flags],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 280
    while len(list(out.glob("_building/*/*.json"))) < 6:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    if sig == signal.SIGTERM:
        process.send_signal(sig)
    else:
        os.killpg(process.pid, sig)  # a terminal sends it to every process of the job
    _, stderr = process.communicate(timeout=280)
    assert process.returncode == status
    assert "Traceback" not in stderr
    message = stderr.splitlines()[-1]
    if flags:
        event = json.loads(message)
        assert (event["event"], event["status"]) == ("interrupted", status)
        message = event["message"]
    assert "of 3,000 shards are finished: start the same command again to go on with the rest" in message
    assert not (out / "_ringfeed/dataset.json").exists()
    assert main(["clean", str(out)]) == 0
    assert not out.exists()


@pytest.mark.parametrize(("sig", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_command_that_reads_ends_with_a_line(tmp_path: Path, sig: int, status: int) -> None:
    rows = 10_000
    pq.write_table(pa.table({"x": range(rows), "y": ["a" * 100] * rows}), tmp_path / "x.parquet")
    assert main(["build", str(tmp_path / "x.parquet"), str(tmp_path / "out"), "--shards", "1"]) == 0
    command = [str(Path(sys.executable).with_name("shard-dataset")), "cat", str(tmp_path / "out"), "--limit", str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"{"  # it goes on until the pipe is full
        process.send_signal(sig)
        stdout, stderr = process.communicate(timeout=280)
    assert (process.returncode, stderr) == (status, b"shard-dataset: interrupted\n")
    assert stdout.count(b"\n") < rows


def test_a_build_whose_terminal_closes_can_be_resumed(tmp_path: Path) -> None:
    rows = 300_000
    pq.write_table(pa.table({"x": range(rows), "y": ["a", "b"] * (rows // 2)}), tmp_path / "x.parquet")
    out = tmp_path / "out"
    command = [Path(sys.executable).with_name("shard-dataset"), "build", tmp_path / "x.parquet", out]
    flags = ["--label", "y", "--shards", "3000", "--workers", "2"]
    script = (
        "import pty, sys; pid, terminal = pty.fork()\n"
        "import os; pid or os.execv(sys.argv[1], sys.argv[1:])\n"
        "print(terminal, flush=True); sys.stdin.read(); os.close(terminal)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, command), *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 280
        while len(list(out.glob("_building/*/*.json"))) < 6:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.communicate(timeout=280)
    assert process.returncode == 129
    assert json.loads((out / "_building.json").read_text())["released"]


@pytest.mark.parametrize(
    ("program", "flags", "told"),
    [
        ("shard-dataset", ["inspect", "x"], "shard-dataset: interrupted"),
        ("shard-dataset", ["build", "x", "y", "--json"], '{"event": "interrupted", "message": "", "status": 130}'),
        ("ringfeed", ["cache", "x"], "ringfeed: interrupted"),
    ],
)
def test_ctrl_c_while_modules_are_imported_is_one_line(
    tmp_path: Path, program: str, flags: list[str], told: str
) -> None:
    waits = "for _ in range(1000):\n    time.sleep(0.05)"  # a signal may come just before a sleep, which then goes on
    (tmp_path / "pyarrow.py").write_text(f"import sys, time\nprint('importing', flush=True)\n{waits}")
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name(program)), *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=280)
    assert (process.returncode, stderr) == (130, f"{told}\n")


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_result_changes_nothing(dataset: Path, sig: int) -> None:
    code = (
        "import os, sys; from multiprocessing import util; from ringfeed.tools.shard_dataset.program import run\n"
        f"util._exit_function = lambda: os.kill(os.getpid(), {sig}); run()"
    )
    done = subprocess.run([sys.executable, "-c", code, "inspect", dataset], capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (0, "")
    assert "carrier" in done.stdout


def test_an_error_closes_the_output_while_workers_still_import(tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("import sys, time\n'forkserver' in ' '.join(sys.orig_argv) and time.sleep(600)")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("shard-dataset")), "build", "missing", "out", "--workers", "2"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=280,
    )  # fmt: skip
    assert done.returncode == 1
    assert "missing" in done.stderr


class TestDeferredSignals:
    """Signals that are deferred while TensorFlow may be running."""

    @pytest.mark.parametrize(("sig", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
    @pytest.mark.parametrize("end", ["asked", "body", "error"])
    def test_one_is_raised_on_request_or_at_the_end_of_the_body(self, sig: int, kind: type, end: str) -> None:
        reached = []

        def work() -> None:
            with raise_on_termination(), deferred_signals() as hear:
                hear()
                os.kill(os.getpid(), sig)
                reached.append("signal")
                if end == "asked":
                    hear()
                    reached.append("asked")
                if end == "error":
                    raise ValueError

        before = signal.getsignal(sig)
        with pytest.raises(kind):
            work()
        assert reached == ["signal"]
        assert signal.getsignal(sig) is before

    def test_a_second_one_is_raised_at_once(self) -> None:
        reached = []

        def work() -> None:
            with deferred_signals():
                for number in range(3):
                    reached.append(number)
                    os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            work()
        assert reached == [0, 1]

    def test_after_sigterm_only_ctrl_c_cuts_a_checkpoint_short(self) -> None:
        """Schedulers and `timeout` repeat SIGTERM, a shutdown closes the terminal, and user code handles others."""
        code = """
import os, signal
from ringfeed.tools import signals
signal.signal(signal.SIGUSR1, lambda *_: None)
with signals.ending_on_signals("p") as watch:
    watch.defer_termination(600)
    os.kill(os.getpid(), signal.SIGTERM)
    while not watch.is_terminating:
        pass
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(os.getpid(), number)
    signal.pause()
"""
        done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
        assert done.returncode == 130

    def test_an_ignored_signal_stays_ignored(self) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with deferred_signals() as hear:
                os.kill(os.getpid(), signal.SIGHUP)
                hear()
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_a_profile_that_reads_is_interrupted_in_one_line(self, source: str, tmp_path: Path) -> None:
        assert main(["build", source, str(tmp_path / "d"), "--label", "status", "--shards", "2"]) == 0
        code = "import sys\nfrom ringfeed.pipeline import Loader\nfrom ringfeed.tools import cli\n"
        code += "original = Loader.batches\ndef batches(*args):\n    print('reading', flush=True)\n"
        code += "    return original(*args)\nLoader.batches = batches\nsys.exit(cli.main(sys.argv[1:]))"
        words = ["profile", str(tmp_path / "d"), "--batch-size", "8", "--steps", "1000000000"]
        with subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=lean_environment(),
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for _ in range(50):  # epochs
                assert process.stdout.readline() == "reading\n"
            process.send_signal(signal.SIGINT)
            stderr = process.communicate(timeout=280)[1]
        assert process.returncode == 130
        assert stderr.endswith("ringfeed profile: interrupted\n")
        assert "Traceback" not in stderr


MARK = """
import sys

module = sys.argv.pop(1)

class Mark:
    def find_spec(self, name, *_):
        if name == module:
            print('importing', flush=True)

sys.meta_path.insert(0, Mark())
from ringfeed.tools import cli
sys.exit(cli.main())
"""
ENDINGS = {signal.SIGINT: 130, signal.SIGTERM: 143}
SOON_SECONDS = 5  # of a processor, which a busy machine does not lengthen


def cpu_seconds(pid: int) -> float:
    """Seconds of a processor that a process, and those that this one has waited for, have taken."""
    ended, runs = resource.getrusage(resource.RUSAGE_CHILDREN), psutil.Process(pid).cpu_times()
    return ended.ru_utime + ended.ru_stime + runs.user + runs.system


def ended_cpu_seconds() -> float:
    """The same once it has ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def handles_signals(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    found = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)


class TestEndingOnSignals:
    """`ringfeed profile` and `ringfeed train`, which end at once, whatever is being imported or computed."""

    @pytest.fixture
    def words(self, source: str, tmp_path: Path) -> dict[str, list[str]]:
        """The arguments of both commands, which then run for hours."""
        assert main(["build", source, str(tmp_path / "d"), "--label", "status", "--shards", "2"]) == 0
        lines = [
            f"data: {{url: {tmp_path / 'd'}, batch_size: 32, eval_split: null}}",
            "model: {name: tabular, hidden: [4]}",
            "epochs: 1000000",
            f"checkpoint: {{url: {tmp_path / 'run'}, every_steps: 20}}",
        ]
        (tmp_path / "c.yaml").write_text("\n".join(lines))
        return {
            "profile": ["profile", str(tmp_path / "d"), "--batch-size", "8", "--steps", "1000000000"],
            "train": ["train", "--config", str(tmp_path / "c.yaml")],
        }

    @staticmethod
    def ending(command: str, tmp_path: Path) -> str:
        """The line that ends a command once its arguments are known."""
        url = tmp_path / "run"
        advice = f"; the same command resumes from the last checkpoint in {url}, or starts anew if none is there yet"
        return f"ringfeed {command}: interrupted{advice if command == 'train' else ''}\n"

    @pytest.mark.parametrize(
        ("command", "module", "sig"),
        [
            ("profile", "pyarrow", signal.SIGINT),
            ("profile", "keras", signal.SIGINT),  # imported by TensorFlow
            ("train", "pyarrow", signal.SIGTERM),
            ("train", "tensorflow.python.keras", signal.SIGTERM),
        ],
    )
    def test_a_signal_while_a_module_is_imported(
        self, tmp_path: Path, words: dict[str, list[str]], command: str, module: str, sig: signal.Signals
    ) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", MARK, module, *words[command]],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=lean_environment(),
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline() == "importing\n"
            spent = cpu_seconds(process.pid)
            process.send_signal(sig)
            stderr = process.communicate(timeout=280)[1]
        assert ended_cpu_seconds() - spent < SOON_SECONDS
        is_early = module == "pyarrow"  # imported before the configuration is read
        line = f"ringfeed {command}: interrupted\n" if is_early else self.ending(command, tmp_path)
        assert (process.returncode, stderr) == (ENDINGS[sig], line)

    @pytest.mark.campaign
    @pytest.mark.parametrize("command", ["profile", "train"])
    def test_fifty_signals_at_random_moments(self, tmp_path: Path, words: dict[str, list[str]], command: str) -> None:
        """From the moment at which Python has started and the command handles signals, until batches are read."""
        random = Random(command)
        for number in range(50):
            sig = random.choice(list(ENDINGS))
            program = str(Path(sys.executable).with_name("ringfeed"))
            with subprocess.Popen([program, *words[command]], stderr=subprocess.PIPE, text=True) as process:
                while not handles_signals(process.pid):
                    assert process.poll() is None
                    time.sleep(0.001)
                after = 0.01 * 1000 ** random.random()
                time.sleep(after)
                spent = cpu_seconds(process.pid)
                process.send_signal(sig)
                stderr = process.communicate(timeout=280)[1]
            told = number, sig, after, stderr
            assert ended_cpu_seconds() - spent < SOON_SECONDS, told
            assert process.returncode in (ENDINGS[sig], 75 if (command, sig) == ("train", signal.SIGTERM) else None), (
                told
            )
            endings = f"ringfeed {command}: interrupted\n", self.ending(command, tmp_path)
            assert stderr.endswith(endings), told
            assert stderr.count("interrupted") == 1, told
            assert "Traceback" not in stderr, told
            assert "ignored" not in stderr, told
