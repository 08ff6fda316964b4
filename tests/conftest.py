"""Fixtures for all tests: the stores, the real servers behind them, the command line as a user runs it."""

import gc
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path

import fsspec
import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.collector import pytest_collection_finish as pytest_collection_finish
from tests.helpers.commands import Cli, forget_logging, run_here
from tests.helpers.forked_workers import pytest_xdist_setupnodes as pytest_xdist_setupnodes
from tests.helpers.graphs import optimize_graphs_for
from tests.helpers.lean import lean_environment
from tests.helpers.longest import LONGEST
from tests.helpers.without_kernels import without_kernels
from tests.servers.hdfs import HdfsServer, hdfs
from tests.servers.proxy import Proxy, proxied
from tests.servers.seaweedfs import REGION, S3Server, seaweedfs
from tests.servers.sharing import shared
from tests.servers.store import Store

os.environ.setdefault("TF_NUM_INTEROP_THREADS", "16")  # before any test file's first operation: see `ThreadRing`
ROOT = Path(__file__).resolve().parent.parent

settings.register_profile("ringfeed", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines are noisy
settings.load_profile("ringfeed")


def stale_set_up() -> str | None:
    """What ``make setup`` has to do again before the tests see this checkout; None if nothing."""
    for layer in ("sharding", "pipeline", "training", "tools"):
        imported = Path(import_module(f"ringfeed.{layer}").__path__[0]).resolve()
        if imported != ROOT / layer:
            return f"ringfeed.{layer} is imported from {imported}, not from this checkout"
        for library in (ROOT / layer).rglob("_*.so"):
            source = library.with_name(library.name.partition(".")[0].removeprefix("_") + ".c")
            if source.exists() and source.stat().st_mtime > library.stat().st_mtime:
                return f"{source.relative_to(ROOT)} was edited after it was compiled"
    return None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Test this checkout, and its C as it is now."""
    if not hasattr(session.config, "workerinput") and (fault := stale_set_up()):
        pytest.exit(f"{fault}; run: make setup", returncode=2)


def pytest_configure() -> None:
    """Hear Ctrl-C, and so let the commands under test hear it: shells start what runs in the background deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first; leave campaigns out, unless they are asked for with ``-m campaign``."""
    places = {ROOT / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    if "campaign" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("campaign")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _fresh_logging() -> None:
    """Undo what commands that an earlier test ran in this process have set up."""
    forget_logging()


@pytest.fixture(scope="module", autouse=True)
def _graphs(request: pytest.FixtureRequest) -> None:
    """Optimize graphs in the test files alone that need it."""
    optimize_graphs_for(request.path)


@pytest.fixture(scope="module", params=["compiled", "python"])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kernels, and what stands in for them where they were not compiled: a module tests both alike."""
    with without_kernels() if request.param == "python" else nullcontext():
        yield


@pytest.fixture(scope="session")
def servers_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the servers' data: one for all workers of pytest-xdist, whose own lie in it."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def s3_server(servers_root: Path) -> Iterator[S3Server]:
    """A SeaweedFS, started for the first test that needs it and shared with the other workers."""
    with shared("s3", servers_root, seaweedfs) as server:
        yield server


@pytest.fixture(scope="session")
def s3_bucket(s3_server: S3Server) -> str:
    """An empty bucket of this worker's own."""
    name = f"tests-{uuid.uuid4().hex}"
    s3_server.make_bucket(name)
    return name


@pytest.fixture(scope="session")
def hdfs_server(servers_root: Path) -> Iterator[HdfsServer]:
    """An HDFS, shared with the other workers: a test that kills a DataNode starts its own ``hdfs(tmp_path)``."""

    @contextmanager
    def start(directory: Path) -> Iterator[HdfsServer]:
        with hdfs(directory) as processes:
            yield processes.server

    with shared("hdfs", servers_root, start) as server:
        yield server


@pytest.fixture
def s3_env(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment in which ``s3://`` URLs open with no options, in force in this process for one test."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    filesystem = fsspec.get_filesystem_class("s3")
    filesystem.clear_instance_cache()  # its key is the options, not the environment
    yield s3_server.env
    filesystem.clear_instance_cache()


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """In front of S3; one for all tests of a module, so that they share the client, which takes longest to make."""
    with proxied(s3_server.endpoint_url) as running:
        yield running


@pytest.fixture
def s3_profile(s3_server: S3Server, s3_env: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A profile of AWS's configuration file, which alone knows the server from here on; ask for it after all else."""
    lines = [
        "[profile lab]",
        f"region = {REGION}",
        f"endpoint_url = {s3_server.endpoint_url}",
        f"aws_access_key_id = {s3_server.access_key}",
        f"aws_secret_access_key = {s3_server.secret_key}",
    ]
    (tmp_path / "aws-config").write_text("\n".join(lines))
    for name in s3_env:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    return "lab"


@pytest.fixture(params=["local", "s3", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each store in turn, with an empty directory of this test's own."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        env = request.getfixturevalue("s3_env")
        url = f"s3://{request.getfixturevalue('s3_bucket')}/{uuid.uuid4().hex}"
        return Store(name="s3", url=url, env=env, storage_options=server.storage_options)
    if request.param == "hdfs":
        root: HdfsServer = request.getfixturevalue("hdfs_server")
        url = f"{root.url}/tests/{uuid.uuid4().hex}"
    else:
        url = str(tmp_path / "store")
    fs, path = fsspec.core.url_to_fs(url)
    fs.makedirs(path)
    return Store(name=request.param, url=url)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process, as the installed one does: ``cli("shard-dataset", "build", ...)``."""

    def run(
        program: str, *args: str, env: Mapping[str, str] | None = None, check: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        capfd.readouterr()
        status = run_here(program, args, env or {})
        done = subprocess.CompletedProcess([program, *args], status, *capfd.readouterr())
        if check:
            done.check_returncode()
        return done

    return run


@pytest.fixture
def installed() -> Cli:
    """Run an installed command in a process of its own, as text with no standard input: takes half a second more."""

    def run(
        program: str,
        *args: str,
        env: Mapping[str, str] | None = None,
        check: bool = False,
        timeout_seconds: float = 300,
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(Path(sys.executable).with_name(program)), *args],
            env=lean_environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout_seconds,
        )

    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; only root may make one."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield folder
    deadline = time.monotonic() + 120
    while subprocess.run(["umount", str(folder)], capture_output=True).returncode != 0:
        assert time.monotonic() < deadline, f"a file on {folder} is still open"
        gc.collect()  # a cycle may hold what is mapped
        time.sleep(0.1)
