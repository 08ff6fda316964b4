"""What listens while real commands run: no more than docs/security.md says, and none minds a scan of its port."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.helpers.checkpoints import saved_steps
from tests.helpers.lean import lean_environment
from tests.helpers.listeners import Listener, documented, listeners
from tests.helpers.warm import WarmProcess, WarmServer
from tests.servers.dask import dask_cluster
from tests.servers.process import free_ports

GARBAGE = (
    b"", b"\n", b"GET / HTTP/1.0\r\n\r\n", b"GET /a/b/c/d HTTP/1.1\r\n\r\n", b"PUT /global/0 HTTP/1.1\r\n\r\n",
    b"PUT /a/b HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"PUT /a/b HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"DELETE / HTTP/1.1\r\n\r\n", b"BREW /a/b HTTP/9\r\n\r\n", b"{}\n", b"null\n", b'[99,1,"",""]\n',
    b'{"worker": 0}\n', b'{"task": "worker 0"}\n{"error": "x"}\n', b'\n{"worker": 0}\n{"error": "x"}\n',
    b"\xff" * 4096, b"[" * 70_000 + b"\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
)  # fmt: skip
"""What port scanners send, and messages of our own protocols without the key."""


def scan(port: int) -> None:
    """Send each kind of garbage to a port, and break some connections off at once."""
    for number, text in enumerate(GARBAGE):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 2) as line:
            line.settimeout(0.05)
            line.sendall(text)
            if number % 3 == 0:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset, not closed
            line.recv(99)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listeners")
    table = pa.table({"value": [row / 4000 for row in range(4000)], "label": ["a", "b"] * 2000})
    pq.write_table(table, folder / "x.parquet")
    done = subprocess.run([sys.executable, *BUILD, "d", "--workers", "1"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


BUILD = ("-m", "ringfeed.tools.shard_dataset", "build", "--label", "label", "x.parquet")


HOROVODRUN = [str(Path(sys.executable).with_name("horovodrun")), "--gloo", "-np", "2"]


def configured(folder: Path, name: str, changes: Mapping[str, Any]) -> str:
    tree = {
        "data": {"url": str(folder / "d"), "batch_size": 8, "eval_split": None},
        "model": {"name": "tabular", "hidden": [4]},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "checkpoint": {"url": str(folder / name), "every_steps": 5},
        "epochs": 100_000,
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree | dict(changes)))
    return f"{name}.yaml"


RUNS: dict[str, tuple[str, list[str], dict[str, Any]]] = {
    "ring": ("ringfeed launch -n", ["launch", "-n", "2"], {}),
    "elastic": ("--elastic", ["launch", "-n", "2", "--elastic"], {}),
    "metrics": ("output.prometheus_port", ["launch", "-n", "2"], {"output": {"prometheus_port": 0}}),
    "workers": ("backend: multi_worker", ["launch", "-n", "2"], {"backend": "multi_worker"}),
    "servers": ("backend: parameter_server", ["launch", "--workers", "2"], {"backend": "parameter_server"}),
}


def _wait_for_step(process: WarmProcess, saved: Path, step: int, found: set[Listener]) -> None:
    """Wait for a checkpoint; note what listens meanwhile, and scan what the launcher itself serves, from its start."""
    root = psutil.Process(process.pid)
    while max(saved_steps(saved), default=-1) < step:
        assert process.poll() is None, process.communicate()[0]
        for listener in set(listeners(root)) - found:
            found.add(listener)
            if listener.pid == process.pid:
                scan(listener.port)
        time.sleep(0.02)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("metrics", "servers") else pytest.mark.campaign) for name in RUNS]
)
def test_runs_listen_where_the_page_says_and_survive_a_scan(made: Path, name: str, warm: WarmServer) -> None:
    documented_as, words, changes = RUNS[name]
    if documented_as != "backend: multi_worker":
        pytest.importorskip("horovod", reason="Horovod is built by: make setup")
    if "output" in changes:
        changes = {"output": {"prometheus_port": free_ports(2)[0]}}
    words = ["ringfeed.tools.cli", *words, "train", "--config", configured(made, name, changes), "-q"]
    process = warm.start(words, folder=made, output=made / f"{name}.txt")
    found: set[Listener] = set()
    try:
        _wait_for_step(process, made / name, 5, found)
        for listener in listeners(psutil.Process(process.pid)):
            found.add(listener)
            scan(listener.port)
        _wait_for_step(process, made / name, max(saved_steps(made / name)) + 1, found)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    assert found
    assert process.returncode == 75, output
    assert len([line for line in output.splitlines() if "SIGTERM" not in line]) <= 1, output
    beyond = {listener for listener in found if listener.is_beyond_loopback}
    assert documented()[documented_as].startswith("nothing") == (not beyond), found


def test_commands_without_ranks_listen_nowhere(made: Path) -> None:
    for name, words in {
        "shard-dataset build": [*BUILD, "d2", "--workers", "2", "--shards", "4"],
        "ringfeed train": ["-m", "ringfeed.tools.cli", "train", "--config", "solo.yaml", "-q", "--set", "epochs=1"],
    }.items():
        (made / "solo.yaml").write_text("{data: {url: d, batch_size: 64, eval_split: null}, model: {name: tabular}}")
        process = subprocess.Popen(
            [sys.executable, *words], cwd=made, env=lean_environment(), stderr=subprocess.PIPE, text=True
        )
        root, found = psutil.Process(process.pid), set()
        while process.poll() is None:
            found |= set(listeners(root))
            time.sleep(0.01)
        _, stderr = process.communicate()
        assert process.returncode == 0, stderr
        assert documented()[name].startswith("nothing")
        assert not found


def test_a_build_on_dask_listens_nowhere_and_survives_a_scan_of_the_cluster(made: Path, tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 1) as cluster:
        command = [sys.executable, *BUILD, str(tmp_path / "d"), "--shards", "4", "--engine", cluster.engine]
        process = subprocess.Popen(command, cwd=made, env=lean_environment(), stderr=subprocess.PIPE, text=True)
        root, found = psutil.Process(process.pid), set()
        scan(int(cluster.engine.rpartition(":")[2]))  # Dask's own; the build takes part in it
        while process.poll() is None:
            found |= set(listeners(root))
            time.sleep(0.01)
        _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert documented()["shard-dataset build"].startswith("nothing")
    assert not found


def test_the_store_of_horovodrun_is_at_all_addresses_as_the_page_says(made: Path) -> None:
    pytest.importorskip("horovod", reason="Horovod is built by: make setup")
    tree = "{data: {url: d, batch_size: 64, eval_split: null}, model: {name: tabular}, max_steps: 3}"
    (made / "under_horovodrun.yaml").write_text(tree)
    command = [sys.executable, "-m", "ringfeed.tools.cli", "train", "--config", "under_horovodrun.yaml", "-q"]
    process = subprocess.Popen(
        [*HOROVODRUN, *command], cwd=made, env=lean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    root, found = psutil.Process(process.pid), set()
    while process.poll() is None:
        found |= set(listeners(root))
        time.sleep(0.02)
    assert process.returncode == 0
    beyond = {listener for listener in found if listener.is_beyond_loopback}
    assert {listener.pid for listener in beyond} == {process.pid}  # none of ours: the ranks' ports are on loopback
    assert documented()["horovodrun"].startswith("Horovod's store")
