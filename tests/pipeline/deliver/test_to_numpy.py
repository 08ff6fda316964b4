"""NumPy batches equal TensorFlow's, also without TensorFlow installed, and hold the columns asked for."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader, Ragged
from ringfeed.pipeline.deliver import background_iterator
from ringfeed.pipeline.fetch.threads import start_thread
from ringfeed.sharding import BuildOptions, ConfigError, build
from tests.helpers import without_tensorflow
from tests.helpers.feature_tables import make_table, make_variable_table
from tests.helpers.without_tensorflow import BATCH_SIZE, EPOCH, SEED, START_STEP, digest, parts_of

Make = Callable[..., str]
KINDS = [(shard_format, variable) for shard_format in ("tfrecord", "parquet") for variable in (False, True)]
PROJECTIONS = [("double", "id"), ("matrix",), ("label", "flag", "large")]


def write(table: pa.Table, folder: Path, shard_format: str) -> str:
    pq.write_table(table, folder / "source.parquet")
    url = str(folder / shard_format)
    build(
        BuildOptions(
            source=str(folder / "source.parquet"), destination=url, label="label", shards=3, shard_format=shard_format
        )
    )
    return url


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], str]:
    """A dataset of each kind of record."""
    return {
        (shard_format, variable): write(
            (make_variable_table if variable else make_table)(), tmp_path_factory.mktemp("kinds"), shard_format
        )
        for shard_format, variable in KINDS
    }


def as_ragged(value: Any) -> Any:
    """A tensor as its array, or as `Ragged`."""
    if hasattr(value, "row_lengths"):
        return Ragged(value.values.numpy(), value.row_lengths().numpy())
    return value.numpy()


def same(first: Any, second: Any) -> bool:
    """Whether two values are equal in every bit, dtype and shape."""
    return digest(parts_of(first)) == digest(parts_of(second))


def test_every_kind_of_record_reads_the_same_without_tensorflow(datasets: dict[Any, str]) -> None:
    expected = {}
    for url in datasets.values():
        batches = Loader(url, batch_size=BATCH_SIZE, seed=SEED).epoch(EPOCH, START_STEP)
        expected[url] = [{name: digest(parts_of(as_ragged(value))) for name, value in b.items()} for b in batches]
    assert {len(batches) for batches in expected.values()} == {4}
    command = [sys.executable, without_tensorflow.__file__, *expected]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


def test_without_tensorflow_the_error_says_what_to_do(
    datasets: dict[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "ringfeed.pipeline.deliver.to_tensorflow", raising=False)
    loader = Loader(next(iter(datasets.values())), batch_size=12)
    with pytest.raises(ConfigError, match=r"pip install 'ringfeed\[cpu\]', or use numpy_epoch"):
        loader.epoch(0)


@pytest.mark.parametrize(("shard_format", "variable"), KINDS)
def test_a_projection_gives_the_same_values_of_fewer_columns(
    datasets: dict[Any, str], shard_format: str, variable: bool
) -> None:
    url = datasets[shard_format, variable]
    whole = list(Loader(url, batch_size=12).numpy_epoch(0))
    for columns in [*PROJECTIONS, *([("text", "doubles", "id"), ("raw", "ints")] * variable)]:
        loader = Loader(url, batch_size=12, columns=columns)
        assert loader.schema.names == columns
        for batch, part, tensors in zip(whole, loader.numpy_epoch(0), loader.epoch(0), strict=True):
            assert set(part) == set(tensors) == {*columns, "class_id"}
            for name, value in part.items():
                assert same(value, batch[name])
                assert same(value, as_ragged(tensors[name]))


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_missing_values_are_those_of_tensorflow(tmp_path: Path, shard_format: str) -> None:
    n = range(60)
    table = pa.table(
        {
            "number": pa.array([None if i % 7 == 0 else i / 3 for i in n], pa.float64()),
            "vector": pa.array([None if i % 5 == 0 else [i / 3, 1.0] for i in n], pa.list_(pa.float32(), 2)),
            "count": pa.array([None if i % 3 == 0 else i for i in n], pa.int32()),
            "word": pa.array([None if i % 4 == 0 else str(i) for i in n]),
            "list": pa.array([None if i % 2 == 0 else [i] * (i % 5) for i in n], pa.list_(pa.int64())),
            "label": pa.array([i % 2 for i in n]),
        }
    )
    url = write(table, tmp_path, shard_format)
    loader = Loader(url, batch_size=10, fill={"count": -1, "word": "?"}, remainder="pad")
    for tensors, batch in zip(loader.epoch(0), loader.numpy_epoch(0), strict=True):
        assert set(tensors) == set(batch)
        assert all(same(as_ragged(tensors[name]), value) for name, value in batch.items())
    assert list(Loader(url, batch_size=10, columns=["number", "list"]).numpy_epoch(0))  # nothing to fill


def test_arrays_are_the_callers_own_to_write_to(datasets: dict[Any, str]) -> None:
    for url in datasets.values():
        first, again = (list(Loader(url, batch_size=12).numpy_epoch(0)) for _ in range(2))
        for batch in first:
            for value in batch.values():
                for part in parts_of(value):
                    part[...] = part[::-1].copy()
        assert same(np.concatenate([b["id"][::-1] for b in first]), np.concatenate([b["id"] for b in again]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["vectr"], "columns: there is no column 'vectr'; did you mean 'vector'"),
        (["id", "id"], "columns: each column may be named once, got 'id' twice"),
        ([], "columns must be a list of at least one name"),
        ("id", "columns must be a list of at least one name, got 'id'"),
    ],
)
def test_impossible_columns_are_refused(make_dataset: Make, columns: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Loader(make_dataset(), batch_size=60, columns=columns)


def test_fewer_columns_take_less_memory(make_dataset: Make) -> None:
    for shard_format in ("tfrecord", "parquet"):
        url = make_dataset(shard_format=shard_format)
        sizes = []
        for columns in (None, ["id"], ["vector"]):
            chunks = [chunk for _, chunk in Loader(url, batch_size=60, columns=columns).chunks(0)]
            sizes.append(sum(values.nbytes for chunk in chunks for values in chunk.values()))
        assert sizes == [960 * (8 + 12 + 8 + 4), 960 * (8 + 4), 960 * (12 + 4)]  # with the class id


@pytest.mark.parametrize("prefetch_batches", [0, 1, 3])
@pytest.mark.parametrize("columns", [["image", "label"], ["image", "maybe", "label"]], ids=["located", "parsed"])
def test_of_large_records_no_more_are_copied_than_is_asked_for(
    tmp_path: Path, prefetch_batches: int, columns: list[str]
) -> None:
    size, batch = 8192, 6
    records = ({"image": bytes([i]) * size, "maybe": i if i % 2 else None, "label": i % 2} for i in range(120))
    build(source=records, destination=str(tmp_path / "data"), label="label", shards=2)
    loader = Loader(str(tmp_path / "data"), batch_size=batch, seed=1, columns=columns, fill={"maybe": -1})
    assert loader.locates_features == (columns == ["image", "label"])
    limit = prefetch_batches * batch * size
    batches = loader.numpy_epoch(0, prefetch_bytes=limit)
    first = next(batches)
    assert all(len(set(image)) == 1 and len(image) == size for image in first["image"])
    held = size if loader.locates_features else 3 * size  # with a record's frame and the columns it is parsed into
    assert loader.stats()["deliver"].bytes < limit + 2.5 * batch * held  # at most two batches more, of the 20
    batches.close()


def test_an_abandoned_iterator_leaves_no_thread_and_the_next_starts_afresh(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[threading.Thread] = []

    def start(function: Callable[[], None], name: str) -> threading.Thread:
        started.append(start_thread(function, name))
        return started[-1]

    monkeypatch.setattr(background_iterator, "start_thread", start)
    loader = Loader(make_dataset(), batch_size=60)
    batches = loader.numpy_epoch(0, prefetch_bytes=1)
    first = next(batches)
    assert len(started) >= 1
    del batches
    number = len(started)
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()
    assert len(started) == number
    assert loader.stats()["deliver"].queue_depth == 0
    assert same(next(loader.numpy_epoch(0))["id"], first["id"])
    with pytest.raises(ConfigError, match="steps 0 to 16, got epoch 0, start_step 17"):
        loader.numpy_epoch(0, 17)


@pytest.mark.parametrize("prefetch_bytes", [0, 1])
def test_an_iterator_ends_with_an_error_in_a_forked_process_and_another_begins(
    make_dataset: Make, prefetch_bytes: int
) -> None:
    script = """if True:
        import os, sys
        from ringfeed.pipeline import Loader
        from ringfeed.sharding import RingfeedError

        loader = Loader(sys.argv[1], batch_size=60)
        batches = loader.numpy_epoch(0, prefetch_bytes=int(sys.argv[2]))
        first = next(batches)
        child = os.fork()
        if not child:
            try:
                next(batches)
            except RingfeedError as error:
                print(error)
            print(next(loader.numpy_epoch(0))["id"].tolist() == first["id"].tolist(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(len(list(batches)))
    """
    command = [sys.executable, "-c", script, make_dataset(), str(prefetch_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    error, again, left = done.stdout.splitlines()
    assert "begun in the process that this one was forked from" in error
    assert "make one here" in error
    assert (again, left) == ("True", "15")


def test_a_forked_process_reads_despite_locks_held_in_its_parent(make_dataset: Make) -> None:
    script = """if True:
        import os, sys, threading
        import numpy as np
        from ringfeed.pipeline import Loader, MemoryCache
        from ringfeed.sharding.compute.class_counts import deferred_counts

        def hold(lock):
            with lock:
                held.release()
                going_on.wait()

        held, going_on, cache = threading.Semaphore(0), threading.Event(), MemoryCache()
        loader = Loader(sys.argv[1], batch_size=60, balance="uniform", cache=cache, on_bad_shard="quarantine")
        [counts] = deferred_counts(lambda: [(np.array([3, 5]), np.array([0, 2]))], 1)
        for owner in (cache, counts._deferred[0], loader._counters, loader._quarantine, loader._access):
            threading.Thread(target=hold, args=(owner._lock,)).start()
            held.acquire()
        child = os.fork()
        if not child:
            print(sum(1 for _ in loader.numpy_epoch(0)), len(loader.sample(7)), loader.state(0, 3)["step"], *counts)
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        going_on.set()
    """
    command = [sys.executable, "-c", script, make_dataset()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.split() == ["16", "4", "3", "3", "5"], done.stderr
