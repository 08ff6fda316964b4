"""What the stores do, through fsspec alone: the facts that ``sharding/storage.py`` is built on.

A test that fails here after an upgrade says which of those facts has changed.
"""

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import fsspec
import pytest

from tests.servers.hdfs import HdfsServer, hdfs
from tests.servers.install import JAR_PREFIXES
from tests.servers.process import ServerError, free_ports, running, wait_until_ready
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

MULTIPART = {"block_size": 5 << 20}
THREE_PARTS = bytes(12 << 20)
TREE = Path(__file__).parents[1]


def s3(server: S3Server) -> fsspec.AbstractFileSystem:
    return fsspec.filesystem("s3", **server.storage_options, use_listings_cache=False)


def outcomes(attempt: Callable[[int], None]) -> list[str]:
    """Make eight attempts at the same time; return for each 'won' or the name of its exception, sorted."""

    def one(number: int) -> str:
        try:
            attempt(number)
        except Exception as error:
            return type(error).__name__
        return "won"

    with ThreadPoolExecutor(8) as pool:
        return sorted(pool.map(one, range(8)))


def python(code: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


class TestEveryStore:
    def test_starts_empty_and_opens_without_options(self, store: Store) -> None:
        assert store.list() == []
        with fsspec.open(f"{store.url}/a", "wb") as file:
            file.write(b"hello")
        with fsspec.open(f"{store.url}/a", "rb") as file:
            assert file.read() == b"hello"
        assert store.list() == ["a"]

    def test_bytes_written_past_the_package_are_read_listed_and_deleted(self, store: Store) -> None:
        store.write_bytes("deep/er/b", bytes(range(256)))
        store.write_bytes("a", b"")
        assert store.list() == ["a", "deep/er/b"]
        store.write_bytes("a", b"again")
        assert store.read_bytes("a") == b"again"
        assert store.read_bytes("deep/er/b") == bytes(range(256))
        store.delete("a")
        assert store.list() == ["deep/er/b"]

    def test_a_child_process_opens_it_with_the_environment_alone(self, store: Store) -> None:
        store.write_bytes("a", b"hello")
        code = f"import fsspec; print(fsspec.open({store.url + '/a'!r}).open().read().decode())"
        path = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
        done = python(code, {**path, **store.env})
        assert (done.stdout, done.stderr) == ("hello\n", "")

    def test_ranges_are_read_from_both_ends(self, store: Store) -> None:
        store.write_bytes("a", b"0123456789")
        fs, root = fsspec.core.url_to_fs(store.url)
        assert fs.cat_file(f"{root}/a", start=2, end=5) == b"234"
        assert fs.cat_file(f"{root}/a", start=-3) == b"789"
        assert fs.cat_ranges([f"{root}/a"] * 2, [0, 8], [1, 10]) == [b"0", b"89"]

    def test_a_missing_file_is_not_found_and_a_missing_directory_holds_nothing(self, store: Store) -> None:
        fs, root = fsspec.core.url_to_fs(store.url)
        with pytest.raises(FileNotFoundError):
            fs.cat_file(f"{root}/none")
        with pytest.raises(FileNotFoundError):
            fs.ls(f"{root}/none")
        assert fs.find(f"{root}/none") == []
        assert not fs.exists(f"{root}/none")

    def test_a_tree_is_removed_whole(self, store: Store) -> None:
        store.write_bytes("tree/a", b"1")
        store.write_bytes("tree/deep/b", b"2")
        fs, root = fsspec.core.url_to_fs(store.url)
        fs.rm(f"{root}/tree", recursive=True)
        assert store.list() == []

    def test_an_exception_while_writing_publishes_what_was_written_so_far(self, store: Store) -> None:
        """Why nothing may be written in place: ``with`` closes the file, and closing publishes it."""

        def write_and_fail() -> None:
            with fsspec.open(f"{store.url}/a", "wb") as file:
                file.write(b"partial")
                raise KeyError

        with pytest.raises(KeyError):
            write_and_fail()
        assert store.read_bytes("a") == b"partial"


class TestS3:
    @pytest.mark.parametrize("content", [b"small", THREE_PARTS], ids=["one PUT", "multipart"])
    @pytest.mark.parametrize("end", ["commit", "discard"])
    def test_without_autocommit_an_object_appears_at_commit_or_never(
        self, s3_server: S3Server, s3_bucket: str, content: bytes, end: str
    ) -> None:
        fs, path = s3(s3_server), f"{s3_bucket}/autocommit/{end}/{len(content)}"
        file = fs.open(path, "wb", autocommit=False, **MULTIPART)
        file.write(content)
        file.close()
        assert not fs.exists(path)
        getattr(file, end)()
        assert fs.find(path) == ([path] if end == "commit" else [])
        assert all(upload["Key"] not in path for upload in fs.list_multipart_uploads(s3_bucket))

    def test_an_exclusive_write_fails_where_the_object_exists(self, s3_server: S3Server, s3_bucket: str) -> None:
        """SeaweedFS does not name the condition in its answer, so s3fs cannot tell ``FileExistsError``."""
        fs, path = s3(s3_server), f"{s3_bucket}/exclusive"
        fs.pipe_file(path, b"first", mode="create")
        with pytest.raises(OSError, match="pre-conditions"):
            fs.pipe_file(path, b"second", mode="create")
        with pytest.raises(OSError, match="pre-conditions"), fs.open(path, "xb") as file:
            file.write(b"second")
        with pytest.raises(OSError, match="pre-conditions"), fs.open(path, "xb", **MULTIPART) as file:
            file.write(THREE_PARTS)
        assert fs.cat_file(path) == b"first"

    def test_an_exclusive_open_overwrites_when_nothing_is_written(self, s3_server: S3Server, s3_bucket: str) -> None:
        fs, path = s3(s3_server), f"{s3_bucket}/empty"
        fs.pipe_file(path, b"first")
        fs.open(path, "xb").close()
        assert fs.cat_file(path) == b""

    def test_of_eight_exclusive_writers_one_wins(self, s3_server: S3Server, s3_bucket: str) -> None:
        fs, path = s3(s3_server), f"{s3_bucket}/race"
        results = outcomes(lambda number: fs.pipe_file(path, b"%d" % number, mode="create"))
        assert results == ["OSError"] * 7 + ["won"]

    def test_wrong_credentials_are_a_permission_error_whatever_is_done(
        self, s3_server: S3Server, s3_bucket: str
    ) -> None:
        fs, path = s3(s3_server.as_stranger()), f"{s3_bucket}/a"
        for action in (fs.cat_file, fs.ls, fs.find, fs.info, fs.exists, fs.rm_file):
            with pytest.raises(PermissionError):
                action(path)
        with pytest.raises(PermissionError):
            fs.pipe_file(path, b"1")

    def test_a_missing_bucket_is_not_found_by_a_reader_and_refused_to_a_writer(self, s3_server: S3Server) -> None:
        """A writer learns no more from SeaweedFS than that it may not: look for the bucket before writing."""
        fs = s3(s3_server)
        for action in (fs.cat_file, fs.ls, fs.find, fs.info):
            with pytest.raises(FileNotFoundError):
                action("no-such-bucket/a")
        with pytest.raises(FileNotFoundError):
            fs.info("no-such-bucket")
        with pytest.raises(PermissionError):
            fs.pipe_file("no-such-bucket/a", b"1")
        assert not fs.exists("no-such-bucket")

    def test_a_reader_may_not_write_and_its_bulk_delete_fails_in_silence(
        self, s3_server: S3Server, s3_bucket: str
    ) -> None:
        path = f"{s3_bucket}/read-only"
        s3(s3_server).pipe_file(path, b"kept")
        fs = s3(s3_server.as_reader())
        with pytest.raises(PermissionError):
            fs.pipe_file(path, b"1")
        with pytest.raises(PermissionError):
            fs.rm_file(path)
        fs.rm(path)
        assert fs.cat_file(path) == b"kept"


class TestHdfs:
    @pytest.fixture
    def root(self, hdfs_server: HdfsServer, request: pytest.FixtureRequest) -> str:
        return f"{hdfs_server.url}/{request.node.name}"

    @pytest.fixture
    def fs(self, root: str) -> fsspec.AbstractFileSystem:
        return fsspec.core.url_to_fs(root)[0]

    def test_a_file_is_visible_and_empty_while_it_is_written(self, fs: fsspec.AbstractFileSystem, root: str) -> None:
        with fs.open(f"{root}/a", "wb", autocommit=False) as file:
            file.write(b"hello")
            assert fs.info(f"{root}/a")["size"] == 0
        assert fs.cat_file(f"{root}/a") == b"hello"

    def test_exclusive_create_is_an_option_and_not_a_mode(self, fs: fsspec.AbstractFileSystem, root: str) -> None:
        with pytest.raises(ValueError, match="xb is not supported"):
            fs.open(f"{root}/a", "xb")
        fs.pipe_file(f"{root}/a", b"first", overwrite=False)
        with pytest.raises(FileExistsError):
            fs.pipe_file(f"{root}/a", b"second", overwrite=False)
        assert fs.cat_file(f"{root}/a") == b"first"

    def test_a_rename_replaces_only_when_told_to(self, fs: fsspec.AbstractFileSystem, root: str) -> None:
        fs.pipe_file(f"{root}/new", b"new")
        fs.pipe_file(f"{root}/old", b"old")
        with pytest.raises(FileExistsError):
            fs.mv(f"{root}/new", f"{root}/old")
        assert fs.cat_file(f"{root}/old") == b"old"
        fs.mv(f"{root}/new", f"{root}/old", overwrite=True)
        assert fs.cat_file(f"{root}/old") == b"new"
        assert not fs.exists(f"{root}/new")

    def test_of_eight_renames_to_one_name_one_wins(self, fs: fsspec.AbstractFileSystem, root: str) -> None:
        def write_and_rename(number: int) -> None:
            fs.pipe_file(f"{root}/{number}", b"%d" % number)
            fs.mv(f"{root}/{number}", f"{root}/final")

        assert outcomes(write_and_rename) == ["FileExistsError"] * 7 + ["won"]

    def test_permission_denied_is_a_runtime_error(self, fs: fsspec.AbstractFileSystem, root: str) -> None:
        """The user is fixed when the process first connects, so another one needs a process of its own."""
        fs.makedirs(root)
        code = f"import fsspec; fsspec.open({root + '/a'!r}, 'wb').open()"
        env = {**os.environ, "HADOOP_USER_NAME": "mallory"}
        last_line = python(code, env).stderr.splitlines()[-1]
        assert last_line.startswith('RuntimeError: RPCError("org.apache.hadoop.security.AccessControlException"')
        assert "Permission denied: user=mallory, access=WRITE" in last_line

    def test_an_absent_namenode_is_an_error_at_once_if_retries_are_limited(self) -> None:
        """Without the option it takes three minutes."""
        options = {"dfs.client.failover.max.attempts": "1", "dfs.client.failover.sleep.max.millis": "100"}
        fs = fsspec.filesystem("hdfs", host="127.0.0.1", port=free_ports(1)[0], **options)
        with pytest.raises(OSError, match="Connection refused"):
            fs.ls("/")

    def test_a_killed_datanode_loses_nothing_once_it_is_back(self, tmp_path: Path) -> None:
        with hdfs(tmp_path) as processes:
            fs, _ = fsspec.core.url_to_fs(processes.server.url)
            fs.pipe_file("/a", b"hello")
            processes.kill_datanode()
            with pytest.raises(RuntimeError, match="All DataNodes failed"):
                fs.cat_file("/a")
            processes.start_datanode()
            assert fs.cat_file("/a") == b"hello"


class TestProcesses:
    def test_no_port_is_given_twice(self) -> None:
        code = "from tests.servers.process import free_ports; print(len({*free_ports(150), *free_ports(150)}))"
        done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True, check=True)
        assert int(done.stdout) == 300

    def test_a_server_that_ends_at_once_is_reported_with_the_end_of_its_log(self, tmp_path: Path) -> None:
        log = tmp_path / "log"

        def never_ready() -> None:
            raise ConnectionRefusedError

        expected = pytest.raises(ServerError, match=r"demo ended with status 3; end of .*log:\naddress in use")
        with running(["sh", "-c", "echo address in use; exit 3"], log, {}, tmp_path) as process, expected:
            wait_until_ready("demo", never_ready, {log: process})

    def test_a_server_dies_with_the_process_that_started_it(self, tmp_path: Path) -> None:
        code = (
            "import sys, time, pathlib; from tests.servers.process import running\n"
            "log = pathlib.Path(sys.argv[1])\n"
            "with running(['sleep', '1000'], log, {}, log.parent) as process:\n"
            "    print(process.pid, flush=True); time.sleep(1000)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "log")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=TREE) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            parent.kill()
        assert ended(pid)


def ended(pid: int) -> bool:
    """Wait up to a minute until a process, reaped or not, runs no more."""
    for _ in range(600):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


class TestInstaller:
    def test_installers_at_the_same_time_end_in_one_whole_folder_and_leave_nothing_else(self, tmp_path: Path) -> None:
        index, cache = tmp_path / "index", tmp_path / "cache"
        fake_sdist(index, tmp_path)
        env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "RINGFEED_CACHE": str(cache)}
        command = [sys.executable, "-c", "from tests.servers.install import hadoop_jars; hadoop_jars()"]
        start = partial(subprocess.Popen, command, env=env, cwd=TREE, stderr=subprocess.PIPE, text=True)
        installers = [start() for _ in range(3)]
        messages = [installer.communicate(timeout=300)[1] for installer in installers]
        assert [installer.returncode for installer in installers] == [0, 0, 0], messages
        assert [entry.name for entry in cache.iterdir()] == ["hadoop-2.7.3"]
        assert len(list((cache / "hadoop-2.7.3").iterdir())) == len(JAR_PREFIXES)


def fake_sdist(index: Path, scratch: Path) -> None:
    """Write a ``pyspark-2.4.8.tar.gz`` of empty jars, in the real one's layout."""
    root = scratch / "pyspark-2.4.8"
    jars = root / "deps" / "jars"
    jars.mkdir(parents=True)
    setup = "from setuptools import setup\nsetup(name='pyspark', version='2.4.8', packages=[])\n"
    (root / "setup.py").write_text(setup)
    for prefix in JAR_PREFIXES:
        (jars / f"{prefix}1.jar").touch()
    (jars / "spark-core.jar").touch()
    index.mkdir()
    with tarfile.open(index / "pyspark-2.4.8.tar.gz", "w:gz") as archive:
        archive.add(root, arcname=root.name)
