"""MLPerf Storage's workloads, run by DLIO with its own TensorFlow and PyTorch readers and with ringfeed's plug-in.

DLIO replaces a training step by sleep. A process reads for all emulated accelerators of the machine: with N of them a
step takes the N-th part of the workload's time. Utilisation is DLIO's own figure (the time of steps / the time of an
epoch, both without the first step); an accelerator counts if MLPerf Storage's minimum holds with it.

What each does with a record:
- ringfeed: takes it from shuffled shards, checks its shard's checksum, parses it, and hands its bytes over.
- TensorFlow on TFRecord: reads in the order of the files, checks the record's CRC, parses it, hands a constant over.
- both on `.npz`: opens the file of the record, checks its CRC, copies it into an array, hands a constant over. This is
  MLPerf's own format for PyTorch; DLIO refuses TFRecord with it.
None decodes images, and none is given labels. DLIO's PyTorch reader makes a text of the list of all samples for each
sample (`FormatReader.read_index`), so it gets few files here, and with MLPerf's many it would be slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from parts import cold_files

HERE = Path(__file__).parent
READERS = ("ringfeed", "TensorFlow", "PyTorch")
MOST_ACCELERATORS = 64
MOST_ARRAYS = 2400  # `.npz` files for PyTorch
MOST_KEPT = 0.05  # share of a cold dataset's bytes that may stay in memory, because a reader has mapped them


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of MLPerf Storage on emulated H100s, with fewer and, if need be, smaller files.

    Attributes:
        config: name of DLIO's configuration.
        files, file_records: files with all records in DLIO's own format, and the records in each.
        format: DLIO's own format.
        utilisation: least utilisation that MLPerf Storage accepts, in percent.
        batch_size, step_seconds: of one accelerator.
        record_bytes, deviation: mean and standard deviation of a record's size.
    """

    config: str
    files: int
    file_records: int
    format: str
    utilisation: int
    batch_size: int
    step_seconds: float
    record_bytes: int
    deviation: int = 0
    overrides: dict[str, object] = field(default_factory=dict)

    @property
    def arrays(self) -> int:
        """The number of `.npz` files, of one record each."""
        return self.files if self.format == "npz" else min(self.files * self.file_records, MOST_ARRAYS)

    @property
    def demand(self) -> float:
        """Samples a second that one accelerator takes."""
        return self.batch_size / self.step_seconds


# UNet3D's records and step are a sixteenth of MLPerf's, so an accelerator takes as many bytes a second.
WORKLOADS = {
    "ResNet-50": Workload(
        config="resnet50_h100", files=16, file_records=1251, format="tfrecord", utilisation=90, batch_size=400,
        step_seconds=0.224, record_bytes=114660,
    ),
    "CosmoFlow": Workload(
        config="cosmoflow_h100", files=640, file_records=1, format="tfrecord", utilisation=70, batch_size=1,
        step_seconds=0.0035, record_bytes=2828486, deviation=71311,
    ),
    "UNet3D": Workload(
        config="unet3d_h100", files=168, file_records=1, format="npz", utilisation=90, batch_size=7,
        step_seconds=0.323 / 16, record_bytes=146600628 // 16, deviation=68341808 // 16,
        overrides={"workflow.checkpoint": False, "dataset.record_length_resize": 2097152 // 16},
    ),
}  # fmt: skip


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of samples a second without a step: ringfeed against the faster of DLIO's own readers, cold and warm."""
    sys.path.insert(0, str(HERE.parent))
    from tests.servers.dlio import dlio_obstacle

    if reason := dlio_obstacle():
        print(f"  DLIO does not run here: {reason}")
        return []
    return [line for name, workload in WORKLOADS.items() for line in run_workload(name, workload, folder, rounds)]


def run_workload(name: str, workload: Workload, folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Measure one workload, print the emulated accelerators of each reader, and return the ratios."""
    print(f"  {name}: load average {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores", flush=True)
    files = {"TensorFlow": prepare(workload, folder, workload.format), "PyTorch": prepare(workload, folder, "npz")}
    files["ringfeed"] = files["TensorFlow"]
    shards = convert(workload, files["TensorFlow"])
    lines = []
    with ExitStack() as stack:
        readers = {
            reader: stack.enter_context(open_reader(workload, reader, files[reader], folder)) for reader in READERS
        }
        paths = {reader: sorted((files[reader] / "train").iterdir()) for reader in READERS}
        paths["ringfeed"] = sorted(path for path in shards.rglob("*") if path.is_file())
        for state in ("warm", "cold"):
            epochs: dict[str, list[dict[str, float]]] = {reader: [] for reader in READERS}
            disk = []
            for _ in range(rounds):
                disk.append(disk_rate(paths["ringfeed"]))
                for reader, child in readers.items():
                    epochs[reader].append(measure(child, paths[reader], state, 0))
            print(f"  {name}, {state}; the disk gives {median(disk) / 1e6:,.0f} MB/s", flush=True)
            for reader, child in readers.items():
                rate = median(epoch["rate"] for epoch in epochs[reader])
                reached = highest(workload, child, paths[reader], state, rate)
                samples = workload.arrays if reader == "PyTorch" else workload.files * workload.file_records
                print("  " + describe(workload, reader, epochs[reader], samples, *reached), flush=True)
            rates = {reader: [epoch["rate"] for epoch in epochs[reader]] for reader in READERS}
            best = max(("TensorFlow", "PyTorch"), key=lambda reader: median(rates[reader]))
            ratios = [one / other for one, other in zip(rates["ringfeed"], rates[best], strict=True)]
            lines.append((f"{name}, {state}, against DLIO's {best} reader", ratios, 1.5))
    return lines


def describe(
    workload: Workload, reader: str, epochs: Sequence[dict[str, float]], samples: int, accelerators: int, reached: float
) -> str:
    """One line of what a reader reaches."""
    rates = [epoch["rate"] for epoch in epochs]
    rate = median(rates)
    work = median(epoch["processor_seconds"] for epoch in epochs) / samples
    return (
        f"  {reader:10} {rate:8,.0f} samples/s without a step ({min(rates):,.0f} to {max(rates):,.0f}), "
        f"{rate * workload.record_bytes / 1e6:,.0f} MB/s, {rate / workload.demand:.1f} times an H100's need, "
        f"{work * 1e6:,.0f} us of processor time a sample; "
        f"{accelerators} emulated H100s at {workload.utilisation} % or more"
        + (f" ({reached:.0f} %)" if accelerators else f" (one has {reached:.0f} %)")
    )


def highest(
    workload: Workload, child: subprocess.Popen[str], paths: Sequence[Path], state: str, rate: float
) -> tuple[int, float]:
    """The most accelerators whose utilisation suffices, and that utilisation; or 0, and that of one.

    The search begins below what the rate without a step promises. Above the first number that fails, the next is tried
    too: an epoch that other programs disturb is not the end.
    """
    first = max(int(0.7 * rate / workload.demand), 1)
    utilisation = 0.0
    for down in range(first, 0, -1):
        utilisation = measure(child, paths, state, workload.step_seconds / down)["utilisation"]
        if utilisation >= workload.utilisation:
            break
    else:
        return 0, utilisation
    best, failures = down, 0
    for up in range(first + 1, MOST_ACCELERATORS) if down == first else ():
        reached = measure(child, paths, state, workload.step_seconds / up)["utilisation"]
        if reached >= workload.utilisation:
            best, utilisation, failures = up, reached, 0
        else:
            failures += 1
        if failures == 2:
            break
    return best, utilisation


def measure(child: subprocess.Popen[str], paths: Sequence[Path], state: str, step_seconds: float) -> dict[str, float]:
    """An epoch with files in the page cache, or with none."""
    files = list(map(str, paths))
    if state == "cold":
        cold_files.drop(files, MOST_KEPT)
    else:
        cold_files.read(files)
    return ask(child, f"{step_seconds}\n")


def disk_rate(paths: Sequence[Path]) -> float:
    """Bytes a second of plain reads of files that are not in the page cache."""
    files = list(map(str, paths))
    cold_files.drop(files, MOST_KEPT)
    began = time.perf_counter()
    cold_files.read(files)
    return sum(path.stat().st_size for path in paths) / (time.perf_counter() - began)


def ask(child: subprocess.Popen[str], line: str = "") -> dict[str, float]:
    """Send a line, if there is one, and return the answer."""
    assert child.stdin
    assert child.stdout
    child.stdin.write(line)
    child.stdin.flush()
    answer = child.stdout.readline()
    if not answer:
        raise RuntimeError("a process of DLIO ended: see its log")
    return json.loads(answer)


def prepare(workload: Workload, folder: Path, kind: str) -> Path:
    """Let DLIO write its files, and return its data folder."""
    data = folder / "dlio" / f"{workload.config}-{kind}"
    if not data.exists():
        framework = "PyTorch" if kind == "npz" else "TensorFlow"
        options = {"workflow.generate_data": True, "workflow.train": False}
        with started(command(workload, framework, data, kind, options), folder / "dlio-files.log") as child:
            child.wait()
        os.sync()  # what is not yet on the disk stays in the page cache
    return data


def convert(workload: Workload, data: Path) -> Path:
    """Build the ringfeed dataset of DLIO's files, and return its folder."""
    shards = data / "ringfeed"
    source = ["--source", "dlio_arrays:records"] if workload.format == "npz" else [str(data / "train" / "*.tfrecord")]
    if not shards.exists():
        subprocess.run(
            [
                *(sys.executable, "-m", "ringfeed.tools.shard_dataset", "build", "--quiet", *source, str(shards)),
                *("--shard-size", "16MiB"),
            ],
            check=True, cwd=HERE / "parts", env={**os.environ, "DLIO_ARRAYS": str(data / "train")},
        )  # fmt: skip
        os.sync()
    return shards


@contextmanager
def open_reader(workload: Workload, reader: str, data: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of DLIO with a reader, which has made two epochs: in the second, its memory still grows."""
    kind = "npz" if reader == "PyTorch" else workload.format
    options: dict[str, object] = {}
    if reader == "ringfeed":
        options = {
            "reader.data_loader_classname": "ringfeed.tools.dlio.Loader", "reader.data_loader_sampler": "iterative",
        }  # fmt: skip
    with started(command(workload, reader, data, kind, options), folder / f"dlio-{reader}.log") as child:
        ask(child)
        for _ in range(2):
            ask(child, "0\n")
        yield child


@contextmanager
def started(arguments: Sequence[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """A process in DLIO's environment, which ends with its input."""
    from tests.servers.dlio import dlio_environment, dlio_python

    pipe = subprocess.PIPE
    command = [str(dlio_python()), str(HERE / "parts" / "dlio_reader.py"), *arguments]
    with log.open("a") as errors:
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=dlio_environment())
    try:
        yield child
        child.communicate(timeout=60)
        if child.returncode:
            raise RuntimeError(f"a process of DLIO failed: {log.read_text(errors='replace')[-2000:]}")
    finally:
        child.kill()


def command(workload: Workload, reader: str, data: Path, kind: str, options: dict[str, object]) -> list[str]:
    """What overrides DLIO's configuration."""
    arrays = kind == "npz"
    framework = "pytorch" if reader == "PyTorch" else "tensorflow"
    settings = {
        "framework": framework, "reader.data_loader": framework, "dataset.format": kind,
        "dataset.num_files_train": workload.arrays if arrays else workload.files,
        "dataset.num_samples_per_file": 1 if arrays else workload.file_records,
        "dataset.record_length": workload.record_bytes, "dataset.record_length_stdev": workload.deviation,
        "dataset.data_folder": data, "output.folder": data.parent / "out", "train.epochs": 1,
        "train.computation_time": workload.step_seconds, "reader.batch_size": workload.batch_size,
        **workload.overrides, **options,
    }  # fmt: skip
    return [f"workload={workload.config}", *(f"++workload.{name}={value}" for name, value in settings.items())]
