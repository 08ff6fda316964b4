"""Drafts and uploads of a file: those of killed writers go with the next write, those of living ones stay."""

import subprocess
import sys

import fsspec
import pytest

from ringfeed.sharding.destination.held_file import write_held_file
from ringfeed.sharding.storage.storage import Storage
from tests.helpers.lean import lean_environment
from tests.servers.store import Store

_BYTES = {"local": 1 << 10, "s3": (64 << 20) + 1, "hdfs": 1 << 10}  # to S3 in several requests
_WRITER = """
import os, signal, sys
from ringfeed.sharding.destination.held_file import write_held_file
from ringfeed.sharding.storage.storage import Storage

def halting(self, path, **how):
    draft = open_draft(self, path, **how)
    if path == "model":
        commit = draft.commit
        draft.commit = lambda **exclusive: (halt(), commit(**exclusive))
    return draft

def halt():
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    print(flush=True)
    sys.stdin.read()

open_draft, Storage._draft = Storage._draft, halting
write_held_file(Storage(sys.argv[1]), "model", b"2" * int(sys.argv[3]))
"""


def _writer(store: Store, how: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, store.url, how, str(_BYTES[store.name])],
        env=lean_environment(store.env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _entries(store: Store) -> list[str]:
    """Everything in a folder: files, folders and uploads. SeaweedFS keeps the folders of removed objects."""
    if store.name == "s3":
        return store.list() + [path for path, _ in Storage(store.url).uploads()]
    fs, root = fsspec.core.url_to_fs(store.url)
    return sorted(each["name"].rstrip("/").rpartition("/")[2] for each in fs.ls(root, detail=True))


def test_what_killed_writers_left_goes_with_the_next_write(store: Store) -> None:
    store.write_bytes("other", b"")
    store.write_bytes(".other.0123abcd.part", b"")
    for _ in range(2):
        with _writer(store, "die") as dying:
            assert dying.wait(120) == -9
    assert len(_entries(store)) > 2
    write_held_file(Storage(store.url), "model", b"1" * _BYTES[store.name])
    assert _entries(store) == [".other.0123abcd.part", "model", "other"]
    assert store.read_bytes("model") == b"1" * _BYTES[store.name]


def test_a_living_writer_is_not_harmed(store: Store) -> None:
    with _writer(store, "live") as living:
        assert living.stdout is not None
        living.stdout.readline()
        before = _entries(store)
        write_held_file(Storage(store.url), "model", b"1" * _BYTES[store.name])
        assert _entries(store) == sorted([*before, "model"])
        living.communicate(timeout=120)
    assert living.returncode == 0
    assert _entries(store) == ["model"]
    assert store.read_bytes("model") == b"2" * _BYTES[store.name]


@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_a_small_object_is_one_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Storage, "create", lambda *_: pytest.fail("a lease"))
    write_held_file(Storage(store.url), "model", b"1")
    assert _entries(store) == ["model"]
