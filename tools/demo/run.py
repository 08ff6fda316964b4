"""`make demo`: from real data to balanced shards, trained models and a report, by the commands that a user would type.

The installed commands run in subprocesses; only the sources and the page are written by this process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ringfeed.sharding import RingfeedError, open_dataset
from ringfeed.sharding.messages import one_line, printable
from ringfeed.tools.console import SafeConsole, human_seconds
from ringfeed.tools.probe import tensorflow_distribution, version_of
from ringfeed.tools.shard_dataset.balance_report import balance_of_dataset, balance_text
from ringfeed.tools.shard_dataset.common_arguments import cores

from .data import FLIGHT_LABEL, write_digits, write_flights
from .report import BuiltDataset, CommandRecord, DemoResult, compare_runs, render_report
from .samples import SampleImage, pick_samples, read_images, read_predictions

FORMATS = ("tfrecord", "parquet")
RANKS = 2
DIGITS_ACCURACY = 0.97  # a lower test accuracy is a failure
_SPLITS = "train=0.8,test=0.2"
_BATCHES = {"flights": 2048, "digits": 64}
_QUICK_EVERY = 16  # --quick uses every 16th flight
_WRONG_SHOWN = 10
_STEP = re.compile(r"step (\d+)/(\d+)  loss \S+")
_PREFIX = re.compile(r"^\[\d+\]<std(?:err|out)>:\s?")
_EVENT = re.compile(r'^{"event": .*}$')  # from `shard-dataset --json`
_ERROR = re.compile(r"\berror: ")


class DemoFailed(RingfeedError):
    """A step of the demo failed; the message names the step and the cause."""


@dataclass(slots=True)
class Demo:
    """A run of the demo: its folders, and the commands run so far."""

    output: Path
    examples: Path
    is_quick: bool
    console: Console
    commands: list[CommandRecord]

    def run(self, purpose: str, words: Sequence[str]) -> str:
        """Print a command, run it with a progress line, and return its standard output.

        Raises:
            DemoFailed: the exit status is not 0.
        """
        command = printable(shlex.join(words))
        self.console.print(f"\n[bold]{purpose}[/bold]")
        self.console.print(f"$ {command}", style="cyan", markup=False, highlight=False, soft_wrap=True)
        log = self.output / "logs" / f"{len(self.commands):02d}-{words[0]}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        started = monotonic()
        with log.open("w+") as errors:
            process = subprocess.Popen(
                _located(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "PATH": f"{_commands_folder()}{os.pathsep}{os.environ.get('PATH', '')}"},
            )  # fmt: skip
            try:
                stdout = self._watch(process, log)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        seconds = monotonic() - started
        if process.returncode:
            why = _last_words(log.read_text()) or _last_words(stdout) or f"exit status {process.returncode}"
            raise DemoFailed(f"{purpose}: {why} (all of its output: {log})")
        self.commands.append(CommandRecord(purpose=purpose, command=command, seconds=seconds))
        return stdout

    def _watch(self, process: subprocess.Popen[str], log: Path) -> str:
        """Wait for the process with a progress bar that follows the steps it logs; return its standard output."""
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as progress:
            task = progress.add_task("", total=None)
            while True:
                try:
                    return process.communicate(timeout=0.3)[0]
                except subprocess.TimeoutExpired:
                    if steps := list(_STEP.finditer(log.read_text(errors="replace"))):
                        done, total = map(int, steps[-1].groups())
                        progress.update(task, completed=done, total=total, description=steps[-1].group())

    def say(self, text: str) -> None:
        """Print a line of a step's result."""
        self.console.print(f"  {printable(text)}", markup=False, highlight=False, soft_wrap=True)


# --- the steps -------------------------------------------------------------------------------------------------


def prepare(demo: Demo) -> dict[str, Path]:
    """Write both sources; return their paths by name."""
    demo.console.print(
        "[bold]Writing the sources: flights as Parquet, digits as PNGs in a folder for each class[/bold]"
    )
    flights, digits = demo.output / "source" / "flights.parquet", demo.output / "source" / "digits"
    records = write_flights(flights)
    if demo.is_quick:
        table = pq.read_table(flights).take(list(range(0, records, _QUICK_EVERY)))
        records = table.num_rows
        pq.write_table(table, flights)
    shutil.rmtree(digits, ignore_errors=True)
    demo.say(f"{flights}: {records:,} flights")
    demo.say(f"{digits}: {write_digits(digits):,} images")
    return {"flights": flights, "digits": digits}


def build(demo: Demo, name: str, source: Path, shard_format: str) -> tuple[str, dict[str, Any]]:
    """Build a dataset and print its balance; return its URL and the command's document."""
    url = str(demo.output / "shards" / f"{name}-{shard_format}")
    words = [
        "shard-dataset", "build", str(source), url, "--label", FLIGHT_LABEL if name == "flights" else "label",
        "--format", shard_format, "--split", _SPLITS, "--shards", "8", "--overwrite", "--json",
    ]  # fmt: skip
    document: dict[str, Any] = json.loads(demo.run(f"Building balanced shards of the {name}, {shard_format}", words))
    demo.say(f"{document['records']:,} records in {document['seconds']:.1f} s")
    if shard_format == FORMATS[0]:
        dataset = open_dataset(url)
        for line in balance_text(balance_of_dataset(dataset), dataset.manifest.classes):
            demo.say(line)
    return url, document


def profile(demo: Demo, name: str, url: str, shard_format: str) -> dict[str, Any]:
    """Profile the loader on a dataset; return the command's document."""
    words = ["ringfeed", "profile", url, "--batch-size", str(_BATCHES[name]), "--balance", "uniform", "--json"]
    if demo.is_quick:
        words += ["--seconds", "1"]
    document: dict[str, Any] = json.loads(demo.run(f"Profiling the loader on the {name}, {shard_format}", words))
    table = Table("stage", "busy s", "wait s", "threads busy", box=None, pad_edge=False, header_style="dim")
    for column in table.columns[1:]:
        column.justify = "right"
    for stage in document["stages"]:
        seconds = (f"{stage[key]:.3f}" for key in ("busy_seconds", "wait_seconds"))
        table.add_row(stage["name"], *seconds, f"{stage['share']:.2f}")
    demo.console.print(table)
    demo.say(f"{document['samples_per_second']:,.0f} samples/s; bottleneck: {document['verdict']['bottleneck']}")
    return document


def train(demo: Demo, purpose: str, run: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """Train on two ranks; return the run's metrics."""
    name = run.partition("-")[0]
    metrics = demo.output / "runs" / f"{run}.json"
    metrics.parent.mkdir(parents=True, exist_ok=True)
    words = [
        "horovodrun", "-np", str(RANKS), "--gloo", "ringfeed", "train", "--config", str(demo.examples / f"{name}.yaml"),
    ]  # fmt: skip
    chosen = {"data.url": str(demo.output / "shards" / f"{name}-tfrecord"), **settings, "output.metrics": str(metrics)}
    for key, value in chosen.items():
        words += ["--set", f"{key}={value}"]
    demo.run(purpose, words)
    document: dict[str, Any] = json.loads(metrics.read_text())
    final = document["final"]
    demo.say(
        f"{document['total_steps']:,} steps on {document['ranks']} ranks in {document['train_seconds']:.0f} s; "
        f"test accuracy {final['accuracy']:.2%}, balanced accuracy {final['balanced_accuracy']:.2%}"
    )
    return document


def show_comparison(demo: Demo, natural: Mapping[str, Any], uniform: Mapping[str, Any]) -> None:
    """Print the two runs on the flights side by side."""
    table = Table("on the test split", "natural", "uniform", title="Flights: over an hour late?", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in compare_runs(natural["final"], uniform["final"]):
        cells = [f"[bold]{value}[/bold]" if row.better == index else value for index, value in enumerate(row.values)]
        table.add_row(row.metric, *cells)
    demo.console.print()
    demo.console.print(table)


def check_digits(demo: Demo, metrics: Mapping[str, Any]) -> None:
    """Check the test accuracy on the digits.

    Raises:
        DemoFailed: it is below `DIGITS_ACCURACY`.
    """
    accuracy = metrics["final"]["accuracy"]
    if accuracy < DIGITS_ACCURACY and not demo.is_quick:
        raise DemoFailed(f"the digits reached {accuracy:.2%} test accuracy, not {DIGITS_ACCURACY:.0%}")


def predict_digits(demo: Demo, url: str, model: Path) -> tuple[list[SampleImage], list[SampleImage]]:
    """Ask the network about the test images; return some that it reads right, and its errors."""
    scores = demo.output / "predictions"
    shutil.rmtree(scores, ignore_errors=True)
    words = ["ringfeed", "predict", str(model), url, "--split", "test", "--keep", "label", "--out", str(scores)]
    demo.run("Asking the network about the test images", words)
    predictions = read_predictions(scores)
    right, wrong = pick_samples(predictions, _WRONG_SHOWN)
    demo.say(f"{sum(one.is_right for one in predictions)} of {len(predictions)} right")
    return read_images(url, "test", right), read_images(url, "test", wrong)


def run_demo(demo: Demo) -> Path:
    """Run all steps; return the page's path."""
    started = monotonic()
    sources = prepare(demo)
    formats = FORMATS[:1] if demo.is_quick else FORMATS
    built = {(name, form): build(demo, name, source, form) for form in formats for name, source in sources.items()}
    datasets = [_described(demo, name, form, *built[name, form]) for name in sources for form in formats]
    quick = {"epochs": "1", "schedule.warmup_epochs": "0.5"} if demo.is_quick else {}
    runs = {
        balance: train(demo, f"Training on the flights, balance: {balance}", f"flights-{balance}",
                       {"data.balance": balance, **quick})
        for balance in ("natural", "uniform")
    }  # fmt: skip
    show_comparison(demo, runs["natural"], runs["uniform"])
    model = demo.output / "runs" / "digits.keras"
    digits = train(
        demo, "Training a convolutional network on the digits", "digits", {**quick, "output.model": str(model)}
    )
    check_digits(demo, digits)
    right, wrong = predict_digits(demo, built["digits", FORMATS[0]][0], model)
    page = demo.output / "report.html"
    result = DemoResult(
        created=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), seconds=monotonic() - started,
        is_quick=demo.is_quick, machine=describe_machine(), commands=demo.commands, datasets=datasets,
        natural=runs["natural"], uniform=runs["uniform"], digits=digits, right_images=right, wrong_images=wrong,
    )  # fmt: skip
    page.write_text(render_report(result), encoding="utf-8")
    demo.console.print(f"\nDone in {human_seconds(result.seconds)}. The page:", highlight=False)
    demo.console.print(printable(str(page.resolve())), style="bold", highlight=False, soft_wrap=True)
    return page


def _described(demo: Demo, name: str, shard_format: str, url: str, document: dict[str, Any]) -> BuiltDataset:
    dataset = open_dataset(url)
    return BuiltDataset(
        name=name,
        shard_format=shard_format,
        build=document,
        classes=[str(value) for value in dataset.manifest.classes],
        balance=balance_of_dataset(dataset),
        profile=profile(demo, name, url, shard_format),
    )


def describe_machine() -> dict[str, str]:
    """Return properties of the machine and its software, by name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    tensorflow = tensorflow_distribution()
    return {
        "processor": f"{_processor()}, {cores()} cores",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "Python": platform.python_version(),
        "TensorFlow": " ".join(tensorflow) if tensorflow else "none",
        "Keras": version_of("keras") or "none",
        "Horovod": f"{version_of('horovod') or 'none'}, Gloo",
        "pyarrow": version_of("pyarrow") or "none",
        "ringfeed": version_of("ringfeed") or "not installed",
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


# --- commands --------------------------------------------------------------------------------------------------


def _commands_folder() -> Path:
    """Return the folder of this environment's commands; not resolved, since its Python may be a link."""
    return Path(sys.executable).parent


def _located(words: Sequence[str]) -> list[str]:
    """Return the command's words, with the program as a path."""
    program = _commands_folder() / words[0]
    if not program.exists():
        raise DemoFailed(f"{words[0]} is not installed beside {sys.executable}; run `make demo`, or `ringfeed doctor`")
    return [str(program), *words[1:]]


def _event_text(event: re.Match[str]) -> str:
    fields = json.loads(event.group())
    return f"{fields['event']}: {fields.get('message', '')}"


def _last_words(text: str) -> str:
    """Return the line of a command's output that says what went wrong: the first error, else the last line.

    >>> _last_words("[1]<stderr>:ringfeed train: error: no dataset\\nTraceback\\nRuntimeError: exited")
    'ringfeed train: error: no dataset'
    >>> _last_words('{"event": "progress"}\\n{"event": "error", "message": "no dataset", "status": 1}')
    'error: no dataset'
    >>> _last_words("one\\ntwo\\n\\n")
    'two'
    """
    lines = [one_line(_PREFIX.sub("", _EVENT.sub(_event_text, line))) for line in text.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[-1] if lines else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status; a failure is one line on standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m ringfeed.tools.demo",
        description="Shard real data, profile its loading, train on it, and write the results to an HTML page.",
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("demo-output"), help="folder to write (default: demo-output)")
    add("--examples", type=Path, default=Path("examples"), help="folder of the YAML files (default: examples)")
    add("--quick", action="store_true", help="for tests: a part of the data, one format, one epoch")
    args = parser.parse_args(argv)
    demo = Demo(args.output, args.examples, args.quick, SafeConsole(highlight=False), [])
    try:
        if not (args.examples / "flights.yaml").is_file():
            raise DemoFailed(
                f"{args.examples}/flights.yaml does not exist; run in ringfeed's repository, or give --examples"
            )
        args.output.mkdir(parents=True, exist_ok=True)
        run_demo(demo)
    except (RingfeedError, OSError) as error:
        print(f"demo: error: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
