"""Large records from a local disk, cold and warm: `Loader.epoch` against a plain read of its files by four threads, and
`numpy_epoch` against `Loader.epoch`.

Cold files are not in the page cache: it is asked to drop them, and a file that it keeps ends the benchmark.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ringfeed.pipeline import Loader
from ringfeed.sharding import build

RECORDS, RECORD_BYTES, BATCH = 8_000, 114_660, 400
GEOMETRIES = [(shard, record) for shard in (16, 256) for record in (1_000, RECORD_BYTES, 10_000_000)]
"""MiB of a shard, and bytes of a record."""
_GEOMETRY_BYTES = 1 << 30
_THREADS = 4
_BLOCK_BYTES = 1 << 20
_ATTEMPTS, _PAUSE_SECONDS = 20, 0.1


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of bytes per second, after one round that is not counted."""
    url = str(folder / "large-records")
    if not Path(url).exists():
        build(source=large_record_source(), destination=url, label="label")
    files = sorted(str(path) for path in Path(url).glob("*.tfrecord"))
    loader = Loader(url, batch_size=BATCH, seed=1)
    ratios: dict[str, list[float]] = {"epoch, cold": [], "numpy, cold": [], "numpy, warm": []}
    for epoch in range(rounds + 1):
        readers: dict[str, Callable[[], Any]] = {
            "plain": lambda: _read(files),
            "epoch": lambda epoch=epoch: _consume(loader.epoch(epoch)),
            "numpy": lambda epoch=epoch: _consume(loader.numpy_epoch(epoch)),
        }
        rates = {}
        for name, read in readers.items():
            for heat in ("cold", "warm"):
                if heat == "cold":
                    _drop(files)
                rates[name, heat] = _rate(read)
        if epoch:
            ratios["epoch, cold"].append(rates["epoch", "cold"] / rates["plain", "cold"])
            for heat in ("cold", "warm"):
                ratios[f"numpy, {heat}"].append(rates["numpy", heat] / rates["epoch", heat])
            print("  MB/s: " + ", ".join(f"{name} {heat} {rate:,.0f}" for (name, heat), rate in rates.items()))
    what = f"{RECORDS:,} records of {RECORD_BYTES:,} bytes, batches of {BATCH}"
    return [
        (f"{what}, cold, against a plain read by {_THREADS} threads", ratios["epoch, cold"], 0.9),
        ("numpy_epoch of the same, cold, against epoch", ratios["numpy, cold"], 0.9),
        ("the same, warm", ratios["numpy, warm"], 0.9),
    ]


def run_geometries(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of a cold `Loader.epoch` to the plain read, by geometry and streams; prints the processor time of both."""
    results = []
    for shard, record in GEOMETRIES:
        url, batch = str(folder / "geometry"), max((shard << 20) // record // 2, 1)
        build(
            source=large_record_source(_GEOMETRY_BYTES // record, record),
            destination=url, label="label", shard_bytes=shard << 20, splits={"train": 1}, overwrite=True,
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
    for read in (lambda: _read(files), lambda: _consume(loader.epoch(epoch))):
        _drop(files)
        began, cpu = time.perf_counter(), time.process_time()
        read()
        seconds.append(time.perf_counter() - began)
        print(f"  {seconds[-1]:.2f} s, of the processor {time.process_time() - cpu:.2f} s", flush=True)
    return seconds[0] / seconds[1]


def large_record_source(records: int = RECORDS, size: int = RECORD_BYTES) -> Iterable[dict[str, Any]]:
    """Records of random bytes, with a label of ten classes."""
    noise = os.urandom(size + RECORDS)
    for number in range(records):
        start = number % RECORDS
        yield {"image": noise[start : start + size], "label": number % 10}


def _drop(files: Sequence[str]) -> None:
    """Drop files from the page cache, once the threads of the epoch before have let go of them."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            _drop_now(files)
            return
        except RuntimeError:
            if not left:
                raise
            time.sleep(_PAUSE_SECONDS)


def _drop_now(files: Sequence[str]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not written cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            middle = os.fstat(descriptor).st_size // 2
            try:
                os.preadv(descriptor, [bytearray(1)], middle, os.RWF_NOWAIT)
            except BlockingIOError:
                continue
            raise RuntimeError(f"{path} stays in the page cache; set TMPDIR to a folder on a disk")
        finally:
            os.close(descriptor)


def _read(files: Sequence[str]) -> None:
    """Read files to their ends, each by one of the threads."""
    left, lock = iter(files), threading.Lock()

    def work() -> None:
        block = bytearray(_BLOCK_BYTES)
        while True:
            with lock:
                path = next(left, None)
            if path is None:
                return
            with open(path, "rb", buffering=0) as file:
                while file.readinto(block):
                    pass

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _consume(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def _rate(read: Callable[[], Any]) -> float:
    """MB/s of all records."""
    began = time.perf_counter()
    read()
    return RECORDS * RECORD_BYTES / (time.perf_counter() - began) / 1e6
