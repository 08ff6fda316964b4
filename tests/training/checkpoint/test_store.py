"""Checkpoints: whole or invisible, verified byte by byte, never more than requested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from ringfeed.sharding.errors import CorruptionError, StorageError
from ringfeed.sharding.storage.atomic_files import draft_name
from ringfeed.training.checkpoint.store import Checkpoint, CheckpointStore, decode, encode
from tests.servers.store import Store

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


def _checkpoint(step: int) -> Checkpoint:
    return Checkpoint(step=step, arrays={"w": np.full(3, step, np.float64)}, state={"epoch": step // 10})


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
    CheckpointStore(store.url).check_writable()
    assert store.list() == []


def test_a_trial_leaves_no_folder_that_was_not_there(tmp_path: Path) -> None:
    CheckpointStore(str(tmp_path / "runs" / "1")).check_writable()
    assert list(tmp_path.iterdir()) == []


def test_a_trial_removes_what_a_killed_write_of_a_checkpoint_left(tmp_path: Path) -> None:
    whole = Path(CheckpointStore(str(tmp_path)).save(_checkpoint(5)))
    (tmp_path / draft_name(whole.name)).write_bytes(b"a half")
    other = tmp_path / draft_name("model.keras")
    other.touch()
    CheckpointStore(str(tmp_path)).check_writable()
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


def test_drafts_and_foreign_files_are_invisible(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    path = Path(store.save(_checkpoint(5)))
    (tmp_path / f".{path.name}.ab12.part").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "step-0000000099.safetensors").write_bytes(b"not ours")
    newest = store.newest()
    assert newest is not None
    assert newest.step == 5
