"""One contract for local disk, S3 and HDFS; what is stored is looked at past the code under test."""

import os
from pathlib import Path

import pytest

from ringfeed.sharding import StorageError
from ringfeed.sharding.storage import Storage, public_url
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

BIG = bytes(range(256)) * 4096 * 7  # 7 MiB: several parts of a multipart upload


class TestEveryStore:
    def test_what_is_written_is_there_whole_and_alone(self, store: Store) -> None:
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

    def test_files_are_found_moved_and_removed(self, store: Store) -> None:
        storage = Storage(store.url)
        store.write_bytes("x", b"1")
        assert storage.exists("x")
        storage.move("x", "y")
        assert not storage.exists("x")
        assert store.list() == ["y"]
        storage.remove("y")
        storage.remove("y")
        assert storage.list() == store.list() == []

    def test_another_program_s_writes_are_seen_at_once(self, store: Store) -> None:
        storage = Storage(store.url)
        assert storage.list() == []
        assert not storage.exists("x")
        store.write_bytes("x", b"1")
        assert storage.exists("x")
        assert storage.list() == ["x"]

    def test_a_missing_file_is_file_not_found(self, store: Store) -> None:
        for read in (Storage(store.url).read, Storage(store.url).map):
            with pytest.raises(FileNotFoundError, match=f"there is no file {store.url}/missing"):
                read("missing")

    def test_a_missing_folder_lists_as_empty(self, store: Store) -> None:
        assert Storage(store.url + "/missing").list() == []

    def test_folders_that_were_absent_are_removed_again_if_empty(self, store: Store) -> None:
        storage = Storage(store.url + "/deep/er")
        absent = storage.absent_folders()
        storage.write("x", b"1")
        storage.remove_folders(absent)
        assert store.list() == ["deep/er/x"]
        storage.remove("x")
        storage.remove_folders(absent)
        assert storage.absent_folders() == absent
        assert Storage(store.url).absent_folders() == ()

    def test_a_reachable_folder_passes_the_checks(self, store: Store) -> None:
        Storage(store.url).check_reachable()
        Storage(store.url).check_writable()


class TestS3:
    def test_wrong_credentials_say_what_to_check(self, s3_server: S3Server, s3_bucket: str) -> None:
        storage = Storage(f"s3://{s3_bucket}/x", s3_server.as_stranger().storage_options)
        for attempt in (storage.check_writable, lambda: storage.read("a"), lambda: storage.write("a", b"")):
            with pytest.raises(StorageError, match=r"permission denied; check AWS_ACCESS_KEY_ID"):
                attempt()

    def test_a_missing_bucket_is_named(self, s3_server: S3Server) -> None:
        with pytest.raises(StorageError, match="s3://no-such-bucket-1/x: the bucket does not exist"):
            Storage("s3://no-such-bucket-1/x", s3_server.storage_options).check_writable()

    def test_a_reader_s_write_is_refused(self, s3_server: S3Server, s3_bucket: str) -> None:
        storage = Storage(f"s3://{s3_bucket}/x", s3_server.as_reader().storage_options)
        storage.check_writable()
        with pytest.raises(StorageError, match=r"cannot write .* permission denied"):
            storage.write("a", b"")


class TestLocal:
    def test_a_failed_write_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match="No space left on device"):
            Storage(str(tmp_path)).write("a", b"1")
        assert list(tmp_path.iterdir()) == []

    def test_urls_and_paths_are_the_same_place(self, tmp_path: Path) -> None:
        assert Storage(f"file://{tmp_path}").local_path == Storage(str(tmp_path)).local_path == tmp_path
        assert Storage("s3://b/x").local_path is None
        assert Storage("s3://b/x/").locate("y") == "s3://b/x/y"


def test_a_name_node_that_is_down_is_told_at_once() -> None:
    with pytest.raises(StorageError, match=r"cannot reach hdfs://127.0.0.1:1/x: ConnectionRefusedError"):
        Storage("hdfs://127.0.0.1:1/x").check_reachable()


def test_an_unknown_protocol_is_one_clear_error() -> None:
    with pytest.raises(StorageError, match="cannot open nosuch://x"):
        Storage("nosuch://x").read("a")


def test_passwords_are_left_out_of_public_urls() -> None:
    assert public_url("ftp://me:pass@host:21/x:y@z") == "ftp://me@host:21/x:y@z"
    assert public_url("hdfs://host:8020/a@b") == "hdfs://host:8020/a@b"
    assert public_url("/data/a:b@c") == "/data/a:b@c"
