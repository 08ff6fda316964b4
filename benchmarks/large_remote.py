"""Large records from S3 (SeaweedFS on this machine) over emulated links: a cold epoch into memory, against a plain
download of the same shards into memory by obstore, eight at a time.

Server, link and loader share the cores, so a link of 10 Gbit/s is only reached where they leave it room.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import s3fs
from obstore.store import S3Store
from parts.large_formats import RECORD_BYTES, large_records
from parts.link import GIGABIT, link

from ringfeed.pipeline import Loader
from ringfeed.sharding import build

RECORDS, BATCH, SHARDS, THREADS = 4_000, 100, 32, 8
_LINKS = {"1 Gbit/s": GIGABIT, "10 Gbit/s": 10 * GIGABIT}


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of the download's seconds to the epoch's, in turn, after one round that is not counted."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.servers.seaweedfs import seaweedfs

    local = folder / "large-remote"
    build(source=large_records(RECORDS), destination=str(local), label="label", shards=SHARDS, overwrite=True)
    results = []
    with seaweedfs(folder / "s3") as server:
        os.environ.update(server.env)
        server.make_bucket("bench")
        s3fs.S3FileSystem().put(f"{local}/", "bench/large/", recursive=True)
        keys = {"access_key_id": server.access_key, "secret_access_key": server.secret_key, "region": "us-east-1"}
        names = sorted(path.name for path in local.glob("*.tfrecord"))
        for label, rate in _LINKS.items():
            with link(server.endpoint_url, rate) as far:
                os.environ["AWS_ENDPOINT_URL_S3"] = far
                s3fs.S3FileSystem.clear_instance_cache()
                store = S3Store("bench", config={"endpoint": far, **keys}, client_options={"allow_http": True})
                loader = Loader("s3://bench/large", batch_size=BATCH, seed=0)
                ratios = []
                for epoch in range(rounds + 1):
                    plain = _seconds(lambda store=store: _download(store, names))
                    own = _seconds(lambda loader=loader, epoch=epoch: sum(1 for _ in loader.epoch(epoch)))
                    rates = [RECORDS * RECORD_BYTES / 1e6 / seconds for seconds in (plain, own)]
                    print(f"  {label}: MB/s: plain {rates[0]:,.0f}, epoch {rates[1]:,.0f}", flush=True)
                    ratios += [plain / own] * bool(epoch)
            results.append((f"cold epoch of large records over {label}, against a plain download", ratios, 0.9))
    return results


def _download(store: S3Store, names: list[str]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(lambda name: len(obstore.get(store, f"large/{name}").bytes()), names):
            pass


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
