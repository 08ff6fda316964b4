"""A table to shards: `shard-dataset build` against what writes the same rows, or bytes, and does nothing else.

To TFRecord against the loop that the documentation teaches; to Parquet against `pyarrow.dataset.write_dataset`; two
workers against one; and to S3 against a plain upload of the same bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import images
import obstore
import psutil
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import tensorflow as tf
from obstore.store import S3Store
from parts.link import GIGABIT, link

from ringfeed.sharding import BuildOptions, build

SHARDS = 16
_LARGE, _LARGEST = 8, 32  # copies of the table, for what is of no use on a small one
_TURNS = 8  # of builds to one of the loop, which then takes twice as long as they
_UPLOADS = 8  # at a time
_COPIES = 4  # as many images as elsewhere: what takes 3 s to begin and to end is not to be all of it


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of the loop's seconds to ours, one process for both, after one round that is not counted.

    A round is the loop once and several builds, of which one takes less than the machine needs to change its pace.
    """
    ratios = []
    for number in range(rounds + 1):
        loop = _write(_loop, folder / "source.parquet", folder / "loop").seconds
        ours = fmean(_write(_ours, folder / "source.parquet", folder / "ours").seconds for _ in range(_TURNS))
        if number:
            ratios.append(loop / ours)
            print(f"  seconds: loop {loop:.2f}, shard-dataset build {ours:.2f}")
    return [("500k rows to 16 TFRecord shards, against the tf.train.Example loop", ratios, 15)]


def run_parquet(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of write_dataset's seconds to ours, both with all cores; ours also shuffles, balances and checksums."""

    def plain(source: Path, target: Path) -> None:
        table = pads.dataset(source)
        rows = -(-table.count_rows() // SHARDS)
        options = {"max_rows_per_file": rows, "max_rows_per_group": rows}
        pads.write_dataset(table, target, format="parquet", **options)

    def ours(source: Path, target: Path) -> None:
        _build(source, str(target), shard_format="parquet")

    ratios = _ratios(plain, ours, folder / "source.parquet", folder, rounds)
    return [("500k rows to 16 Parquet shards, against pyarrow.dataset.write_dataset", ratios, 0.8)]


def run_workers(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of one worker's seconds to two workers', each with a core; starting the processes included.

    Left alone, one worker keeps 1.4 cores busy: a thread encodes while another writes.
    """
    source = _repeated(folder, _LARGEST)
    one, two = (lambda s, t, n=n: _command(s, str(t), workers=n, cores=n) for n in (1, 2))
    ratios = _ratios(one, two, source, folder, rounds)
    return [(f"{_LARGEST // 2}M rows to 16 TFRecord shards, two workers on two cores against one on one", ratios, 1.7)]


def run_s3(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of a plain upload's seconds to a build's, of the same shards to the same server on this machine.

    Of rows, few and many, which are all read before the first shard can be written, and of images, which are not. Next
    to the server, so that server, build and upload share the cores; and over links on which they wait more and more.
    And of a limit's: all cores busy with what the upload and a build to a local disk take, or the upload, if longer.
    """
    photos, count = folder / "photos-s3", _COPIES * images.IMAGES
    images.write_photos(photos, count)
    results = []
    for copies, links in ((_LARGE, (None, 1, 0.3)), (_LARGEST, (1,))):
        results += _to_s3(f"{copies // 2}M rows", _repeated(folder, copies), "label", links, folder, rounds)
    return results + _to_s3(f"{count:,} JPEGs", photos, None, (None, 1), folder, rounds)


def _to_s3(
    name: str, source: Path, label: str | None, links: Sequence[float | None], folder: Path, rounds: int
) -> list[tuple[str, list[float], float]]:
    """Ratios of one source, next to the server and over links of so many Gbit/s."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.servers.seaweedfs import REGION, seaweedfs

    shards = folder / f"upload-{source.stem}"
    _command(source, str(shards), label=label)
    results = []
    for gigabits in links:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, folder / "s3")  # the server frees nothing that is removed from it
            server = stack.enter_context(seaweedfs(folder / "s3"))
            server.make_bucket("bench")
            endpoint, how = server.endpoint_url, ""
            if gigabits is not None:
                endpoint = stack.enter_context(link(endpoint, int(gigabits * GIGABIT)))
                how = f", both over a link of {gigabits:g} Gbit/s"
            os.environ |= {**server.env, "AWS_ENDPOINT_URL_S3": endpoint}
            store = S3Store(
                "bench",
                config={"endpoint": endpoint, "region": REGION, "unsigned_payload": True},
                client_options={"allow_http": True, "timeout": "1h"},
            )

            def plain(_: Path, target: Path, store: S3Store = store) -> None:
                send = partial(_upload, store, target.name)
                with ThreadPoolExecutor(_UPLOADS) as pool:
                    list(pool.map(send, shards.iterdir()))

            def ours(source: Path, target: Path) -> None:
                _command(source, f"s3://bench/{target.name}", label=label)

            def local(source: Path, target: Path) -> None:
                _command(source, str(target), label=label)

            rates, limits = [], []
            for _, upload, here, there in _rounds([local, plain, local, ours], source, folder, rounds):
                busy = (upload.cpu_seconds + here.cpu_seconds) / (os.cpu_count() or 1)
                rates.append(upload.seconds / there.seconds)
                limits.append(max(upload.seconds, busy) / there.seconds)
            what = f"{name} to S3, against"
            results.append((f"{what} a plain upload of the shards by obstore{how}", rates, 0.8))
            results.append((f"{what} what cores and upload allow{how}", limits, 0.8))
    return results


def _upload(store: S3Store, folder: str, path: Path) -> None:
    """As fast as it goes here: with parts of 5 MiB, the default, it takes twice as long, and hashing them 1.1 times."""
    obstore.put(store, f"{folder}/{path.name}", path, chunk_size=16 << 20, max_concurrency=4)


def _repeated(folder: Path, copies: int) -> Path:
    """The table several times over, in row groups that workers share."""
    path = folder / f"source-{copies}.parquet"
    if not path.exists():
        table = pq.read_table(folder / "source.parquet")
        pq.write_table(pa.concat_tables([table] * copies), path, row_group_size=1 << 16)
    return path


def _ratios(
    rival: Callable[[Path, Path], None], ours: Callable[[Path, Path], None], source: Path, folder: Path, rounds: int
) -> list[float]:
    """Ratios of the rival's seconds to ours, in turn, after one round that is not counted."""
    return [first.seconds / second.seconds for first, second in _rounds([rival, ours], source, folder, rounds)]


def _rounds(
    writers: Sequence[Callable[[Path, Path], None]], source: Path, folder: Path, rounds: int
) -> Iterator[list[_Took]]:
    """How long each of some writers takes, in turn, round for round, after one that is not counted."""
    for number in range(rounds + 1):
        took = [_write(write, source, folder / uuid.uuid4().hex) for write in writers]
        if number:
            print(f"  seconds: {' and '.join(map(str, took))}")
            yield took


@dataclass(frozen=True)
class _Took:
    """How long something took, and how long all cores worked meanwhile, whoever for; both in seconds."""

    seconds: float
    cpu_seconds: float

    def __str__(self) -> str:
        busy = self.cpu_seconds / self.seconds / (os.cpu_count() or 1)
        return f"{self.seconds:.2f} ({self.cpu_seconds:.1f} of CPU, cores {busy:.0%} busy)"


def _measured(work: Callable[[], object]) -> _Took:
    os.sync()  # what others left to be written is no work of this one
    start, worked = time.perf_counter(), _worked()
    work()
    return _Took(time.perf_counter() - start, _worked() - worked)


def _worked() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait)


def _write(write: Callable[[Path, Path], None], source: Path, target: Path) -> _Took:
    shutil.rmtree(target, ignore_errors=True)
    took = _measured(lambda: write(source, target))
    shutil.rmtree(target, ignore_errors=True)
    return took


def _ours(source: Path, target: Path) -> None:
    _build(source, str(target), workers=1)


def _command(
    source: Path, target: str, *, workers: int | None = None, cores: int | None = None, label: str | None = "label"
) -> None:
    """As a user starts it: processes that workers are started from hold no TensorFlow then."""
    program = Path(sys.executable).with_name("shard-dataset")
    pinned = ["taskset", "--cpu-list", f"0-{cores - 1}"] if cores else []
    options = ["--shards", str(SHARDS), "--json"]
    options += ["--workers", str(workers)] if workers else []
    options += ["--label", label] if label else []
    done = subprocess.run([*pinned, program, "build", source, target, *options], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)


def _build(source: Path, target: str, *, shard_format: str = "tfrecord", workers: int = 1) -> None:
    options = {"label": "label", "shards": SHARDS, "shard_format": shard_format, "workers": workers}
    build(BuildOptions(source=str(source), destination=target, **options))


def _loop(source: Path, target: Path) -> None:
    """Round-robin over the shards: no shuffle, no balance, no index, no checksum of files."""
    target.mkdir()
    writers = [tf.io.TFRecordWriter(str(target / f"train-{i:05d}-of-{SHARDS:05d}.tfrecord")) for i in range(SHARDS)]
    row = 0
    for batch in pq.ParquetFile(source).iter_batches():
        features = batch.column("features").values.to_numpy().reshape(batch.num_rows, -1)
        for values, label in zip(features, batch.column("label").to_pylist(), strict=True):
            example = tf.train.Example(
                features=tf.train.Features(
                    feature={
                        "features": tf.train.Feature(float_list=tf.train.FloatList(value=values)),
                        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
                    }
                )
            )
            writers[row % SHARDS].write(example.SerializeToString())
            row += 1
    for writer in writers:
        writer.close()
