"""Secrets in URLs: no command prints one or writes one to a file, whether it succeeds or fails."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import AppendOptions, BuildOptions, Storage, open_dataset
from ringfeed.sharding.storage.retry import retry
from ringfeed.tools import cli
from ringfeed.tools.shard_dataset import program
from tests.servers.web import served

SECRET = "pl4nt3d"
UNREADABLE = [
    f"http://me:{SECRET}/{SECRET}@127.0.0.1:1/x.csv",
    f"http://me:{SECRET}?{SECRET}@127.0.0.1:1/x.csv",
    f"s3://AKIA:{SECRET}/{SECRET}+@bucket/x.csv",
    f"s3a://{SECRET}@bucket/x.csv",
    f"http:/me:{SECRET}@127.0.0.1/x.csv",
    f"ftp://me:{SECRET}/{SECRET}@127.0.0.1:1/x.csv",
    f"ftp://me:{SECRET}@127.0.0.1:1/x.csv",
    f"ftp://127.0.0.1:1/x.csv?token={SECRET}",
    f"s3://bucket/x.csv?X-Amz-Signature={SECRET}",
    f"az://container/x.csv?sv=1&sig={SECRET}",
    f"abfs://container@account.dfs.core.windows.net/x.csv?sig={SECRET}",
    f"webhdfs://me:{SECRET}@127.0.0.1:1/x.csv",
    f"nosuch://me:{SECRET}@host/x.csv",
    f"zip://x.csv::http://me:{SECRET}@127.0.0.1:1/x.zip?sig={SECRET}",
    f"simplecache::https://{SECRET}@127.0.0.1:1/x.csv#token={SECRET}",
]
READABLE = [
    f"http://{SECRET}@HOST/PATH",
    f"http://me:a@%2F{SECRET}%40@HOST/PATH",
]
QUERIED = f"http://me:{SECRET}@HOST/PATH?a={SECRET}&b=1#token={SECRET}"

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The host of a server that ignores credentials and queries, and the folder that it serves."""
    folder = tmp_path_factory.mktemp("web")
    table = pa.table({"id": range(40), "label": ["a", "b"] * 20})
    pq.write_table(table, folder / "x.parquet")
    (folder / "x.csv").write_text("id,label\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(40)))
    assert program.main(["build", str(folder / "x.csv"), str(folder / "ds"), "--label", "label", "--shards", "2"]) == 0
    assert program.main(["build", str(folder / "x.csv"), str(folder / "bad"), "--label", "label", "--shards", "2"]) == 0
    shard = min((folder / "bad").glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-7])
    with served(folder) as url:
        yield url.removeprefix("http://"), folder


class Commands:
    """Runs commands in this process, and remembers what they print and write."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capfd = folder, capfd

    def __call__(self, *words: str) -> int:
        is_of_ringfeed = words[0] in cli.COMMANDS and words[0] != "export"  # a command of both
        main = cli.main if is_of_ringfeed else program.main
        try:
            status = main(list(words))
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = "".join(self._capfd.readouterr())
        assert SECRET not in printed, (words, printed)
        self.check_files(*words)
        return status

    def check_files(self, *words: str) -> None:
        for path in self.folder.rglob("*"):
            assert SECRET not in str(path), words
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), (words, path)


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    return Commands(tmp_path, capfd)


@pytest.mark.parametrize("url", [READABLE[0], QUERIED])
def test_no_command_that_reads_a_source_shows_its_secrets(web: tuple[str, Path], run: Commands, url: str) -> None:
    source = url.replace("HOST", web[0]).replace("PATH", "x.csv")
    out = str(run.folder / "out")
    build = ["build", source, out, "--label", "label"]
    assert run(*build, "--dry-run") == 0
    assert run(*build, "--dry-run", "--json") == 0
    assert run(*build, "--shards", "2") == 0
    assert run(*build) == 1
    assert run("append", source, out) == 1
    assert run("append", source, out, "--again", "--json") == 0
    assert run("inspect", out) == 0
    assert run("inspect", out, "--json") == 0
    shard = min(Path(out).glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-7])
    assert run("verify", out) == 1
    assert run("repair", out, "--source", source, "--dry-run") == 0
    assert run("repair", out, "--source", source) == 0
    assert run("repair", out, "--source", source, "--source", source, "--json") in (0, 1)
    assert run("build", source, str(run.folder / "other"), "--label", "nosuch") == 1
    assert run("build", source, str(run.folder / "other"), "--label", "label", "--spill", source) == 1


@pytest.mark.parametrize("url", READABLE)
def test_no_command_that_reads_a_dataset_shows_its_secrets(web: tuple[str, Path], run: Commands, url: str) -> None:
    dataset = url.replace("HOST", web[0]).replace("PATH", "ds")
    damaged = url.replace("HOST", web[0]).replace("PATH", "bad")
    absent = url.replace("HOST", web[0]).replace("PATH", "absent")
    for more in ([], ["--json"]):
        assert run("verify", dataset, *more) == 0
        assert run("verify", damaged, *more) == 1
        assert run("inspect", dataset, *more) == 0
        assert run("export", dataset, str(run.folder / f"export{len(more)}"), "--to", "webdataset", *more) == 0
        for command in ("verify", "inspect", "repair", "clean"):
            assert run(command, absent, *more) in (0, 1)
    assert run("cat", dataset) == 0
    assert run("reshard", dataset, str(run.folder / "resharded"), "--shards", "1") == 0
    assert run("repair", damaged) == 1
    assert run("append", str(web[1] / "x.csv"), dataset) == 1
    assert run("export", dataset, absent, "--to", "hf") == 1
    assert run("cache", dataset) == 1
    storage = open_dataset(dataset).storage
    for shown in (storage, storage.folder("x"), Loader(dataset, batch_size=2), Storage(dataset, {"key": SECRET})):
        assert SECRET not in f"{shown} {shown!r}"
    for options in (
        BuildOptions(source=dataset, destination=dataset, spill=dataset),
        AppendOptions(source=dataset, destination=dataset),
    ):
        assert SECRET not in repr(options)


@pytest.mark.parametrize("url", UNREADABLE)
def test_no_error_shows_secrets(
    web: tuple[str, Path], run: Commands, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(retry.__kwdefaults__ or {}, "sleep", lambda _: None)
    good, out = str(web[1] / "x.csv"), str(run.folder / "out")
    assert run("build", url, out) == 1
    assert run("build", url, out, "--json") == 1
    assert run("build", good, url) == 1
    for command in ("verify", "inspect", "cat", "repair", "clean"):
        run(command, url)
    assert run("build", good, out, url) == 2
    assert run("build", good, out, "--engine", url) != 0
    assert run("cache", url) == 1


def test_a_traceback_shows_no_secrets(web: tuple[str, Path], tmp_path: Path) -> None:
    for url in (f"http://me:{SECRET}@{web[0]}/absent.csv?sig={SECRET}", f"s3://AK:{SECRET}/{SECRET}@bucket/x"):
        command = [sys.executable, "-m", "ringfeed.tools.shard_dataset.program", "build", url, str(tmp_path), "--debug"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert SECRET not in done.stdout + done.stderr


def test_neither_a_profile_nor_a_run_shows_or_stores_secrets(
    web: tuple[str, Path], run: Commands, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = f"http://me:{SECRET}@{web[0]}/ds"
    out = run.folder / "run"
    config = {
        "data": {"url": url, "batch_size": 8, "eval_split": None, "cache": str(out / "cache")},
        "model": {"name": "tabular"},
        "epochs": 1,
        "checkpoint": {"url": str(out / "checkpoints")},
        "output": {"metrics": str(out / "metrics.json")},
        "deterministic": False,  # which cannot be switched off again
    }
    assert run("profile", url, "--batch-size", "8", "--seconds", "1") == 0
    path = tmp_path_factory.mktemp("config") / "run.yaml"  # the only file that holds them
    path.write_text(json.dumps(config))
    assert run("train", "--config", str(path), "--json") == 0
    assert {path.suffix for path in out.rglob("*") if path.is_file()} >= {".safetensors", ".json"}
