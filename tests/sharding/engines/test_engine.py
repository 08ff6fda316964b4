"""Builds on clusters: the same bytes as on one machine, even if workers are lost; failures are reported in a line."""

import dataclasses
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.sharding import (
    AppendOptions,
    BuildOptions,
    ConfigError,
    Progress,
    SourceError,
    StorageError,
    WorkerError,
    append,
    build,
    open_dataset,
    plan_build,
)
from ringfeed.sharding.engines import dask_engine as dask_module
from ringfeed.sharding.engines.dask_engine import DaskTimings, dask_executor
from ringfeed.sharding.engines.engine import check_engine, open_engine
from ringfeed.sharding.engines.executors import ClusterExecutor, portable_error, run_tasks, stream_tasks
from ringfeed.sharding.prepare import ImageOptions, PrepareOptions, Size
from tests.helpers.builds import built, make_table
from tests.helpers.commands import Cli
from tests.helpers.files import contents
from tests.helpers.listeners import documented, noted_listeners
from tests.servers.dask import DaskCluster, dask_cluster
from tests.servers.process import free_ports
from tests.servers.ray import RayCluster, ray_cluster


@pytest.fixture(autouse=True)
def temporary_folder(spill_folder: Path) -> Iterator[Path]:
    """Where builds of this test spill; nothing of theirs may be left there, whatever the clusters leave."""
    yield spill_folder
    assert not list(spill_folder.glob("ringfeed-*"))


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask"), 2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="Ray is not installed")
    with ray_cluster(tmp_path_factory.mktemp("ray"), 2) as cluster:
        yield cluster


@pytest.fixture
def near_ray(ray: RayCluster, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    """The cluster, which is found by ``ray://auto``."""
    for name, value in ray.environment.items():
        monkeypatch.setenv(name, value)
    return ray


@pytest.fixture(params=["dask", "near_ray"], ids=["dask", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    """The address of each cluster in turn."""
    cluster: DaskCluster | RayCluster = request.getfixturevalue(request.param)
    return "ray://auto" if isinstance(cluster, RayCluster) else cluster.engine


@pytest.fixture
def doubled(tmp_path: Path) -> str:
    """4,000 records in 10 parts, 2,000 of them doubles of the others."""
    table = make_table(2000)
    (tmp_path / "source").mkdir()
    for number in range(10):
        start = number % 5 * 400
        pq.write_table(table.slice(start, 400), tmp_path / "source" / f"{number}.parquet")
    return str(tmp_path / "source")


def after(seconds: float, path: Path) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A job that makes a file after a while."""
    return subprocess.run, (["sh", "-c", f"sleep {seconds}; touch {path}"],)


# --- the same bytes --------------------------------------------------------------------------------------------


def test_a_cluster_writes_the_same_bytes_and_its_own_output_is_not_printed(
    doubled: str, engine: str, tmp_path: Path, installed: Cli
) -> None:
    built(doubled, tmp_path / "here", label="label", shards=8, prepare=PrepareOptions(dedup=()))
    args = ["build", doubled, str(tmp_path / "there"), "--label", "label", "--shards", "8", "--dedup"]
    done = installed("shard-dataset", *args, "--engine", engine, "--json")
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["event"] for line in done.stderr.splitlines()} == {"progress"}
    assert json.loads(done.stdout)["records"] == 2000
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_relative_paths_are_resolved_in_the_command_s_folder(
    doubled: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    more = Path("more.parquet")
    pq.write_table(make_table(300), more)
    for folder, where in (("here", "local"), ("there", engine)):
        built(doubled, Path(folder), label="label", shards=3, engine=where)
        append(AppendOptions(source=str(more), destination=folder, engine=where))
        build(BuildOptions(source=folder, destination=f"{folder}-again", label="label", shards=2, engine=where))
    for ending in ("", "-again"):
        there, here = contents(Path(f"there{ending}")), contents(Path(f"here{ending}"))
        assert [data for name, data in there.items() if "train" in name] == [
            data for name, data in here.items() if "train" in name
        ]


def test_a_killed_dask_worker_does_not_change_the_result(doubled: str, tmp_path: Path) -> None:
    built(doubled, tmp_path / "here", label="label", shards=16)
    victims: list[subprocess.Popen[bytes]] = []
    with dask_cluster(tmp_path, 3) as cluster:

        def kill(progress: Progress) -> None:
            stages = ["partition", "write"]
            if progress.stage in stages[len(victims) :][:1] and progress.done >= 1:
                victim = cluster.workers[len(victims)]
                os.kill(victim.pid, signal.SIGSTOP)  # with what it was sent; the others go on
                time.sleep(0.3)
                assert progress.done < progress.total
                victim.kill()
                victims.append(victim)

        options = BuildOptions(source=doubled, destination=str(tmp_path / "there"), label="label", shards=16)
        build(dataclasses.replace(options, engine=cluster.engine), report=kill)
        assert [victim.wait(280) for victim in victims] == [-signal.SIGKILL] * 2
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_killed_ray_worker_does_not_change_the_result(near_ray: RayCluster, doubled: str, tmp_path: Path) -> None:
    built(doubled, tmp_path / "here", label="label", shards=16)
    wait = f"while ! [ -e {tmp_path}/killed ]; do sleep 0.1; done"
    jobs = [(subprocess.run, (["sh", "-c", wait],)) for _ in range(3)]
    with open_engine("ray://auto", 1) as executor, stream_tasks(executor, jobs, 3) as results:
        options = BuildOptions(source=doubled, destination=str(tmp_path / "there"), label="label", shards=16)
        slow = executor.submit(jobs[0][0], *jobs[0][1])
        victim = wait_for(lambda: next(iter(near_ray.busy_workers()), None))
        victim.kill()
        (tmp_path / "killed").touch()
        build(options, executor=executor)
        assert slow.result(280).returncode == 0
        assert sorted(number for number, _ in results) == [0, 1, 2]
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def wait_for(look: Callable[[], Any], seconds: float = 280) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_a_ray_client_server_address_works(ray: RayCluster, doubled: str, tmp_path: Path) -> None:
    built(doubled, tmp_path / "here", label="label", shards=8)
    options = BuildOptions(source=doubled, destination=str(tmp_path / "there"), label="label", shards=8)
    for attempt in range(3):
        try:
            with noted_listeners(os.getpid()) as found:
                build(dataclasses.replace(options, engine=ray.engine))
            break
        except StorageError as error:  # on a busy machine the server that Ray starts for a client now and then dies
            if attempt == 2 or "refuses" not in str(error):
                raise
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert documented()["--engine ray://HOST:PORT"].startswith("nothing")
    assert not found


def test_a_program_s_own_connection_to_ray_is_used_and_kept(near_ray: RayCluster, doubled: str, tmp_path: Path) -> None:
    import ray as client

    built(doubled, tmp_path / "here", label="label", shards=8)
    options = BuildOptions(source=doubled, destination=str(tmp_path / "there"), label="label", shards=8)
    try:
        with noted_listeners(os.getpid()) as found:
            client.init(address="auto", log_to_driver=False)
            own = client.put([1, 2, 3])
            build(dataclasses.replace(options, engine="ray://auto"))
        assert documented()["--engine ray://auto"].startswith("a port of Ray's")
        assert any(listener.is_beyond_loopback for listener in found)
        with pytest.raises(ConfigError, match="connected to a Ray cluster already; use it with ray://auto"):
            build(dataclasses.replace(options, overwrite=True, engine=near_ray.engine))
        assert client.get(own) == [1, 2, 3]
    finally:
        client.shutdown()
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_source_destination_and_spill_on_a_store(
    doubled: str, tmp_path: Path, s3_env: dict[str, str], s3_bucket: str
) -> None:
    from ringfeed.sharding.storage.storage import Storage

    how: dict[str, Any] = {"label": "label", "shards": 8, "prepare": PrepareOptions(dedup=())}
    built(doubled, tmp_path / "here", **how)
    root = f"s3://{s3_bucket}/engines"
    elsewhere = "import ringfeed.sharding.engines.cluster as r; r.boot_id = lambda: 'another machine'"
    with dask_cluster(tmp_path, 2, s3_env, elsewhere) as cluster:
        built(doubled, f"{root}/out", engine=cluster.engine, spill=f"{root}/spill", **how)
    store = Storage(f"{root}/out")
    assert {name: store.read(name) for name in store.list()} == contents(tmp_path / "here")
    assert Storage(f"{root}/spill").list() == []


@pytest.fixture
def grouped(tmp_path: Path) -> str:
    """600 records of 60 users, 300 of them doubles of the others, three without a label."""
    table = make_table(300)
    labels = table.column("label").to_pylist()
    labels[10] = labels[120] = labels[250] = None
    users = [f"user {number % 60}" for number in range(300)]
    table = table.set_column(table.schema.get_field_index("label"), "label", [labels]).append_column("user", [users])
    pq.write_table(pa.concat_tables([table, table]), tmp_path / "grouped.parquet", row_group_size=100)
    return str(tmp_path / "grouped.parquet")


@pytest.fixture
def photos(tmp_path: Path) -> str:
    """60 images of two classes, one of them cut short and two of them doubles."""
    for number in range(60):
        path = tmp_path / "photos" / f"c{number % 2}" / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = io.BytesIO()
        Image.fromarray(np.full((8, 6, 3), min(number, 57), np.uint8)).save(sink, "PNG")
        path.write_bytes(sink.getvalue()[: 40 if number == 7 else None])
    return str(tmp_path / "photos")


def test_every_kind_of_build_writes_the_same_bytes_on_a_cluster(
    grouped: str, photos: str, engine: str, tmp_path: Path
) -> None:
    splits = {"train": Fraction(3, 4), "test": Fraction(1, 4)}
    ways: list[dict[str, Any]] = [
        {"source": grouped, "label": "label", "splits": splits, "group_by": "user", "balance": "bytes"},
        {"source": photos, "prepare": PrepareOptions(dedup=("image",), images=ImageOptions(size=Size(width=3)))},
    ]
    ways[0] |= {"on_bad_record": "skip:6", "prepare": PrepareOptions(dedup=("id",)), "dali_index": True}
    ways[1] |= {"on_bad_record": "skip:5%", "splits": splits}
    for number, way in enumerate(ways):
        built(destination=tmp_path / f"here-{number}", shards=6, **way)
    handler = signal.getsignal(signal.SIGTERM)
    with open_engine(engine, 1, local_spill=True) as executor:
        assert signal.getsignal(signal.SIGTERM) == handler
        for number, way in enumerate(ways):
            options = BuildOptions(destination=str(tmp_path / f"there-{number}"), shards=6, engine=engine, **way)
            assert plan_build(options, executor=executor).assignment.shards > 6
            build(options, executor=executor)
    for number in range(len(ways)):
        assert contents(tmp_path / f"there-{number}") == contents(tmp_path / f"here-{number}")
    assert open_dataset(str(tmp_path / "there-0")).manifest.records == 297
    assert open_dataset(str(tmp_path / "there-1")).manifest.records == 57
    split = open_dataset(str(tmp_path / "there-1")).manifest.split("train")
    assert split.statistics["image"].image is not None


def test_memory_on_a_cluster_is_per_task(dask: DaskCluster, parquet: str, nothing_left: Path) -> None:
    options = BuildOptions(source=parquet, destination=str(nothing_left), engine=dask.engine, memory_bytes=100 << 20)
    with pytest.raises(ConfigError) as refused:
        build(options)
    assert str(refused.value) == (
        "assembling a shard needs about 110 MiB of memory, and --memory allows each task of a cluster 100 MiB; "
        "allow more, or ask for smaller shards"
    )


# --- builds that end early ---------------------------------------------------------------------------------------


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs Python after some imports."""
    imports = f"""
import os, signal, subprocess, sys
from ringfeed.sharding import BuildOptions, build
from ringfeed.sharding.engines.engine import open_engine
from ringfeed.sharding.engines.executors import stream_tasks
{text}"""
    command = [sys.executable, "-c", imports, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it said; one that hangs is killed, or it would keep the cluster's processors from the tests that follow."""
    try:
        return process.communicate(timeout=280)
    finally:
        process.kill()


def test_a_build_whose_own_process_was_killed_is_resumed(doubled: str, engine: str, tmp_path: Path) -> None:
    options = BuildOptions(source=doubled, destination=str(tmp_path / "there"), label="label", shards=16, engine=engine)
    killed = script(
        """
def kill(progress):
    if progress.stage == "write" and progress.done >= 3:
        os.kill(os.getpid(), signal.SIGKILL)

source, destination, engine = sys.argv[1:]
build(BuildOptions(source=source, destination=destination, label="label", shards=16, engine=engine), report=kill)
""",
        *(options.source, options.destination, engine),
    )
    assert (outcome(killed)[1], killed.returncode) == ("", -signal.SIGKILL)
    seen: list[Progress] = []
    build(options, report=seen.append)
    assert max(progress.resumed for progress in seen if progress.stage == "write") >= 3
    assert max(progress.resumed for progress in seen if progress.stage == "partition") == 10
    built(doubled, tmp_path / "here", label="label", shards=16)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_the_next_build_waits_for_the_tasks_of_a_killed_one(dask: DaskCluster, tmp_path: Path) -> None:
    (tmp_path / "_building.json").touch()
    killed = script(
        """
engine, folder = sys.argv[1:]
with open_engine(engine, 1, leased_destination=folder) as executor:
    executor.submit(subprocess.run, ["sh", "-c", f"touch {folder}/begun; sleep 3; touch {folder}/ended"]).result()
""",
        *(dask.engine, tmp_path),
    )
    wait_for((tmp_path / "begun").exists)
    killed.kill()
    killed.communicate()
    with open_engine(dask.engine, 1, leased_destination=f"{tmp_path}/"):
        assert (tmp_path / "ended").exists()


def test_an_interrupt_cancels_pending_tasks_and_waits_for_running_ones(engine: str, tmp_path: Path) -> None:
    waiting = script(
        """
engine, folder = sys.argv[1:]
jobs = [(subprocess.run, (["sh", "-c", f"sleep 1; touch {folder}/{i}.done"],)) for i in range(400)]
with open_engine(engine, 1) as executor:
    try:
        with stream_tasks(executor, jobs, 300 if engine.startswith("dask") else executor.max_pending) as ended:
            list(ended)
    except KeyboardInterrupt:
        print("interrupted", sorted(os.listdir(folder)), flush=True)
""",
        *(engine, tmp_path),
    )
    wait_for(lambda: list(tmp_path.glob("*.done")))
    waiting.send_signal(signal.SIGINT)
    said, errors = outcome(waiting)
    assert (said, errors) == (f"interrupted {sorted(os.listdir(tmp_path))}\n", "")
    assert len(list(tmp_path.glob("*.done"))) < 200
    time.sleep(1.5)
    assert said == f"interrupted {sorted(os.listdir(tmp_path))}\n"


def test_ray_ends_tasks_that_outlast_an_interrupt(near_ray: RayCluster, tmp_path: Path) -> None:
    waiting = script(
        """
import time
from ringfeed.sharding.engines.ray_engine import ray_executor

def go_on(path):
    for count in range(6000):
        open(path, "w").write(str(count))
        time.sleep(0.1)

with ray_executor("auto", local_spill=False, leased_destination=None, end_seconds=0.5) as executor:
    try:
        with stream_tasks(executor, [(go_on, (sys.argv[1],))], executor.max_pending) as ended:
            list(ended)
    except KeyboardInterrupt:
        for _ in range(200):  # it goes on for ten minutes, if it is let
            reached = open(sys.argv[1]).read()
            time.sleep(1)
            if open(sys.argv[1]).read() == reached:
                print("ended")
                break
""",
        tmp_path / "count",
    )
    wait_for((tmp_path / "count").exists)
    waiting.send_signal(signal.SIGINT)
    assert outcome(waiting) == ("ended\n", "")
    wait_for(lambda: not near_ray.busy_workers())


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.fixture
def holed(tmp_path: Path) -> str:
    """A source that lacks a label in the midst of its second part."""
    table = make_table(200)
    labels = table.column("label").to_pylist()
    labels[150] = None
    table = table.set_column(table.schema.get_field_index("label"), "label", [labels])
    pq.write_table(table, tmp_path / "holed.parquet", row_group_size=100)
    return str(tmp_path / "holed.parquet")


def test_a_task_s_error_keeps_its_type(engine: str, holed: str, nothing_left: Path) -> None:
    options = BuildOptions(source=holed, destination=str(nothing_left), label="label")
    errors = []
    for where in ("local", engine):
        with pytest.raises(SourceError) as raised:
            build(dataclasses.replace(options, engine=where))
        errors.append(str(raised.value))
    assert errors[0] == errors[1]
    assert "in count_classes" in str(raised.value.__cause__)


def test_the_command_prints_one_line_for_an_error(
    dask: DaskCluster, holed: str, tmp_path: Path, installed: Cli
) -> None:
    done = installed("shard-dataset", "build", holed, str(tmp_path / "o"), "--label", "label", "--engine", dask.engine)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("count labels: ")]
    assert len(lines) == 1
    assert re.fullmatch(r"shard-dataset: error: .*holed\.parquet: record 150 .*", lines[0])


def test_an_error_leaves_no_task_running(engine: str, tmp_path: Path) -> None:
    with open_engine(engine, 1) as executor:
        assert isinstance(executor, ClusterExecutor)
        jobs = [after(1, tmp_path / f"{i}.done") for i in range(2)]
        jobs += [(int, ("no number",)), *(after(1, tmp_path / f"{i}.late") for i in range(200))]
        max_pending = 300 if engine.startswith("dask") else executor.max_pending
        with pytest.raises(ValueError, match="no number"), stream_tasks(executor, jobs, max_pending) as ended:
            for _ in ended:
                pass
        at_the_error = set(tmp_path.iterdir())
        time.sleep(1.5)
        assert set(tmp_path.iterdir()) == at_the_error
    assert not (tmp_path / "199.late").exists()


class Odd(Exception):
    """As many libraries' errors: `pickle` does not learn what it is made of."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")
        self.lock = threading.Lock()


def test_an_error_that_cannot_be_pickled_keeps_its_text() -> None:
    told = portable_error(Odd(1, 2))
    assert (type(told), str(told)) == (RuntimeError, "Odd: 1 and 2")
    kept = SourceError("x")
    assert portable_error(kept) is kept


def test_a_missing_scheduler_is_reported_soon(tmp_path: Path, installed: Cli, nothing_left: Path, parquet: str) -> None:
    (port,) = free_ports(1)
    started = time.monotonic()
    with pytest.raises(StorageError) as raised, open_engine(f"dask://127.0.0.1:{port}", 1):
        pass
    assert time.monotonic() - started < 40
    assert isinstance(raised.value.__cause__, ConnectionRefusedError)  # Dask's own, after many attempts, is another
    done = installed("shard-dataset", "build", parquet, str(nothing_left), "--engine", f"dask://127.0.0.1:{port}")
    line = f"shard-dataset: error: no Dask scheduler answers at 127.0.0.1:{port}; check the address, and that it runs\n"
    assert (done.returncode, done.stderr) == (1, line)


def dask_with(engine: str, **seconds: float) -> AbstractContextManager[ClusterExecutor]:
    """The engine of a Dask cluster, with other timings."""
    address = engine.removeprefix("dask://")
    return dask_executor(address, local_spill=False, leased_destination=None, timings=DaskTimings(**seconds))


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"\0" * 64])
def test_another_server_is_not_taken_for_a_scheduler(greeting: bytes) -> None:
    def serve() -> None:
        with suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                connections[-1].sendall(greeting)

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(StorageError, match="no Dask scheduler answers"), dask_with(address, greet_seconds=1):
            pass
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    for connection in connections:
        connection.close()


def test_a_missing_ray_cluster_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    (port,) = free_ports(1)
    monkeypatch.setenv("RAY_CLIENT_MAX_RETRIES", "1")
    started = time.monotonic()
    with (
        pytest.raises(StorageError, match=f"no Ray cluster answers at 127.0.0.1:{port}"),
        open_engine(f"ray://127.0.0.1:{port}", 1),
    ):
        pass
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(("url", "module"), [("dask://h:1", "distributed"), ("ray://h:1", "ray")])
def test_a_client_that_is_not_installed_is_named(url: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    name = url[: url.index(":")]
    with pytest.raises(ConfigError, match=rf"pip install 'ringfeed\[{name}\]'"), open_engine(url, 1):
        pass


@pytest.mark.parametrize(
    "url", ["dask", "dask://", "dask://host", "dask://host:x", "ray://host", "ray://h:1/x", "spark://h:1", "dask://:1"]
)
def test_an_invalid_engine_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="the engine must be"):
        check_engine(url)


@pytest.mark.parametrize(
    ("prelude", "said"),
    [
        (
            "import importlib.metadata as m; v = m.version; m.version = lambda n: v(n.replace('ringfeed', 'nothing'))",
            "Dask worker tcp://.* cannot load the tasks; .*pip install ringfeed",
        ),
        (
            "import sys; sys.modules['ringfeed.sharding.engines.cluster'] = sys",
            "Dask worker tcp://.* cannot load the tasks; .*pip install ringfeed",
        ),
        (
            "import importlib.metadata as m; v = m.version; m.version = lambda n: '0.9' if n == 'ringfeed' else v(n)\n"
            "import sys; sys.modules['ringfeed.sharding.engines.cluster'] = sys",
            r"Dask worker tcp://.* has ringfeed 0\.9, this machine .*install the same version",
        ),
        (
            "import importlib.metadata as m; v = m.version; m.version = lambda n: '1.0' if n == 'pyarrow' else v(n)",
            r"has pyarrow 1\.0, this machine .*install the same version",
        ),
        (
            "import ringfeed.sharding.engines.cluster as r; r.boot_id = lambda: 'elsewhere'",
            "workers on another machine .*--spill",
        ),
        (
            "import os.path as p; e = p.exists; p.exists = lambda n: not str(n).endswith('_building.json') and e(n)",
            "do not see .*/new/dataset as this machine does; name a destination",
        ),
    ],
)
def test_workers_that_do_not_meet_the_requirements_are_refused(
    prelude: str, said: str, tmp_path: Path, parquet: str, nothing_left: Path
) -> None:
    with dask_cluster(tmp_path, 1, prelude=prelude) as cluster, pytest.raises(ConfigError, match=said):
        build(BuildOptions(source=parquet, destination=str(nothing_left), engine=cluster.engine))


def test_a_package_missing_on_a_worker_is_reported_as_such(tmp_path: Path, nothing_left: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["a"] = np.arange(10)
    options = BuildOptions(source=str(tmp_path / "x.h5"), destination=str(nothing_left))
    said = r"^on a worker \(.+\): HDF5 files need h5py; install it with"
    lacks = "import sys; sys.modules['h5py'] = None"
    with dask_cluster(tmp_path, 1, prelude=lacks) as cluster, pytest.raises(SourceError, match=said):
        build(dataclasses.replace(options, engine=cluster.engine))


def test_a_cluster_without_workers_is_given_up(tmp_path: Path) -> None:
    with (
        dask_cluster(tmp_path, 0) as cluster,
        pytest.raises(StorageError, match="has no workers; start some"),
        dask_with(cluster.engine, workers_seconds=0.5),
    ):
        pass


def test_a_task_that_ends_its_workers_is_given_up(tmp_path: Path) -> None:
    with (
        dask_cluster(tmp_path, 1, {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}) as cluster,
        pytest.raises(WorkerError, match="ended several Dask workers"),
        open_engine(cluster.engine, 1) as executor,
    ):
        executor.submit(os._exit, 1).result(280)


def test_a_cluster_whose_workers_all_end_is_given_up(tmp_path: Path) -> None:
    with (
        dask_cluster(tmp_path, 1) as cluster,
        dask_with(cluster.engine, workers_seconds=0.5) as executor,
        pytest.raises(WorkerError, match="has no workers any more"),
    ):
        run_tasks(executor, [(os._exit, (1,))])


def test_a_result_that_never_arrives_is_given_up(dask: DaskCluster) -> None:
    with open_engine(dask.engine, 1) as executor:
        assert isinstance(executor, dask_module._DaskExecutor)
        hasty = DaskTimings(result_seconds=1e-9)
        another = dask_module._DaskExecutor(executor._client, executor._address, hasty, executor._requirements)
        with pytest.raises(WorkerError, match="went away, or gave up the task or its result"):
            another.submit(bytes, 8 << 20).result(280)


def test_a_lost_scheduler_is_reported_by_every_request(tmp_path: Path) -> None:
    """Dask closes its client then, which refuses all that it is asked for from there on."""
    with dask_cluster(tmp_path, 1) as cluster, dask_with(cluster.engine, lost_seconds=4) as executor:
        assert isinstance(executor, dask_module._DaskExecutor)
        running = executor.submit(time.sleep, 60)
        cluster.scheduler.kill()
        wait_for(lambda: executor._client.status == "closed")
        executor.cancel([running])
        assert executor.max_pending() >= 1
        with pytest.raises(WorkerError, match=r"the Dask scheduler at .* went away"):
            executor.submit(int)


def test_a_closing_client_is_distinguished_from_a_failing_one(
    dask: DaskCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("ConnectionPool is closed")  # what Dask 2026.8 says while its client closes itself

    with open_engine(dask.engine, 1) as executor:
        assert isinstance(executor, dask_module._DaskExecutor)
        monkeypatch.setattr(executor._client, "nthreads", refuse)
        with pytest.raises(RuntimeError, match="ConnectionPool"):
            executor._count()
        with monkeypatch.context() as patch:
            patch.setattr(executor._client, "status", "closing")
            assert executor._count() is None


def test_a_dead_scheduler_is_reported_and_the_build_can_be_resumed(doubled: str, tmp_path: Path) -> None:
    options = BuildOptions(source=doubled, destination=str(tmp_path / "there"), label="label", shards=16)
    with dask_cluster(tmp_path, 2) as cluster:

        def kill(progress: Progress) -> None:
            if progress.stage == "write" and progress.done >= 1:
                cluster.scheduler.kill()

        started = time.monotonic()
        with pytest.raises(WorkerError, match=r"the Dask scheduler .* went away.*start the same command again"):
            build(dataclasses.replace(options, engine=cluster.engine), report=kill)
        assert time.monotonic() - started < 120
    seen: list[Progress] = []
    build(options, report=seen.append)
    assert max(progress.resumed for progress in seen if progress.stage == "write") >= 1
    built(doubled, tmp_path / "here", label="label", shards=16)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_a_dead_ray_cluster_is_reported_and_the_build_can_be_resumed(
    ray: RayCluster, doubled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ends the cluster of this module, and so is its last test."""
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "1")  # not 30 s
    options = BuildOptions(source=doubled, destination=str(tmp_path / "there"), label="label", shards=16)

    def kill(progress: Progress) -> None:
        if progress.stage == "write" and progress.done >= 1:
            ray.kill()

    with pytest.raises(WorkerError, match=r"the Ray cluster at 127\.0\.0\.1:\d+ was lost"):
        build(dataclasses.replace(options, engine=ray.engine), report=kill)
    assert capfd.readouterr().err == ""
    seen: list[Progress] = []
    build(options, report=seen.append)
    assert max(progress.resumed for progress in seen if progress.stage == "write") >= 1
    built(doubled, tmp_path / "here", label="label", shards=16)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
