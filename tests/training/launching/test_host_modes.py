"""Each way to work on several hosts, and what should not be there: files that some hosts lack, garbage on the ports."""

from __future__ import annotations

import filecmp
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.host_runs import CLI, SHARD_DATASET, HostRun, background, run_on, store_on, training_lab
from tests.helpers.lean import lean_environment
from tests.servers import dask, ray
from tests.servers.lab import Host, Lab, lab, missing

pytest.importorskip("horovod", reason="Horovod is built by: make setup")
pytestmark = [pytest.mark.campaign, pytest.mark.skipif(bool(missing()), reason=missing() or "")]

READ = """
import sys
from ringfeed.pipeline import Loader
loader = Loader("s3://bucket/large", batch_size=24, rank=int(sys.argv[1]), world_size=int(sys.argv[2]))
print(sum(len(batch["id"]) for batch in loader.numpy_epoch(0)))
"""
SCAN = """
import sys
from tests.training import test_listeners
import socket
real = socket.create_connection
test_listeners.socket.create_connection = lambda place, seconds: real((sys.argv[1], place[1]), seconds)
for port in map(int, sys.argv[2:]):
    test_listeners.scan(port)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with training_lab(tmp_path_factory.mktemp("lab"), 3) as running:
        yield running


def test_a_dataset_that_only_some_hosts_see_is_one_line_that_names_the_host(hosts: Lab) -> None:
    first = hosts.hosts[0]
    run_on(first, "cp", "-r", "/mnt/data", "/tmp/data")
    words = [*CLI, "launch", "-H", "h1:1,h2:1", "train", "--config", "run.yaml", "--set", "data.url=/tmp/data"]
    process = first.start(words, lean_environment())
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.fullmatch(r"ringfeed launch: error: rank 1 on h2: .*/tmp/data.*", stderr.splitlines()[-1])


def test_a_folder_of_checkpoints_that_only_one_host_has_is_a_warning_and_begins_nothing_anew(hosts: Lab) -> None:
    run = HostRun(hosts, "/tmp/own", "-H", "h1:1,h2:1")
    status, stderr = run.end()
    assert status == 0, stderr
    assert "only h1 sees /tmp/own, not h2: a run that starts elsewhere finds no checkpoint" in stderr
    status, stderr = HostRun(hosts, "/tmp/own", "-H", "h2:1,h1:1").end()
    assert status == 1
    assert re.fullmatch(
        r"ringfeed launch: error: (rank \d on h\d: )?/tmp/own is another folder on h1, with a checkpoint of step 60, "
        r"than on h2, where rank 0 would start at step 0: .*",
        stderr.splitlines()[-1],
    )


def test_garbage_on_every_port_of_a_run_is_no_line_and_ends_nothing(hosts: Lab) -> None:
    scanned = HostRun(hosts, "scanned", "-H", "h1:1,h2:1", "--elastic", pause_seconds=0.3)
    scanned.wait_for_step(3)
    for host in hosts.hosts[:2]:
        places = [line.split()[3] for line in run_on(host, "ss", "-Hltn").splitlines()]
        ports = [place.rpartition(":")[2] for place in places if not place.endswith(":22")]
        assert {place.rpartition(":")[0] for place in places if not place.endswith(":22")} <= {host.address}
        run_on(hosts.hosts[2], sys.executable, "-c", SCAN, host.address, *ports)
    status, stderr = scanned.end()
    assert (status, [line for line in stderr.splitlines() if not line.startswith("epoch")]) == (0, [])


def test_parameter_servers_chief_and_workers_train_on_hosts_of_their_own(hosts: Lab) -> None:
    first, second, third = hosts.hosts
    tasks = {"chief": ["h1:2222"], "ps": ["h2:2222"], "worker": ["h2:2223", "h3:2222"]}
    keys = ("backend=parameter_server", "model.name=tabular", "checkpoint.url=servers", "epochs=2")
    words = [*CLI, "train", "--config", "run.yaml", "--json", *[word for key in keys for word in ("--set", key)]]
    places = [("ps", 0, second), ("worker", 0, second), ("worker", 1, third), ("chief", 0, first)]
    started = []
    for kind, index, host in places:
        config = {"cluster": tasks, "task": {"type": kind, "index": index}}
        started.append(host.start(words, lean_environment({"TF_CONFIG": json.dumps(config)})))
    output, errors = started[-1].communicate(timeout=240)
    assert started[-1].returncode == 0, errors
    for process in started[:-1]:
        process.communicate(timeout=60)
    assert [process.returncode for process in started] == [0] * 4
    assert json.loads(output)["total_steps"] == 40


def test_predictions_of_ranks_on_two_hosts_are_those_of_one_process(hosts: Lab) -> None:
    first = hosts.hosts[0]
    keys = ("model.name=tabular", "checkpoint.url=null", "checkpoint.every_steps=null", "output.model=model.keras")
    run_on(first, *CLI, "train", "--config", "run.yaml", *[word for key in keys for word in ("--set", key)])
    words = ["predict", "model.keras", "data", "--split", "train", "--out"]
    run_on(first, *CLI, *words, "alone")
    run_on(first, *CLI, "launch", "-H", "h2:1,h3:1", *words, "together")
    alone, together = (_rows(hosts.shared / name) for name in ("alone", "together"))
    assert alone.num_rows == 240
    assert together.equals(alone)


def _rows(folder: Path) -> pa.Table:
    return pa.concat_tables(map(pq.read_table, sorted(folder.glob("*.parquet")))).sort_by("record")


def _assert_built_as_alone(hosts: Lab, name: str) -> None:
    if not (hosts.shared / "built").exists():
        run_on(hosts.hosts[0], SHARD_DATASET, "build", "source.parquet", "built", "--label", "label")
    folders = [hosts.shared / folder for folder in ("built", name)]
    files = [sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()) for folder in folders]
    assert files[0] == files[1]
    assert filecmp.cmpfiles(*folders, files[0], shallow=False)[0] == files[0]


def _build(host: Host, destination: str, engine: str) -> subprocess.CompletedProcess[str]:
    words = [SHARD_DATASET, "build", "source.parquet", destination, "--label", "label", "--spill", "/mnt/spill"]
    process = host.start([*words, "--engine", engine], lean_environment())
    output, errors = process.communicate(timeout=240)
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def test_a_build_on_dask_workers_of_other_hosts_is_that_of_one_machine(hosts: Lab) -> None:
    first, *others = hosts.hosts
    with ExitStack() as running:
        flags = [f"--host={first.address}", "--port=8786", "--no-dashboard", "--no-show"]
        running.enter_context(background(first, [*dask.command("scheduler"), *flags], **dask.SETTINGS))
        for host in others:
            flags = ["--nthreads=1", "--no-nanny", "--no-dashboard", f"--host={host.address}", "--local-directory=/tmp"]
            words = [*dask.command("worker"), f"tcp://{first.address}:8786", *flags]
            running.enter_context(background(host, words, **dask.SETTINGS))
        done = _build(first, "dasked", f"dask://{first.address}:8786")
        refused = _build(first, "/tmp/dasked", f"dask://{first.address}:8786")
    assert done.returncode == 0, done.stderr
    _assert_built_as_alone(hosts, "dasked")
    assert refused.returncode == 1
    assert re.fullmatch(r"shard-dataset: error: .*\bh[23]\b.*/tmp/dasked.*\n", refused.stderr), refused.stderr


def test_a_build_on_ray_nodes_of_other_hosts_is_that_of_one_machine(hosts: Lab) -> None:
    first, *others = hosts.hosts
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--object-store-memory={80 << 20}"]
    start += ["--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"]
    head = ["--head", "--port=6379", "--ray-client-server-port=10001", "--include-dashboard=false", "--num-cpus=0"]
    with ExitStack() as running:
        words = [*start, *head, f"--node-ip-address={first.address}"]
        running.enter_context(background(first, words, **ray.SETTINGS))
        for host in others:
            words = [*start, f"--address={first.address}:6379", f"--node-ip-address={host.address}", "--num-cpus=1"]
            running.enter_context(background(host, words, **ray.SETTINGS))
        while ":10001" not in run_on(first, "ss", "-Hltn"):
            time.sleep(0.5)
        done = _build(first, "rayed", f"ray://{first.address}:10001")
    assert done.returncode == 0, done.stderr
    _assert_built_as_alone(hosts, "rayed")


def test_each_host_reads_its_part_of_a_dataset_on_s3_over_its_link(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pa.table({"id": range(2_000), "data": [random.bytes(8_000) for _ in range(2_000)]})
    words = [SHARD_DATASET, "build", "large.parquet", "s3://bucket/large", "--shard-size", "1MiB"]
    with lab(tmp_path, 5) as running, store_on(running.hosts[4]) as environ:
        pq.write_table(table, running.shared / "large.parquet")
        run_on(running.hosts[4], *words, **environ)
        for count in (1, 2, 3, 4):
            received = []
            for rank, host in enumerate(running.hosts[:count]):
                before = host.received_bytes()
                run_on(host, sys.executable, "-c", READ, str(rank), str(count), **environ)
                received.append(host.received_bytes() - before)
            print(f"{count} hosts received {received} bytes of 16,000,000")
            assert all(each < 1.1 * 16_000_000 / count + 500_000 for each in received)
            assert sum(received) > 16_000_000
