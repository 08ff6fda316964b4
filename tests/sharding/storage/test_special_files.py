"""FIFOs, sockets, devices and bodies that never end, where files must be: refused, in one line and at once."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.pipeline import Loader
from ringfeed.sharding import (
    ConfigError,
    CorruptionError,
    RingfeedError,
    SourceError,
    StorageError,
    open_dataset,
    verify,
)
from ringfeed.sharding.prepare import read_features
from ringfeed.sharding.sources import open_source
from ringfeed.sharding.storage import http as web
from ringfeed.sharding.storage import streams
from ringfeed.sharding.storage.storage import Storage
from ringfeed.training.checkpoint.store import Checkpoint, CheckpointStore
from ringfeed.training.config.config_file import load_config
from tests.helpers.builds import built
from tests.servers.web import Behaviour, served

KINDS = ("fifo", "socket", "device", "link")


def plant(path: Path, kind: str) -> None:
    """Put a special file in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as name:
            folder = os.open(path.parent, os.O_RDONLY)
            name.bind(f"/proc/self/fd/{folder}/{path.name}")  # a longer path does not fit
            os.close(folder)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to("/dev/full")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("special")
    (folder / "x.csv").write_text("x,label\n" + "1,a\n2,b\n" * 20)
    built(str(folder / "x.csv"), folder / "out", label="label", shards=2)
    return folder / "out"


@pytest.fixture
def copied(dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(dataset, tmp_path / "out")


def told(error: type[Exception], call: Callable[[], object]) -> str:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, RingfeedError)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_special_files_are_refused_wherever_a_file_is_read(copied: Path, tmp_path: Path, kind: str) -> None:
    what = {"fifo": "a FIFO", "socket": "a socket"}.get(kind, "a device")
    for name in ("x.csv", "x.npy", "x.yaml", "step-1"):
        plant(tmp_path / name, kind)
    storage = Storage(str(tmp_path))
    for read in (storage.read, storage.map, lambda path: storage.open_input(path).__enter__()):
        assert f"step-1: it is {what}" in told(StorageError, lambda read=read: read("step-1"))
    assert f"x.csv: it is {what}" in told(StorageError, lambda: open_source(str(tmp_path / "x.csv"), None))
    assert f"x.npy: it is {what}" in told(StorageError, lambda: open_source(str(tmp_path / "x.npy"), None))
    assert f": it is {what}" in told(SourceError, lambda: open_source(str(tmp_path), None, "csv"))
    assert f": it is {what}" in told(SourceError, lambda: open_source(str(tmp_path / "*.csv"), None))
    assert f"x.yaml: it is {what}" in told(StorageError, lambda: read_features(tmp_path / "x.yaml"))
    assert f"x.yaml: it is {what}" in told(ConfigError, lambda: load_config(str(tmp_path / "x.yaml")))
    shard = open_dataset(str(copied)).shards[0]
    plant(copied / shard.path, kind)
    assert f"{shard.path}: it is {what}" in told(StorageError, lambda: verify(str(copied)))
    loader = Loader(str(copied), split="train", batch_size=4)
    assert f"{shard.path}: it is {what}" in told(StorageError, lambda: list(loader.numpy_epoch(0)))
    plant(copied / "_ringfeed" / "dataset.json", kind)
    for read in (open_dataset, verify):
        assert f"dataset.json: it is {what}" in told(StorageError, lambda read=read: read(str(copied)))
    store = CheckpointStore(str(tmp_path / "run"))
    store.save(Checkpoint(step=1, arrays={}))
    name = store.names()[0]
    plant(tmp_path / "run" / name, kind)
    assert f"{name} is damaged: it is {what}" in told(CorruptionError, store.newest)


def test_bodies_without_an_end_are_refused(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_UNSIZED_BYTES", 3 << 20)
    shard = open_dataset(str(copied)).shards[0]
    behaviour = Behaviour(endless=("dataset.json",))
    with served(copied.parent, behaviour=behaviour) as url:
        for read in (open_dataset, verify):
            assert "dataset.json: the server sends more than" in told(
                StorageError, lambda read=read: read(f"{url}/out")
            )
    with served(copied.parent, behaviour=Behaviour(endless=(shard.path,))) as url:
        (damage,) = verify(f"{url}/out")
        assert (damage.path, damage.kind) == (shard.path, "extended")
        assert "were written; the rest was not read" in damage.problem
        loader = Loader(f"{url}/out", split="train", batch_size=4)
        assert "the server sends more than" in told(StorageError, lambda: list(loader.numpy_epoch(0)))
    for name, content in (("x.csv", "x\n1\n"), ("x.txt", "0.png\n"), ("x.yaml", "a: 1\n")):
        (copied.parent / name).write_text(content)
    with served(copied.parent, behaviour=Behaviour(endless=(".csv", ".yaml"))) as url:
        monkeypatch.setattr(streams, "_UNSIZED_BYTES", 3 << 20)
        assert "without an end; check the URL" in told(StorageError, lambda: open_source(f"{url}/x.csv", None))
        assert "without an end; check the URL" in told(StorageError, lambda: read_features(f"{url}/x.yaml"))
        monkeypatch.setattr(streams, "_UNSIZED_BYTES", 64 << 20)
        assert "more than 16 MiB, so it is no file for --schema" in told(
            ConfigError, lambda: read_features(f"{url}/x.yaml")
        )
