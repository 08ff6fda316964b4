"""Reading from S3 (SeaweedFS on this machine): a cold epoch that fills a cache on disk, against plain clients that
download the same shards to the same disk and do nothing else; and an epoch from the warm cache, against local shards.

The clients get eight objects at a time, each as its documentation says. The loader also checks, gathers, decodes and
hands batches over, of which the first needs all shards: each of the 16 streams has one. Once with the server on the
same cores, where the median of a few turns counts, and once over a link of 1 Gbit/s.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import obstore
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import s3fs
from obstore.store import S3Store
from parts.link import GIGABIT, link

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build

BATCH, SHARDS, THREADS = 256, 16, 8
_TURNS = 5  # of each in a round, next to the server: one takes less than the machine needs to change its pace
RECORDS, RECORD_BYTES = 16_384, 32_768  # 512 MiB
Download = Callable[[str, Path], object]


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of rates, in turn, after one round that is not counted; page cache warm."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.servers.seaweedfs import seaweedfs

    local = _write(folder)
    with seaweedfs(folder / "s3") as server, link(server.endpoint_url, GIGABIT) as far:
        os.environ.update(server.env)
        server.make_bucket("bench")
        s3fs.S3FileSystem().put(f"{local}/", "bench/data/", recursive=True)
        near = _Rounds(folder, local, server.endpoint_url, (server.access_key, server.secret_key))
        close_by, distant = near.ratios(rounds), replace(near, endpoint=far, turns=1).ratios(rounds)
    against = "against the fastest plain client"
    labels = {
        "fill": f"checked shards through the cache, {against}",
        "cold": f"a cold epoch from S3 through the cache, {against}",
    }
    return [
        *((label, close_by[name], 0.8) for name, label in labels.items()),
        *((f"{label}, over a link of 1 Gbit/s", distant[name], 0.8) for name, label in labels.items()),
        ("an epoch from the warm cache, against local shards", close_by["warm"], 1.0),
    ]


@dataclass(frozen=True)
class _Rounds:
    """Everybody in turn, at one endpoint, with an access key and its secret; the shards also lie in a local folder."""

    folder: Path
    local: str
    endpoint: str
    keys: tuple[str, str]
    turns: int = _TURNS

    def ratios(self, rounds: int) -> dict[str, list[float]]:
        """Of the fastest plain client, by its median, to what fills the cache; and of local shards to the cache."""
        os.environ["AWS_ENDPOINT_URL_S3"] = self.endpoint
        s3fs.S3FileSystem.clear_instance_cache()
        clients = _clients(s3fs.S3FileSystem(), self.endpoint, *self.keys)
        seconds: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            turns = [self._turn(clients, number * self.turns + turn) for turn in range(self.turns)]
            took = {name: median(turn[name] for turn in turns) for name in turns[0]}
            if number:
                for name, each in took.items():
                    seconds.setdefault(name, []).append(each)
                print("  seconds: " + ", ".join(f"{name} {each:.2f}" for name, each in took.items()))
        size = RECORDS * RECORD_BYTES / 1e6
        print("  MB/s, medians: " + ", ".join(f"{name} {size / median(seconds[name]):,.0f}" for name in clients))
        fastest = min((seconds[name] for name in clients), key=median)
        rivals = {"fill": fastest, "cold": fastest, "warm": seconds["local"]}
        return {
            name: [plain / own for plain, own in zip(rival, seconds[name], strict=True)]
            for name, rival in rivals.items()
        }

    def _turn(self, clients: dict[str, Download], number: int) -> dict[str, float]:
        """Seconds of each. What those before have left to be written is on the disk when one begins."""
        shards = sorted(path.name for path in Path(self.local).iterdir() if path.name.startswith("train-"))
        took = {}
        for name, get in clients.items():
            os.sync()
            took[name] = _download(get, shards, self.folder / "download")
        os.sync()
        took["fill"] = _open_all(_cold_loader(self.folder / "cache", number))
        os.sync()
        loader = _cold_loader(self.folder / "cache", number)
        took["cold"] = _epoch(loader, 0)
        os.sync()
        plain = Loader(self.local, batch_size=BATCH, seed=number, fetch_threads=THREADS)
        _epoch(plain, 0)
        first, second, third, fourth = (_epoch(one, 1) for one in (loader, plain, plain, loader))
        return {**took, "warm": first + fourth, "local": second + third}


def _write(folder: Path) -> str:
    """A dataset of large records, so that bytes weigh and not records."""
    values = np.random.default_rng(0).integers(0, 256, RECORDS * RECORD_BYTES, dtype=np.uint8)
    features = pa.FixedSizeListArray.from_arrays(pa.array(values), RECORD_BYTES)
    labels = pa.array(np.arange(RECORDS) % 10)
    pq.write_table(pa.table({"x": features, "label": labels}), folder / "remote.parquet", compression="none")
    url = str(folder / "remote")
    build(BuildOptions(source=str(folder / "remote.parquet"), destination=url, label="label", shards=SHARDS))
    (folder / "remote.parquet").unlink()
    return url


def _clients(fs: s3fs.S3FileSystem, endpoint: str, key: str, secret: str) -> dict[str, Download]:
    arrow = pafs.S3FileSystem(access_key=key, secret_key=secret, endpoint_override=endpoint)
    options = {"access_key_id": key, "secret_access_key": secret, "region": "us-east-1"}
    store = S3Store("bench", config={"endpoint": endpoint, **options}, client_options={"allow_http": True})

    def by_arrow(name: str, target: Path) -> None:
        with arrow.open_input_file(f"bench/data/{name}") as file:
            target.write_bytes(file.read_buffer())

    def by_obstore(name: str, target: Path) -> None:
        with open(target, "wb") as file:
            for chunk in obstore.get(store, f"data/{name}").stream(min_chunk_size=4 << 20):
                file.write(chunk)

    return {
        "pyarrow.fs": by_arrow,
        "obstore": by_obstore,
        "s3fs": lambda name, target: target.write_bytes(fs.cat_file(f"bench/data/{name}")),
    }


def _download(get: Download, names: list[str], target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    start = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda name: get(name, target / name), names))
    return time.perf_counter() - start


def _cold_loader(cache: Path, seed: int) -> Loader:
    shutil.rmtree(cache, ignore_errors=True)
    return Loader("s3://bench/data", batch_size=BATCH, seed=seed, cache=cache, fetch_threads=THREADS)


def _open_all(loader: Loader) -> float:
    """What of a cold epoch is not the work on samples."""
    with loader.open_streams() as streams:
        fetcher = streams.context.fetcher
        start = time.perf_counter()
        for requested in [fetcher.request(fetcher.whole(shard)) for shard in range(SHARDS)]:
            fetcher.wait(requested)
        return time.perf_counter() - start


def _epoch(loader: Loader, epoch: int) -> float:
    start = time.perf_counter()
    batches = sum(1 for _ in loader.epoch(epoch))
    if batches != loader.steps_per_epoch:
        raise SystemExit(f"{batches} batches of {loader.steps_per_epoch}")
    return time.perf_counter() - start
