"""One contract for local disk, S3 and HDFS; stored files are read without the code under test."""

import errno
import logging
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfeed.sharding import ConfigError, StorageError
from ringfeed.sharding.storage.atomic_files import create_in_folder
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.url_secrets import public_url
from tests.servers.hdfs import HdfsServer
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

BIG = bytes(range(256)) * 4096 * 7  # 7 MiB: several parts of a multipart upload
RETRY = "ringfeed.sharding.storage.retry"  # which logs what is tried again


def create_four(url: str, first: int) -> list[str]:
    """Try four times at once to be the one that creates ``lock``; return for each 'won' or the name of the error."""

    def create(number: int) -> str:
        try:
            Storage(url).create("lock", b"%d" % number)
        except OSError as error:
            return type(error).__name__
        return "won"

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(create, range(first, first + 4)))


class TestEveryStore:
    def test_a_written_file_is_whole_and_the_only_one(self, store: Store) -> None:
        storage = Storage(store.url)
        storage.write("a/b.bin", BIG)
        storage.write("a/b.bin", b"new")
        storage.write_all({"c": b"1", "d": b""})
        assert store.list() == ["a/b.bin", "c", "d"]
        assert store.read_bytes("a/b.bin") == b"new"
        assert storage.read("a/b.bin") == storage.map("a/b.bin").to_pybytes() == b"new"
        assert storage.map("d").to_pybytes() == b""
        assert storage.list() == ["a/b.bin", "c", "d"]
        storage.write("a/b.bin", BIG)
        assert store.read_bytes("a/b.bin") == BIG

    def test_files_are_listed_moved_and_removed(self, store: Store) -> None:
        storage = Storage(store.url)
        store.write_bytes("x", b"1")
        assert storage.exists("x")
        storage.move("x", "y")
        assert not storage.exists("x")
        assert store.list() == ["y"]
        storage.remove("y")
        storage.remove("y")
        assert storage.list() == store.list() == []

    def test_a_range_beyond_the_end_is_refused_without_retries(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, RETRY)
        storage = Storage(store.url)
        store.write_bytes("x", BIG)
        assert storage.read_range("x", 5, len(BIG)) == BIG[5:]
        for start in (0, len(BIG) - 1, len(BIG), len(BIG) + 1):
            with pytest.raises(StorageError, match=rf"^cannot read {store.url}/x: "):
                storage.read_range("x", start, len(BIG) + 2)
        retries = [record.getMessage() for record in caplog.records if record.name == RETRY]
        assert not [message for message in retries if store.url in message]

    def test_another_program_s_writes_are_seen_at_once(self, store: Store) -> None:
        storage = Storage(store.url)
        assert storage.list() == []
        assert not storage.exists("x")
        store.write_bytes("x", b"1")
        assert storage.exists("x")
        assert storage.list() == ["x"]

    def test_sizes_are_those_of_all_files_below(self, store: Store) -> None:
        storage = Storage(store.url)
        assert storage.sizes() == {}
        storage.write_all({"a/b": b"12345", "a.b": b"", "c": BIG})
        assert list(storage.sizes().items()) == [("a.b", 0), ("a/b", 5), ("c", len(BIG))]
        assert storage.list() == ["a.b", "a/b", "c"]

    def test_a_file_is_created_once_and_then_left_unchanged(self, store: Store) -> None:
        storage = Storage(store.url)
        storage.create("deep/lock", b"first")
        with pytest.raises(FileExistsError, match=f"there is a file {store.url}/deep/lock already"):
            storage.create("deep/lock", b"second")
        assert store.read_bytes("deep/lock") == b"first"
        assert store.list() == ["deep/lock"]
        storage.remove("deep/lock")
        storage.create("deep/lock", b"")
        assert store.read_bytes("deep/lock") == b""

    def test_one_of_eight_creators_in_two_processes_wins(self, store: Store) -> None:
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
            outcomes = [outcome for four in pool.map(create_four, [store.url] * 2, [0, 4]) for outcome in four]
        assert sorted(outcomes) == ["FileExistsError"] * 7 + ["won"]
        assert store.list() == ["lock"]
        assert store.read_bytes("lock") == b"%d" % outcomes.index("won")

    def test_an_input_is_seekable(self, store: Store) -> None:
        store.write_bytes("a", BIG)
        store.write_bytes("empty", b"")
        with Storage(store.url).open_input("a") as file:
            assert file.read(10) == BIG[:10]
            file.seek(-5, 2)
            assert file.tell() == len(BIG) - 5
            assert file.read() == BIG[-5:]
            assert file.read(1) == b""
            file.seek(6 << 20)
            assert file.read(1000) == BIG[6 << 20 :][:1000]
            file.seek(0)
            assert file.read() == BIG
        with Storage(store.url).open_input("empty") as file:
            assert file.read() == b""

    def test_an_output_appears_whole_when_its_body_has_ended(self, store: Store) -> None:
        storage = Storage(store.url)
        storage.write("a/b", b"old")
        for content in (BIG * 5, b"new", b""):  # 35 MiB: several parts
            with storage.open_output("a/b") as file:
                assert file.write(content[:1000]) == len(content[:1000])
                file.write(content[1000:])
                assert store.read_bytes("a/b") != content
            assert store.read_bytes("a/b") == content
            assert store.list() == ["a/b"]

    @pytest.mark.parametrize("content", [b"small", BIG * 5], ids=["small", "several parts"])
    def test_an_output_whose_body_fails_leaves_nothing(self, store: Store, content: bytes) -> None:
        def write_and_fail() -> None:
            with Storage(store.url).open_output("a") as file:
                file.write(content)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            write_and_fail()
        assert store.list() == []

    def test_a_missing_file_is_file_not_found(self, store: Store) -> None:
        for read in (Storage(store.url).read, Storage(store.url).map):
            with pytest.raises(FileNotFoundError, match=f"there is no file {store.url}/missing"):
                read("missing")
        with pytest.raises(FileNotFoundError, match="there is no file"), Storage(store.url).open_input("missing"):
            pass

    def test_a_missing_folder_lists_as_empty(self, store: Store) -> None:
        assert Storage(store.url + "/missing").list() == []

    def test_formerly_absent_folders_are_removed_if_empty(self, store: Store) -> None:
        storage = Storage(store.url + "/deep/er")
        absent = storage.absent_folders()
        storage.write("x", b"1")
        storage.remove_folders(absent)
        assert store.list() == ["deep/er/x"]
        storage.remove("x")
        storage.remove_folders(absent)
        assert storage.absent_folders() == absent
        assert Storage(store.url).absent_folders() == ()

    @pytest.mark.parametrize("look", ["find", "ls"])
    def test_a_folder_that_another_process_removes_first_is_no_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
    ) -> None:
        storage = Storage(str(tmp_path))
        (tmp_path / "empty").mkdir()
        fs, path = storage.folder("empty").filesystem()

        def meanwhile(*args: Any, **options: Any) -> dict[str, Any]:
            os.rmdir(path)
            return {}

        monkeypatch.setattr(type(fs), look, meanwhile)
        if look == "find":
            storage.prune("empty")
        else:
            storage.remove_folders([path])
        assert not os.path.exists(path)

    @pytest.mark.parametrize("look", ["find", "ls"])
    def test_a_folder_that_another_process_fills_first_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
    ) -> None:
        storage = Storage(str(tmp_path))
        (tmp_path / "empty/inner").mkdir(parents=True)
        fs, path = storage.folder("empty/inner").filesystem()
        find = type(fs).find

        def meanwhile(*args: Any, **options: Any) -> dict[str, Any]:
            found: dict[str, Any] = find(*args, **options) if look == "find" else {}
            (tmp_path / "empty/inner/file").write_bytes(b"1")
            return found

        monkeypatch.setattr(type(fs), look, meanwhile)
        if look == "find":
            storage.prune("empty")
        else:
            storage.remove_folders([path, os.path.dirname(path)])
        assert (tmp_path / "empty/inner/file").read_bytes() == b"1"

    def test_a_reachable_folder_passes_the_checks(self, store: Store) -> None:
        Storage(store.url).check_reachable()
        Storage(store.url).check_writable()


class TestS3:
    def test_the_error_for_wrong_credentials_says_what_to_check(self, s3_server: S3Server, s3_bucket: str) -> None:
        storage = Storage(f"s3://{s3_bucket}/x", s3_server.as_stranger().storage_options)
        for attempt in (storage.check_writable, lambda: storage.read("a"), lambda: storage.write("a", b"")):
            with pytest.raises(StorageError, match=r"permission denied; check AWS_ACCESS_KEY_ID"):
                attempt()

    def test_a_missing_bucket_is_named(self, s3_server: S3Server) -> None:
        with pytest.raises(StorageError, match="s3://no-such-bucket-1/x: the bucket does not exist"):
            Storage("s3://no-such-bucket-1/x", s3_server.storage_options).check_writable()

    def test_a_file_too_large_for_one_request_is_written_in_parts(
        self, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("ringfeed.sharding.storage.storage.SINGLE_BYTES", 1 << 20)
        monkeypatch.setattr("ringfeed.sharding.storage.s3.writes._PART_BYTES", 5 << 20)
        storage = Storage(f"s3://{s3_bucket}/parts", s3_server.storage_options)
        storage.write("a", BIG)
        assert storage.read("a") == BIG
        fs, root = storage.filesystem()
        assert fs.info(f"{root}/a")["ETag"].strip('"').endswith("-2")

    def test_a_folder_made_in_a_console_is_empty(self, s3_server: S3Server, s3_bucket: str) -> None:
        storage = Storage(f"s3://{s3_bucket}/made", s3_server.storage_options)
        fs, _ = storage.filesystem()
        for key, data in (("made/", b""), ("made/below/", b""), ("made/file", b"")):
            fs.call_s3("put_object", Bucket=s3_bucket, Key=key, Body=data)
        assert storage.sizes() == {"file": 0}

    def test_a_reader_s_write_is_refused(self, s3_server: S3Server, s3_bucket: str) -> None:
        storage = Storage(f"s3://{s3_bucket}/x", s3_server.as_reader().storage_options)
        storage.check_writable()
        with pytest.raises(StorageError, match=r"cannot write .* permission denied"):
            storage.write("a", b"")


def test_a_subfolder_keeps_options_and_retries() -> None:
    how = {"anon": True}, RetryPolicy(attempts=1)
    assert Storage("s3://bucket/a/", *how).folder("b") == Storage("s3://bucket/a/b", *how)


def test_other_object_stores_meet_the_same_contract() -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}/x")
    storage.write("a/b", BIG)
    storage.create("c", b"1")
    with pytest.raises(FileExistsError, match=r"there is a file .*/c already"):
        storage.create("c", b"2")
    with storage.open_output("d") as file:
        file.write(BIG)
        assert not storage.exists("d")
    assert storage.sizes() == {"a/b": len(BIG), "c": 1, "d": len(BIG)}
    assert storage.read("a/b") == storage.read("d") == BIG
    with storage.open_input("c") as file:
        assert file.read() == b"1"


class TestLocal:
    def test_exclusive_files_do_not_need_hard_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        storage = Storage(str(tmp_path))
        storage.create("a", b"1")
        with pytest.raises(FileExistsError):
            storage.create("a", b"2")
        assert storage.read("a") == b"1"
        assert storage.list() == ["a"]

    def test_a_failed_write_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="the disk is full; free space or choose another folder"):
            Storage(str(tmp_path)).write("a", b"1")
        assert list(tmp_path.iterdir()) == []

    def test_a_draft_that_cannot_be_removed_does_not_hide_the_original_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: Any, **options: Any) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(os, "replace", refuse)
        monkeypatch.setattr(os, "unlink", refuse)
        storage = Storage(str(tmp_path))
        with (
            pytest.raises(StorageError, match=r"cannot write .*/x: the file system is read-only"),
            storage.open_output("x") as file,
        ):
            file.write(b"1")

    def test_a_file_is_flushed_to_disk_as_it_grows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[tuple[int, int]] = []
        advise = os.posix_fadvise

        def watched(file: int, offset: int, length: int, advice: int) -> None:
            sent.append((offset, length))
            advise(file, offset, length, advice)

        monkeypatch.setattr(os, "posix_fadvise", watched)
        pieces = [np.random.default_rng(i).bytes(5 << 20) for i in range(7)]
        with Storage(str(tmp_path)).open_output("a") as file:
            file.write(pieces[0])
            file.writelines(pieces[1:4])
            for piece in pieces[4:]:
                file.write(piece)
        assert (tmp_path / "a").read_bytes() == b"".join(pieces)
        assert [offset for offset, _ in sent] == [0, *np.cumsum([length for _, length in sent])[:-1]]
        assert sum(length for _, length in sent) >= 27 << 20

    def test_urls_and_paths_name_the_same_folder(self, tmp_path: Path) -> None:
        assert Storage(f"file://{tmp_path}").local_path == Storage(str(tmp_path)).local_path == tmp_path
        assert Storage("s3://b/x").local_path is None
        assert Storage("s3://b/x/").locate("y") == "s3://b/x/y"


@pytest.mark.skipif(sys.platform != "linux", reason="no other system opens a file by its descriptor")
def test_the_spooled_file_for_an_object_store_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    storage = Storage(f"memory://{uuid.uuid4().hex}/x")
    with storage.open_output("a") as file:
        file.write(b"abc")
        assert list(tmp_path.iterdir()) == []
    assert storage.read("a") == b"abc"


def test_a_name_node_that_is_down_is_reported_at_once() -> None:
    with pytest.raises(StorageError, match=r"cannot reach hdfs://127.0.0.1:1/x: no NameNode answers"):
        Storage("hdfs://127.0.0.1:1/x").check_reachable()


def test_a_name_node_that_is_down_is_not_an_empty_folder() -> None:
    with pytest.raises(StorageError, match=r"cannot list hdfs://127\.0\.0\.1:1/d: the NameNode or a DataNode is down"):
        Storage("hdfs://127.0.0.1:1/d", retries=RetryPolicy(attempts=1)).list()


def test_a_name_node_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # the kernel accepts, and nobody ever reads
        url = f"hdfs://127.0.0.1:{server.getsockname()[1]}/x"
        policy = RetryPolicy(attempts=2, base_seconds=0.01)
        storage = Storage(url, {"ipc.client.rpc-timeout.ms": "300"}, retries=policy)
        started = time.monotonic()
        told = rf"{url}.*the NameNode takes the connection .*stopped, overloaded"
        for call in (lambda: storage.read("a"), storage.list, lambda: storage.write("a", b"1"), storage.absent_folders):
            with pytest.raises(StorageError, match=told) as raised:
                call()
            assert str(raised.value.__cause__) == "no answer within 0.3 s"
        assert time.monotonic() - started < 30  # which one attempt takes by default


@pytest.mark.parametrize("mark", ["#2", "?2", ";2", "\n2", "%232"])
def test_hdfs_names_keep_characters_special_in_urls(hdfs_server: HdfsServer, mark: str) -> None:
    url = f"{hdfs_server.url}/tests/{uuid.uuid4().hex}"
    Storage(f"{url}{mark}").write(f"a{mark}", b"1")
    Storage(f"{url}{mark}").move(f"a{mark}", f"b{mark}")
    assert Storage(url).list() == []
    assert Storage(f"{url}{mark}").sizes() == {f"b{mark}": 1}
    assert Storage(f"{url}{mark}").read(f"b{mark}") == b"1"


def test_an_unknown_protocol_is_one_clear_error() -> None:
    with pytest.raises(StorageError, match="cannot open nosuch://x: no file system is called 'nosuch'; name a path"):
        Storage("nosuch://x").read("a")


@pytest.mark.parametrize("protocol", ["file:", "file://", "FILE://"])
def test_a_local_folder_may_be_given_as_a_url(tmp_path: Path, protocol: str) -> None:
    Storage(f"{protocol}{tmp_path}/x").write("a", b"1")
    assert Storage(f"{tmp_path}/x").read("a") == b"1"
    assert Storage(f"{protocol}{tmp_path}/x").list() == ["a"]


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3a://"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    for call in (Storage(url).list, Storage(url).check_writable, lambda: Storage(url).read("a")):
        with pytest.raises(ConfigError, match=rf"^{url} names no bucket; name one, as in s3a?://bucket/path"):
            call()


def test_the_error_for_a_read_only_store_names_writable_ones() -> None:
    for call in (Storage("http://localhost:1/x").write, Storage("http://localhost:1/x").create):
        with pytest.raises(
            StorageError, match=r"cannot write http://localhost:1/x/a: nothing can be .* local disk, S3"
        ):
            call("a", b"")


def test_passwords_are_left_out_of_public_urls() -> None:
    assert public_url("ftp://me:pass@host:21/x:y@z") == "ftp://me@host:21/x:y@z"
    assert public_url("hdfs://host:8020/a@b") == "hdfs://host:8020/a@b"
    assert public_url("/data/a:b@c") == "/data/a:b@c"


def test_signatures_are_left_out_of_public_urls() -> None:
    assert public_url("https://host/a.csv?X-Amz-Signature=1&b=2") == "https://host/a.csv"
    assert public_url("zip://x.csv::http://host/a.zip?sig=1") == "zip://x.csv::http://host/a.zip"
    assert public_url("simplecache::http://host/a.csv?sig=1") == "simplecache::http://host/a.csv"
    assert public_url("s3://bucket/a?b.csv") == "s3://bucket/a?b.csv"


def test_a_file_is_created_although_another_process_removes_its_folder_while_it_is_empty(tmp_path: Path) -> None:
    folder, removed = tmp_path / "a/b", []

    def create() -> int:
        if len(removed) < 3:
            removed.append(folder.rmdir())
        return (folder / "file").write_bytes(b"x")

    assert create_in_folder(folder, create) == 1
    assert len(removed) == 3
