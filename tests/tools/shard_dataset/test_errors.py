"""`shard-dataset` on bad sources, destinations and environments: one line, and no leftovers."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ringfeed.tools import cache
from ringfeed.tools import cli as cli_of_ringfeed
from ringfeed.tools.shard_dataset import commands
from ringfeed.tools.shard_dataset.program import main
from tests.helpers.commands import Cli, assert_one_line
from tests.helpers.files import contents
from tests.servers.hdfs import HdfsServer
from tests.servers.proxy import Fault, Proxy
from tests.servers.seaweedfs import S3Server

Spoil = Callable[[Path], str]


def empty_folder(folder: Path) -> str:
    (folder / "empty").mkdir()
    return str(folder / "empty")


def text_file(content: bytes) -> Spoil:
    def spoil(folder: Path) -> str:
        (folder / "x.csv").write_bytes(content)
        return str(folder / "x.csv")

    return spoil


def empty_parquet(folder: Path) -> str:
    pq.write_table(pa.table({"status": pa.array([], pa.string())}), folder / "x.parquet")
    return str(folder / "x.parquet")


def truncated_png(folder: Path) -> str:
    out = BytesIO()
    Image.new("RGB", (64, 64), (1, 2, 3)).save(out, "PNG")
    for i in range(6):
        (folder / "images" / f"c{i % 2}").mkdir(parents=True, exist_ok=True)
        data = out.getvalue()
        (folder / "images" / f"c{i % 2}" / f"{i}.png").write_bytes(data[:-20] if i == 5 else data)
    return str(folder / "images")


def in_braces(folder: Path) -> str:
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text("status\n1\n")
    return str(folder / "{a,b}.csv")


ERRORS: list[tuple[str, Spoil, list[str]]] = [
    ("missing source", lambda folder: str(folder / "flihgts.csv"), ["there is nothing at", "check the path"]),
    ("missing function", lambda folder: "flights:records", ["a function is read with --source-kind python"]),
    ("braces", in_braces, ["braces expand only in names of tar archives"]),
    ("near miss", lambda folder: str(folder / "flight.csv"), ["did you mean", "flights.csv"]),
    ("empty folder", empty_folder, ["holds no records"]),
    ("empty csv", text_file(b""), ["the file is empty"]),
    ("header only", text_file(b"status,b\n"), ["the file is empty"]),
    ("no rows", empty_parquet, ["holds no records"]),
    ("single record", text_file(b"status\na\na\nb\n"), ["class 'b' has 1 record", "--min-class-records 1"]),
    ("not utf-8", text_file(b"status\n\xe9t\xe9\n"), ["line 2, byte 1 is not UTF-8", "--encoding"]),
    ("truncated png", truncated_png, ["5.png: the image is damaged or cut short"]),
    ("unknown label", text_file(b"statsu,b\na,1\na,2\n"), ["no label column 'status'", "did you mean 'statsu'"]),
]


@pytest.mark.parametrize(("spoil", "words"), [case[1:] for case in ERRORS], ids=[case[0] for case in ERRORS])
def test_a_bad_source_is_one_line_and_leaves_nothing(
    cli: Cli, source: str, tmp_path: Path, spoil: Spoil, words: list[str]
) -> None:
    spoiled = spoil(tmp_path)
    done = cli(
        "shard-dataset", "build", spoiled, f"{tmp_path}/new/out", "--label", "status", "--shards", "1", "--workers", "1"
    )
    assert_one_line(done, *words)
    assert not (tmp_path / "new").exists()


def attempt(cli: Cli, source: str, url: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return cli("shard-dataset", "build", source, url, "--label", "status", "--workers", "1", env=env)


class TestDestinations:
    def test_wrong_credentials(self, cli: Cli, source: str, s3_server: S3Server, s3_bucket: str) -> None:
        url = f"s3://{s3_bucket}/stranger"
        done = attempt(cli, source, url, s3_server.as_stranger().env)
        assert_one_line(done, "permission denied", "AWS_ACCESS_KEY_ID")
        assert nothing_at(url, s3_server)

    def test_a_missing_bucket(self, cli: Cli, source: str, s3_server: S3Server) -> None:
        done = attempt(cli, source, "s3://no-such-bucket/x", s3_server.env)
        assert_one_line(done, "s3://no-such-bucket/x", "the bucket does not exist")
        done = cli("shard-dataset", "inspect", "s3://no-such-bucket/x", env=s3_server.env)
        assert_one_line(done, "s3://no-such-bucket/x")

    def test_an_invalid_bucket_name(self, cli: Cli, source: str, s3_server: S3Server) -> None:
        done = attempt(cli, source, "s3://My Bucket/x", s3_server.env)
        assert_one_line(done, "s3://My Bucket/x", "no bucket can be called 'My Bucket'")

    @pytest.mark.parametrize("path", ["a//b", "10:30", "../b"])
    def test_an_invalid_hdfs_path(self, cli: Cli, source: str, hdfs_server: HdfsServer, path: str) -> None:
        done = attempt(cli, source, f"{hdfs_server.url}/{path}", {})
        assert_one_line(done, f"/{path}: HDFS takes no such path")

    def test_a_read_only_bucket(self, cli: Cli, source: str, s3_server: S3Server, s3_bucket: str) -> None:
        url = f"s3://{s3_bucket}/reader"
        done = attempt(cli, source, url, s3_server.as_reader().env)
        assert_one_line(done, "cannot write", "permission denied")
        assert nothing_at(url, s3_server)

    def test_a_bucket_that_may_not_be_listed(
        self, cli: Cli, source: str, s3_server: S3Server, s3_bucket: str, proxy: Proxy
    ) -> None:
        url = f"s3://{s3_bucket}/unlisted"
        assert attempt(cli, source, url, s3_server.env).returncode == 0
        proxy.begin(Fault(kind="reply", path="list-type", status=403, code="AccessDenied", times=99))
        done = cli("shard-dataset", "verify", url, env=replace(s3_server, endpoint_url=proxy.url).env)
        assert (done.returncode, done.stdout.splitlines()[0]) == (
            0,
            "note: the folder cannot be listed, so other files in it are not reported",
        )

    def test_a_read_only_hdfs_folder(self, installed: Cli, source: str, hdfs_server: HdfsServer) -> None:
        url = f"{hdfs_server.url}/of-another/new"
        done = attempt(installed, source, url, {"HADOOP_USER_NAME": "mallory"})
        assert_one_line(done, "permission denied", "HADOOP_USER_NAME")

    def test_a_name_node_that_is_down(self, installed: Cli, source: str) -> None:
        done = installed(
            "shard-dataset", "build", source, "hdfs://127.0.0.1:1/x", "--label", "status", timeout_seconds=120
        )
        assert_one_line(done, "cannot reach hdfs://127.0.0.1:1/x")

    def test_a_read_only_folder(self, cli: Cli, source: str, tmp_path: Path) -> None:
        folder = "/proc" if os.geteuid() == 0 else str(tmp_path / "mine")  # root writes anywhere but there
        if os.geteuid():
            (tmp_path / "mine").mkdir(mode=0o500)
        done = cli("shard-dataset", "build", source, f"{folder}/new/out", "--label", "status", "--workers", "1")
        assert_one_line(done, f"cannot write {folder}/new/out")
        assert not Path(folder, "new").exists()

    def test_a_file_or_a_folder_of_other_files(self, cli: Cli, source: str, tmp_path: Path) -> None:
        done = cli("shard-dataset", "build", source, source, "--label", "status", "--workers", "1")
        assert_one_line(done, "is the source itself")
        done = cli("shard-dataset", "build", source, str(tmp_path), "--label", "status", "--workers", "1")
        assert_one_line(done, "lies inside the destination")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "thesis.txt").write_text("mine")
        done = cli("shard-dataset", "build", source, str(tmp_path / "full"), "--label", "status", "--workers", "1")
        assert_one_line(done, "is not empty and holds no dataset (there is 'thesis.txt')")
        assert os.listdir(tmp_path / "full") == ["thesis.txt"]

    def test_an_existing_dataset_is_kept_without_overwrite(self, cli: Cli, source: str, dataset: Path) -> None:
        before = contents(dataset)
        done = cli("shard-dataset", "build", source, str(dataset), "--label", "status", "--workers", "1")
        assert_one_line(done, "already holds a dataset", "--overwrite")
        assert contents(dataset) == before
        done = cli("shard-dataset", "build", source, str(dataset), "--label", "status", "--shards", "1", "--overwrite")
        assert done.returncode == 0
        assert len(contents(dataset)) == 6

    def test_a_newer_dataset(self, cli: Cli, dataset: Path) -> None:
        manifest = dataset / "_ringfeed/dataset.json"
        text = manifest.read_text().replace('"format_version": "1.0"', '"format_version": "3.0",\n "new": 1')
        manifest.write_text(text)
        for command in ("inspect", "verify", "repair", "cat"):
            assert_one_line(cli("shard-dataset", command, str(dataset)), "format version 3.0", "upgrade")


def nothing_at(url: str, server: S3Server) -> bool:
    import fsspec

    fs = fsspec.filesystem("s3", **server.storage_options, use_listings_cache=False)
    return not [info for info in fs.find(url, detail=True).values() if info["type"] == "file"]


def test_file_names_that_are_not_text_are_reported(cli: Cli, dataset: Path, source: str, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd-\xe9")
    Path(odd).mkdir()
    (Path(odd) / "x.csv").write_text("a,b\n1,2\n")
    assert_one_line(cli("shard-dataset", "build", odd, f"{tmp_path}/o"), "source must be a name in UTF-8", "rename it")
    assert_one_line(cli("shard-dataset", "build", source, odd), "destination must be a name in UTF-8", "rename it")
    (tmp_path / "folder").mkdir()
    (Path(odd) / "x.csv").rename(os.fsdecode(os.fsencode(tmp_path) + b"/folder/\xe9.csv"))
    done = cli("shard-dataset", "build", f"{tmp_path}/folder", f"{tmp_path}/o")
    assert_one_line(done, "the name of the file", "\\udce9.csv' is not UTF-8; rename it")
    dataset.rename(f"{odd}/shards")
    for command in ("inspect", "verify", "cat", "clean"):
        assert_one_line(cli("shard-dataset", command, f"{odd}/shards"), "must be a name in UTF-8", "rename it")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(source: str, tmp_path: Path, closed: str) -> None:
    program = Path(sys.executable).with_name("shard-dataset")
    command = f"{program} build {source} {tmp_path}/out --label status --shards 2 --workers 2 --json {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_too_few_open_files_name_the_limit(source: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("shard-dataset")), "build", source, f"{tmp_path}/o", "--label"]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -n 12; exec "$@"', "sh", *command, "status", "--workers", "2"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert_one_line(done, "too many open files: this process needs", "and may have 12; raise the limit (ulimit -n)")


@pytest.mark.parametrize("kib", [190_000, 200_000, 300_000])  # at an import, and at work
def test_too_little_memory_names_the_limit(source: str, tmp_path: Path, kib: int) -> None:
    command = [str(Path(sys.executable).with_name("shard-dataset")), "build", source, f"{tmp_path}/o", "--label"]
    done = subprocess.run(
        ["sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh", *command, "status", "--workers", "1"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert_one_line(done, "out of memory", "(ulimit -v)")


@pytest.mark.parametrize("limit", [6, 12])  # at the first thread, and at the first worker or the process before it
def test_too_few_processes_name_the_limit(source: str, tmp_path: Path, limit: int) -> None:
    tmp_path.chmod(0o777)
    capabilities = ["--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]
    user = f"{1_000_000 + os.getpid()}"  # who has no zombies of a run before
    as_user = ["setpriv", "--reuid", user, "--clear-groups", *capabilities] if os.getuid() == 0 else []
    if subprocess.run(["prlimit", "--nproc=9:9", *as_user, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no limit can be set here")
    command = [str(Path(sys.executable).with_name("shard-dataset")), "build", source, f"{tmp_path}/o", "--label"]
    done = subprocess.run(  # by a program of the system, for no limit holds root, nor may Python fork threads
        ["prlimit", f"--nproc={limit}:{limit}", *as_user, *command, "status", "--workers", "2"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    assert_one_line(done, "use fewer --workers", "ulimit -u")


def test_a_build_continues_when_the_reader_of_its_progress_leaves(source: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = Path(sys.executable).with_name("shard-dataset")
    command = [program, "build", source, f"{tmp_path}/out", "--label", "status", "--workers", "2"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    assert done.returncode == 0
    assert main(["verify", str(tmp_path / "out")]) == 0


def test_a_file_in_place_of_a_folder(cli: Cli, source: str, tmp_path: Path) -> None:
    for command in (["inspect", source], ["clean", source], ["build", source, f"{tmp_path}/o", "--spill", source]):
        assert_one_line(cli("shard-dataset", *command), "a name in its path belongs to a file", "check the path")


def test_a_dangling_link_in_place_of_a_folder(cli: Cli, source: str, dataset: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    build = ["build", source, "--label", "status"]
    for command in ([*build, str(link)], ["export", str(dataset), str(link), "--to", "hf"]):
        assert_one_line(cli("shard-dataset", *command), f"the destination {link} is a link that leads nowhere; name a")
    for command in (
        [*build, f"{link}/sub"],
        [*build, f"{tmp_path}/o", "--spill", str(link)],
        ["export", str(dataset), f"{link}/sub", "--to", "hf"],
    ):
        assert_one_line(cli("shard-dataset", *command), "or to a link that leads nowhere, where a folder must be")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_damage_is_reported_although_the_reader_of_the_output_has_left(dataset: Path, unbuffered: str) -> None:
    shard = next(dataset.glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-1])
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [Path(sys.executable).with_name("shard-dataset"), "verify", dataset],
        stdout=writer, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("shard-dataset: error: 1 file is damaged or missing")


def test_a_broken_pipe_is_an_error_unless_it_is_standard_output(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def break_pipe(_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(commands, "open_dataset", break_pipe)
    assert main(["inspect", str(dataset)]) == 1
    monkeypatch.setattr(cache, "run", break_pipe)
    assert cli_of_ringfeed.main(["cache", str(dataset)]) == 1
    told = capfd.readouterr().err.splitlines()[-2:]
    assert told == [f"{program}: error: [Errno 32] Broken pipe" for program in ("shard-dataset", "ringfeed")]


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "cat", "clean"])
def test_an_empty_url_is_not_the_current_folder(
    capsys: pytest.CaptureFixture[str], dataset: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(dataset)
    capsys.readouterr()
    assert main([command, ""]) == 1
    assert capsys.readouterr().err == "shard-dataset: error: a folder must be a URL or a path, got an empty one\n"


@pytest.mark.parametrize("url", ["s3:/bucket/x", "hdfs:/namenode:8020/x", "https:/example.org/x.csv"])
def test_a_url_mangled_by_pathlib_is_refused(
    capsys: pytest.CaptureFixture[str], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """``pathlib.Path`` turns ``s3://bucket/x`` into ``s3:/bucket/x``."""
    monkeypatch.chdir(tmp_path)
    there = set(tmp_path.iterdir())
    for args in (["build", source, url], ["build", url, "out"], ["verify", url]):
        assert main(args) == 1
        told = capsys.readouterr().err
        assert f"got {url!r}, which lacks a slash" in told
        assert f"name {url.replace(':/', '://', 1)}, or ./{url} if" in told
    assert set(tmp_path.iterdir()) == there
