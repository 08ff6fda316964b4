"""Large records from a local disk, cold and warm: `Loader.epoch` beside a plain read of its files by four threads,
`numpy_epoch`, and readers of other projects, each in its own format and process, in turn with `Loader.epoch`.

Cold files are not in the page cache: it is asked to drop them, and a file that it keeps ends the benchmark. The bytes
read from disks are counted. Readers whose environment `benchmarks/run.py rivals` has not made yet are left out.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from subprocess import Popen

import rivals
from parts import cold_files, process_tree
from parts.large_formats import BATCH, READERS, RECORD_BYTES, RECORDS, large_records

from ringfeed.pipeline import Loader
from ringfeed.sharding import build

OURS = "Loader.epoch"
GOALS = {"plain read": 0.9, "Loader.numpy_epoch": 0.9}
GEOMETRIES = [(shard, record) for shard in (16, 256) for record in (1_000, RECORD_BYTES, 10_000_000)]
"""MiB of a shard, and bytes of a record."""
_GEOMETRY_BYTES = 1 << 30
_LONG_BYTES = 96_000 * RECORD_BYTES


@dataclass(frozen=True)
class _Epoch:
    """An epoch of a reader: MB a second, processor seconds, MB read from disks, and MiB of `process_tree.held_mib`."""

    rate: float
    processor: float
    disk: float
    held: float
    own: float


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of bytes per second, after one round that is not counted; prints the table.

    The round that is not counted measures the memory, because watching it takes time.
    """
    shards = folder / "large-records"
    if not shards.exists():
        build(source=large_records(), destination=str(shards), label="label")
    names = [name for name, reader in READERS.items() if name != OURS and rivals.is_made(reader.environment)]
    print(f"  {RECORDS:,} records of {RECORD_BYTES:,} bytes, batches of {BATCH}, {rounds} rounds")
    print("  without: " + (", ".join(sorted({*READERS} - {*names, OURS})) or "none"))
    epochs: dict[tuple[str, str], list[_Epoch]] = defaultdict(list)
    results = []
    ours = _started(OURS, shards)
    for name in names:
        place = shards if READERS[name].write is None else folder / "large-rival"
        place.mkdir(exist_ok=True)
        pair = {OURS: ours, name: _started(name, place)}
        counted: dict[tuple[str, str], list[_Epoch]] = defaultdict(list)
        for number in range(rounds + 1):
            for key in [(reader, heat) for reader in pair for heat in READERS[name].heats]:
                counted[key].append(_epoch(pair[key[0]], key[1], watched=number == 0))
        pair[name].communicate()
        if place != shards:
            shutil.rmtree(place)
        for key, values in counted.items():
            epochs[key] += [replace(value, held=values[0].held, own=values[0].own) for value in values[1:]]
        for heat in READERS[name].heats:
            rates = [[epoch.rate for epoch in counted[reader, heat][1:]] for reader in pair]
            ratios = [one / other for one, other in zip(*rates, strict=True)]
            if name == "Loader.numpy_epoch":
                results.append((f"numpy_epoch, {heat}, against epoch", [1 / ratio for ratio in ratios], GOALS[name]))
            elif heat == "cold" or name != "plain read":
                results.append((f"epoch, {heat}, against {name}", ratios, GOALS.get(name, 1)))
        _print(name, epochs)
    ours.communicate()
    _print(OURS, epochs)
    return results


def _print(name: str, epochs: dict[tuple[str, str], list[_Epoch]]) -> None:
    rows = "; ".join(f"{heat} {_described(epochs[name, heat])}" for heat in READERS[name].heats)
    print(f"  {name}: {rows}", flush=True)


def _started(name: str, folder: Path) -> Popen[str]:
    log = folder.parent / f"{folder.name}.log"
    return rivals.started(READERS[name].environment, ["-m", "parts.large_formats", name, str(folder)], log)


def _epoch(child: Popen[str], heat: str, *, watched: bool) -> _Epoch:
    rivals.ask(child, heat)
    before = process_tree.usage(child.pid)
    if watched:
        with process_tree.peak_mib(child.pid) as peak:
            answer = rivals.ask(child)
    else:
        peak, answer = [0.0, 0.0], rivals.ask(child)
    after = process_tree.usage(child.pid)
    seconds, size = map(float, answer.split())
    disk = (after[1] - before[1]) / 1e6
    if heat == "cold" and disk < 0.95 * size / 1e6:
        raise RuntimeError(f"of {size / 1e6:,.0f} MB, {disk:,.0f} came from a disk: the files were not cold")
    return _Epoch(size / seconds / 1e6, after[0] - before[0], disk, *peak)


def _described(epochs: Sequence[_Epoch]) -> str:
    rates = [epoch.rate for epoch in epochs]
    return (
        f"{median(rates):,.0f} MB/s ({min(rates):,.0f} to {max(rates):,.0f}), "
        f"{median(epoch.processor for epoch in epochs):.2f} CPU s, {median(epoch.disk for epoch in epochs):,.0f} MB "
        f"from disk, at most {max(epoch.own for epoch in epochs):,.0f} MiB of its own, "
        f"{max(epoch.held for epoch in epochs):,.0f} MiB with files"
    )


def run_geometries(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of a cold `Loader.epoch` to the plain read, by geometry and streams; prints the processor time of both."""
    results = []
    for shard, record in GEOMETRIES:
        batch = max((shard << 20) // record // 2, 1)
        results += _cold_ratios(folder, rounds, shard, record, batch, _GEOMETRY_BYTES)
    return results


def run_long(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of a cold `Loader.epoch` of 11 GB to the plain read, with one stream and with many."""
    return _cold_ratios(folder, rounds, 64, RECORD_BYTES, BATCH, _LONG_BYTES)


def _cold_ratios(
    folder: Path, rounds: int, shard: int, record: int, batch: int, size: int
) -> list[tuple[str, list[float], float]]:
    """Ratios for `size` bytes of records of `record` bytes, in shards of `shard` MiB."""
    url, results = str(folder / "cold"), []
    build(
        source=large_records(size // record, record),
        destination=url, label="label", shard_size=shard << 20, split={"train": 1}, overwrite=True,
    )  # fmt: skip
    files = sorted(str(path) for path in Path(url).glob("*.tfrecord"))
    loaders = [Loader(url, batch_size=batch, seed=1, streams=streams) for streams in (1, None)]
    for loader in loaders if loaders[1].streams > 1 else loaders[:1]:
        ratios = [ratio for epoch in range(rounds + 1) if (ratio := _cold_ratio(files, loader, epoch)) and epoch]
        what = f"{shard} MiB a shard, {record:,} bytes a record, batches of {batch}, streams: {loader.streams}"
        results.append((f"cold epoch against a plain read, {what}", ratios, 0.9))
    return results


def _cold_ratio(files: Sequence[str], loader: Loader, epoch: int) -> float:
    """Time of a plain read of cold files / time of an epoch of them."""
    seconds = []
    for read in (lambda: cold_files.read(files), lambda: deque(loader.epoch(epoch), maxlen=0)):
        cold_files.drop(files)
        began, cpu = time.perf_counter(), time.process_time()
        read()
        seconds.append(time.perf_counter() - began)
        print(f"  {seconds[-1]:.2f} s, of the processor {time.process_time() - cpu:.2f} s", flush=True)
    return seconds[0] / seconds[1]
