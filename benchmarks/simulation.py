"""Predicted against measured: what `simulate` says of configurations that run here, and what they then take.

The costs of each store are measured alone, then all is predicted, and then measured on 1 to 4 ranks with a real ring,
over local disk, a web server with latency or a narrow link, and S3 (SeaweedFS) behind a link.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from parts.link import link
from parts.simulation_ranks import GRADIENT_BYTES, make_step

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.measure.loader_costs import measure_costs
from ringfeed.tools.measure.training_trials import Workload
from ringfeed.tools.simulation import Costs, DatasetShape, RingCosts, Setup, StepCosts, fit_ring, simulate

RECORDS, WIDTH, SHARDS, BATCH = 24_000, 512, 32, 256  # 48 MiB
LOCAL_TIMES = 3  # as many records on the local disk, where an epoch would otherwise end too soon
SLOW_LINK = 20_000_000  # bytes a second
LATENCY = 0.05
_SERVER = """
import sys, time
from pathlib import Path
from tests.servers.web import Behaviour, served
rate = float(sys.argv[3])
behaviour = Behaviour(latency_seconds=float(sys.argv[2]), bytes_per_second=rate or None)
with served(Path(sys.argv[1]), behaviour=behaviour) as url:
    print(url, flush=True)
    time.sleep(1e6)
"""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What is predicted and measured: a store, ranks, options of the loader, a step, and the state of the cache."""

    name: str
    store: str
    ranks: int = 1
    loader: dict[str, Any] = field(default_factory=dict)
    step: str = ""
    cache: str = ""


CONFIGURATIONS = [
    Configuration(name="local, no step", store="local"),
    Configuration(name="local, step on the cores", store="local", step="cores"),
    Configuration(name="local, step on the cores", store="local", ranks=2, step="cores"),
    Configuration(name="local, step on the cores", store="local", ranks=4, step="cores"),
    Configuration(name="50 ms latency, no step", store="late"),
    Configuration(name="50 ms latency, 4 streams", store="late", loader={"streams": 4}, step="device:0.01"),
    Configuration(
        name="50 ms latency, window of 2 shards", store="late", loader={"window_shards": 2}, step="device:0.02"
    ),
    Configuration(name="50 ms latency, 1 fetch thread", store="late", loader={"fetch_threads": 1}, step="device:0.01"),
    Configuration(
        name="50 ms latency, nothing ahead",
        store="late",
        loader={"prefetch_bytes": 0, "streams": 4},
        step="device:0.01",
    ),
    Configuration(name="50 ms latency", store="late", ranks=2, step="device:0.01"),
    Configuration(name="20 MB/s, no step", store="narrow"),
    Configuration(name="20 MB/s, batch 1024", store="narrow", loader={"batch_size": 1024}, step="device:0.05"),
    Configuration(name="20 MB/s, 2 streams", store="narrow", loader={"streams": 2}, step="device:0.02"),
    Configuration(name="20 MB/s", store="narrow", ranks=4, step="device:0.01"),
    Configuration(name="20 MB/s, cold cache", store="narrow", ranks=2, step="device:0.01", cache="cold"),
    Configuration(name="20 MB/s, warm cache", store="narrow", ranks=2, step="device:0.01", cache="warm"),
    Configuration(name="50 ms latency, warm cache, step on the cores", store="late", step="cores", cache="warm"),
    Configuration(name="S3 over 40 MB/s, no step", store="s3"),
    Configuration(name="S3 over 40 MB/s, step on the cores", store="s3", ranks=2, step="cores"),
]


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """The ratios of predicted to measured seconds of an epoch; prints each, and the median error."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    data, large = _write(folder, 1), _write(folder, LOCAL_TIMES)
    with ExitStack() as stack:
        urls = {
            "local": str(large),
            "late": stack.enter_context(_web(data, LATENCY, 0)),
            "narrow": stack.enter_context(_web(data, 0.0, SLOW_LINK)),
            "s3": stack.enter_context(_s3(folder, data)),
        }
        costs = {name: _costs(url, folder) for name, url in urls.items()}
        on_cores = _step_costs(urls["local"])
        ring, measured = _measure(folder, urls, rounds)
    ratios = []
    print(f"  {'configuration':46} ranks  predicted  measured (from - to)       error")
    for one, seconds in zip(CONFIGURATIONS, measured, strict=True):
        predicted = _predict(one, *costs[one.store], on_cores, ring)
        middle = statistics.median(seconds)
        ratios.append(predicted / middle)
        print(
            f"  {one.name:46} {one.ranks:5}  {predicted:8.2f}s  {middle:7.2f}s "
            f"({min(seconds):.2f} - {max(seconds):.2f})"
            f"  {(predicted / middle - 1) * 100:+8.0f} %"
        )
    error = statistics.median(abs(ratio - 1) for ratio in ratios)
    print(f"  median error of {len(ratios)} predictions: {error:.1%} (goal 15 %)")
    return [("predicted / measured seconds of an epoch", ratios, 1.0)]


def _predict(one: Configuration, shape: DatasetShape, costs: Costs, on_cores: StepCosts, ring: RingCosts) -> float:
    step = None if not one.step else on_cores
    if one.step.startswith("device"):
        seconds = float(one.step.removeprefix("device:"))
        step = StepCosts(seconds=(seconds,), core_seconds=0.0, samples=one.loader.get("batch_size", BATCH) // one.ranks)
    setup = Setup(
        batch_size=one.loader.get("batch_size", BATCH),
        ranks=one.ranks,
        cache_bytes=1 << 30 if one.cache else None,
        is_warm=one.cache == "warm",
        **{name: value for name, value in one.loader.items() if name != "batch_size"},
    )
    return simulate(shape, replace(costs, step=step, ring=ring), setup).epochs[0].seconds


def _costs(url: str, folder: Path) -> tuple[DatasetShape, Costs]:
    measured = measure_costs(
        Loader(url, batch_size=BATCH), 12, cache_folder=None if url.startswith("/") else str(folder / "cache")
    )
    store = measured.costs.store
    print(
        f"  {url}: latency {statistics.median(store.latency_seconds) * 1000:.1f} ms, "
        f"{store.connection_bytes_per_second / 1e6:,.0f} MB/s a connection, {store.bytes_per_second / 1e6:,.0f} in all"
    )
    return measured.shape, measured.costs


def _step_costs(url: str) -> StepCosts:
    """Costs of the step on the cores."""
    step = make_step("cores")
    loader = Loader(url, batch_size=BATCH)
    workload = Workload(loader=loader, transform=None, step=step, transform_name="", step_name="step")
    costs = measure_costs(loader, 10, workload=workload).costs.step
    assert costs is not None
    print(f"  step: {statistics.median(costs.seconds) * 1000:.1f} ms, {costs.core_seconds * 1000:.1f} ms of the cores")
    return costs


def _measure(folder: Path, urls: dict[str, str], rounds: int) -> tuple[RingCosts, list[list[float]]]:
    """The fitted ring, and seconds of an epoch of each configuration, by round."""
    results = []
    for ranks in sorted({one.ranks for one in CONFIGURATIONS}):
        document = [
            {
                "number": number,
                "url": urls[one.store],
                "ranks": one.ranks,
                "loader": {"batch_size": BATCH} | one.loader,
                "step": one.step,
                "cache": str(folder / f"cache-{number}") if one.cache else "",
                "warm": one.cache == "warm",
                "rounds": rounds,
            }
            for number, one in enumerate(CONFIGURATIONS)
            if one.ranks == ranks
        ]
        results += _run_ranks(folder / f"configurations-{ranks}.json", document, ranks)
    seconds = {(each["ranks"], each["bytes"]): each["seconds"] for each in results if "bytes" in each}
    cores = [each["core_seconds"] for each in results if each.get("bytes") == GRADIENT_BYTES]
    ring = replace(fit_ring(seconds, GRADIENT_BYTES), core_seconds=statistics.mean(cores))
    print(f"  ring: alpha {ring.latency_seconds * 1000:.2f} ms, {ring.bytes_per_second / 1e6:,.0f} MB/s, of {seconds}")
    print(f"  {ring.core_seconds * 1000:.1f} ms of the cores in each rank")
    by_number = {each["number"]: each["seconds"] for each in results if "number" in each}
    return ring, [by_number[number] for number in range(len(CONFIGURATIONS))]


def _run_ranks(path: Path, document: list[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """What the ranks print of some configurations."""
    path.write_text(json.dumps(document))
    command = [sys.executable, str(Path(__file__).with_name("parts") / "simulation_ranks.py"), str(path)]
    if ranks > 1:
        command = ["horovodrun", "-np", str(ranks), "--gloo", *command]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    return [json.loads(line.split("RESULT", 1)[1]) for line in done.stdout.splitlines() if "RESULT" in line]


def _write(folder: Path, times: int) -> Path:
    random, records = np.random.default_rng(0), RECORDS * times
    values = pa.array(random.random(records * WIDTH, dtype=np.float32))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(values, WIDTH), "y": random.integers(0, 4, records)})
    pq.write_table(table, folder / "simulated.parquet")
    target = folder / "served" / f"data-{times}"
    build(BuildOptions(source=str(folder / "simulated.parquet"), destination=str(target), label="y", shards=SHARDS))
    return target


@contextmanager
def _web(data: Path, latency: float, rate: float) -> Iterator[str]:
    """The URL of a dataset on a web server in a process of its own."""
    command = [sys.executable, "-c", _SERVER, str(data.parent), str(latency), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as server:
        assert server.stdout
        try:
            yield f"{server.stdout.readline().strip()}/{data.name}"
        finally:
            server.kill()


@contextmanager
def _s3(folder: Path, data: Path) -> Iterator[str]:
    import s3fs

    from tests.servers.seaweedfs import seaweedfs

    with seaweedfs(folder / "s3") as server, link(server.endpoint_url, 2 * SLOW_LINK) as far:
        os.environ.update(server.env)
        server.make_bucket("bench")
        s3fs.S3FileSystem().put(f"{data}/", "bench/data/", recursive=True)
        s3fs.S3FileSystem.clear_instance_cache()
        os.environ["AWS_ENDPOINT_URL_S3"] = far
        yield "s3://bench/data"
