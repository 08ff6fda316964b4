"""Checkpoints: whole or invisible, verified byte by byte, never more than requested."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from ringfeed.sharding.errors import ConfigError, CorruptionError, DestinationError, StorageError
from ringfeed.sharding.storage.atomic_files import draft_name
from ringfeed.sharding.storage.fenced_storage import FencedStorage
from ringfeed.sharding.storage.lease import Lease
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.timings import StoreTimings
from ringfeed.training.checkpoint.store import Checkpoint, CheckpointStore, decode, encode
from tests.servers.proxy import Fault, proxied
from tests.servers.seaweedfs import S3Server
from tests.servers.store import Store

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "model/0000/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "optimizer/0000/iteration": np.array(7, np.int64),
    "seed": np.array([1, 2**32 - 1], np.uint32),
    "empty": np.zeros((0, 3), np.float16),
    "flag": np.array([True, False]),
    "half": np.array([[1.5, -2.0]], ml_dtypes.bfloat16),
    "bytes": np.array([0, 255], np.uint8),
    "wide": np.array(0.1),
}


def _checkpoint(step: int, run: str = "") -> Checkpoint:
    return Checkpoint(step=step, arrays={"w": np.full(3, step, np.float64)}, state={"epoch": step // 10}, run=run)


def test_every_array_is_restored_bit_by_bit() -> None:
    again = decode(encode(Checkpoint(step=12, arrays=ARRAYS, state={"history": [1.5, None, "ä"]})))
    assert again.step == 12
    assert again.state == {"history": [1.5, None, "ä"]}
    assert list(again.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (again.arrays[name].dtype, again.arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(again.arrays[name], array)


def test_the_bytes_follow_the_safetensors_layout() -> None:
    """Parsed by hand, after the description at huggingface.co/docs/safetensors, not by the code under test."""
    data = encode(Checkpoint(step=1, arrays={"w": np.array([1.0, 2.0], np.float32)}))
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header["w"] == {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert all(isinstance(value, str) for value in header["__metadata__"].values())
    assert data[8 + length :] == bytes.fromhex("0000803f00000040")


def test_the_history_of_a_long_run_fits() -> None:
    """The library takes no header of more than 100 MB, which is a history of some 280,000 entries."""
    state = {"epoch": 3, "history": {"steps": ["x" * 1_000_000] * 101}}
    again = decode(encode(Checkpoint(step=1, arrays={"w": np.zeros(2)}, state=state)))
    assert again.state == state
    assert list(again.arrays) == ["w"]


def test_a_history_in_the_header_is_read_too() -> None:
    """Earlier versions wrote it there."""
    metadata = {"step": "7", "state": json.dumps({"history": [1]}), "order": '["w"]'}
    again = decode(save({"w": np.arange(2.0)}, metadata))
    assert (again.step, again.state, list(again.arrays)) == (7, {"history": [1]}, ["w"])


def test_a_trial_leaves_nothing(store: Store) -> None:
    with CheckpointStore(store.url).hold(RUN):
        assert store.list() == ["_training.json"]
    assert store.list() == []


def test_a_trial_leaves_no_folder_that_was_not_there(tmp_path: Path) -> None:
    with CheckpointStore(str(tmp_path / "runs" / "1")).hold(RUN):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_trial_removes_what_a_killed_write_of_a_checkpoint_left(tmp_path: Path) -> None:
    whole = Path(CheckpointStore(str(tmp_path)).save(_checkpoint(5)))
    (tmp_path / draft_name(whole.name)).write_bytes(b"a half")
    other = tmp_path / draft_name("model.keras")
    other.touch()
    (tmp_path / draft_name("_training.json")).touch()
    with CheckpointStore(str(tmp_path)).hold(RUN):
        pass
    assert set(tmp_path.iterdir()) == {whole, other}


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_keeps_the_newest_and_reads_the_last(tmp_path: Path, keep: int) -> None:
    store = CheckpointStore(str(tmp_path / "run"), keep=keep)
    assert store.newest() is None
    for step in (5, 10, 15, 200):
        store.save(_checkpoint(step))
    assert [int(name[5:15]) for name in store.names()] == [5, 10, 15, 200][-keep:]
    newest = store.newest()
    assert newest is not None
    assert newest.step == 200
    assert newest.state == {"epoch": 20}


def test_saving_the_same_step_again_keeps_it() -> None:
    store = CheckpointStore("memory://ringfeed-test-checkpoint", keep=1)
    store.save(_checkpoint(5))
    store.save(_checkpoint(5))
    newest = store.newest()
    assert newest is not None
    assert newest.step == 5


def test_the_best_are_kept_beside_the_newest_and_can_be_read(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), keep=2)
    for step in (5, 10, 15, 20):
        store.save(_checkpoint(step), best_steps={5, 20})
    assert [int(name[5:15]) for name in store.names()] == [5, 15, 20]
    np.testing.assert_array_equal(store.of_step(5).arrays["w"], np.full(3, 5.0))
    with pytest.raises(StorageError, match="there is no checkpoint of step 10 in "):
        store.of_step(10)


@pytest.mark.parametrize("damage", ["flip first", "flip last", "cut", "append", "empty"])
def test_any_damage_is_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(str(tmp_path), keep=3)
    store.save(_checkpoint(5))
    path = Path(store.save(_checkpoint(10)))
    data = path.read_bytes()
    changed = {
        "flip first": bytes([data[0] ^ 1]) + data[1:],
        "flip last": data[:-1] + bytes([data[-1] ^ 128]),
        "cut": data[:-1],
        "append": data + b"\0",
        "empty": b"",
    }[damage]
    path.write_bytes(changed)
    with pytest.raises(CorruptionError, match=path.name):
        store.newest()


def test_on_request_the_previous_checkpoint_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(str(tmp_path), on_damage="previous")
    first = Path(store.save(_checkpoint(5)))
    second = Path(store.save(_checkpoint(10)))
    second.write_bytes(b"")
    newest = store.newest()
    assert newest is not None
    assert newest.step == 5
    assert second.name in caplog.text
    first.write_bytes(b"")
    with pytest.raises(CorruptionError):
        store.newest()


@pytest.mark.parametrize("step", [7, 10])
def test_checkpoints_skipped_as_damaged_are_removed_by_the_next_save(tmp_path: Path, step: int) -> None:
    store = CheckpointStore(str(tmp_path), keep=2, on_damage="previous")
    first, damaged = (Path(store.save(_checkpoint(done))) for done in (5, 10))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    again = CheckpointStore(str(tmp_path), keep=2)
    other = Checkpoint(step=step, arrays={"w": np.full(2, 7.0)})
    assert {path.name for path in tmp_path.iterdir()} == {first.name, damaged.name}
    second = Path(again.save(other))
    assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name}
    newest = again.newest()
    assert newest is not None
    assert newest.step == step


@pytest.mark.parametrize("kind", ["dangling link", "folder", "full folder", "link to a folder", "FIFO", "loop"])
def test_what_is_no_file_in_the_place_of_the_newest_is_damage(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = CheckpointStore(str(tmp_path), on_damage="previous", keep=2)
    for step in (5, 10):
        path = Path(store.save(_checkpoint(step)))
    path.unlink()
    if kind == "dangling link":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "FIFO":
        os.mkfifo(path)
    elif kind == "link to a folder":
        path.symlink_to(tmp_path)
    else:
        path.mkdir()
        if kind == "full folder":
            (path / "own.txt").touch()
    with pytest.raises(CorruptionError, match=f"checkpoint .*{path.name} is damaged: it is .*; remove it, or set "):
        CheckpointStore(str(tmp_path)).newest()
    newest = store.newest()
    assert newest is not None
    assert newest.step == 5
    assert path.name in caplog.text
    for step in (10, 15, 20):  # the run goes on; what is no file of its own stays
        store.save(Checkpoint(step=step, arrays={"w": np.full(2, 7.0)}))  # under another name, as at another time
    assert path.exists() == (kind in ("folder", "full folder"))
    newest = store.newest()
    assert newest is not None
    assert newest.step == 20


def test_a_run_removes_and_reads_its_own_checkpoints_alone(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), keep=1)
    theirs = Path(store.save(_checkpoint(10, OTHER)))
    for step in (5, 10, 15):
        own = Path(store.save(_checkpoint(step, RUN)))
    assert set(tmp_path.iterdir()) == {theirs, own}
    assert store.of_step(15, RUN).run == RUN
    with pytest.raises(StorageError, match="there is no checkpoint of step 10 in "):
        store.of_step(10, RUN)
    with pytest.raises(ConfigError, match=rf"holds checkpoints of 2 runs \({RUN}, {OTHER}\): move all but "):
        store.newest()
    with pytest.raises(ConfigError, match=f"holds checkpoints of another run \\({OTHER}\\)"), store.hold(RUN):
        pass
    theirs.unlink()
    newest = store.newest()
    assert newest is not None
    assert (newest.step, newest.run) == (15, RUN)


def test_checkpoints_of_earlier_versions_have_no_run_and_belong_to_the_one_that_resumes(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), keep=2)
    for step in (5, 10):
        earlier = Path(store.save(_checkpoint(step)))
    with store.hold(RUN):
        own = Path(store.save(_checkpoint(15, RUN)))
        assert {path for path in tmp_path.iterdir() if path.suffix != ".json"} == {earlier, own}
    np.testing.assert_array_equal(store.of_step(10, RUN).arrays["w"], np.full(3, 10.0))


def test_a_checkpoint_under_the_name_of_another_run_is_damage(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    path = Path(store.save(_checkpoint(5, RUN)))
    path.rename(path.with_name(path.name.replace(RUN, OTHER)))
    with pytest.raises(CorruptionError, match=f"it is of step 5 of run '{RUN}'"):
        store.newest()


def test_one_process_at_a_time_writes(store: Store) -> None:
    first, second = CheckpointStore(store.url), CheckpointStore(store.url)
    mine = rf"another run is writing to .* \(process {os.getpid()} on .*\); .*, or set another checkpoint.url"
    with first.hold(RUN):
        first.save(_checkpoint(5, RUN))
        for run in (RUN, OTHER):
            with pytest.raises(DestinationError, match=mine), second.hold(run, leaving_seconds=0.3):
                pass
        with pytest.raises(DestinationError, match=mine):
            second.check_free()
        held = json.loads(store.read_bytes("_training.json"))
        store.write_bytes("_training.json", json.dumps(held | {"token": "another"}).encode())
        lease = first._storage
        assert isinstance(lease, FencedStorage)
        assert isinstance(lease.fence, Lease)
        with pytest.raises(DestinationError, match="was taken over by another process"):
            lease.fence.check()
        with pytest.raises(DestinationError, match="was taken over by another process"):
            first.save(_checkpoint(10, RUN))
    assert [name for name in store.list() if name.startswith("step")] == first.names()
    assert len(first.names()) == 1
    second.check_free()


def test_a_rank_that_leaves_its_place_is_waited_for(tmp_path: Path) -> None:
    first, second, ended = CheckpointStore(str(tmp_path)), CheckpointStore(str(tmp_path)), threading.Event()

    def hold() -> None:
        with first.hold(RUN):
            ended.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    while not (tmp_path / "_training.json").exists():
        time.sleep(0.01)
    threading.Timer(0.5, ended.set).start()
    with second.hold(RUN):
        assert not thread.is_alive() or ended.is_set()
    thread.join()


def test_a_killed_holder_is_replaced_at_once_and_leaves_nothing(store: Store) -> None:
    hold = f"""
import os, signal, sys
from ringfeed.training.checkpoint.store import CheckpointStore
with CheckpointStore(sys.argv[1]).hold("{OTHER}"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", hold, store.url], env={**os.environ, **store.env}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert store.list() == ["_training.json"]
    with CheckpointStore(store.url).hold(RUN):
        pass
    assert store.list() == []


def test_a_listing_answered_404_is_no_empty_folder(s3_server: S3Server, s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/run"
    with proxied(s3_server.endpoint_url) as proxy:
        store = CheckpointStore(url)
        store._storage = Storage(url, replace(s3_server, endpoint_url=proxy.url).storage_options)
        store.save(_checkpoint(5))
        proxy.begin(Fault(kind="reply", method="GET", path="list-type=2", status=404, code="NoSuchKey", times=99))
        with pytest.raises(StorageError, match=f"cannot list {url}"):
            store.newest()
        proxy.begin()
        assert store.newest() is not None


def test_a_store_that_refuses_removals_is_left_as_it_was(s3_server: S3Server, s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/{uuid.uuid4().hex}"
    with proxied(s3_server.endpoint_url) as proxy:
        store = CheckpointStore(url)
        store._storage = Storage(url, replace(s3_server, endpoint_url=proxy.url).storage_options)
        proxy.begin(Fault(kind="reply", method="DELETE", status=403, code="AccessDenied", times=99))
        with pytest.raises(StorageError, match="permission denied"), store.hold(RUN):
            pass
        assert Storage(url, s3_server.storage_options).list() == []


def test_drafts_and_foreign_files_are_invisible(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    path = Path(store.save(_checkpoint(5)))
    (tmp_path / f".{path.name}.ab12.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "step-0000000099.safetensors").write_bytes(b"not ours")
    newest = store.newest()
    assert newest is not None
    assert newest.step == 5


def test_a_long_history_is_encoded_in_little_more_memory_than_its_text() -> None:
    entry = {f"metric {number}": number / 7 for number in range(16)}
    history = {"steps": [entry] * 2000, "evaluations": [entry], "skipped_steps": 0, "trackers": {"b": [1], "a": None}}
    text = json.dumps(history, sort_keys=True)
    checkpoint = Checkpoint(step=1, arrays={"w": np.zeros(2)}, state={"history": history})
    encode(checkpoint)
    tracemalloc.start()
    try:
        data = encode(checkpoint)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text.encode() in data
    assert peak < 4 * len(text)


def test_a_rank_on_a_host_that_is_silent_is_waited_for_until_it_is_lost(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path), timings=StoreTimings(silent_seconds=0.3))
    lease = tmp_path / "_training.json"
    with store.hold(RUN):
        held = json.loads(lease.read_text())
    lease.write_text(json.dumps(held | {"host": "lost", "token": "lost"}))
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(DestinationError, match=r"the wait for .* was given up"), store.hold(RUN, given_up):
        pass
    with store.hold(RUN):
        store.save(_checkpoint(5, RUN))
        assert json.loads(lease.read_text())["token"] not in ("lost", held["token"])
    assert not lease.exists()
