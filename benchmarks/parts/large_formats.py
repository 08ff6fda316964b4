"""How each reader of the table "large records" stores them and reads them, and the process that it does so in.

Each rival runs in an environment of its own (rivals.txt), so nothing is imported at the top that not all of them have.
Workers of PyTorch's `DataLoader` send a batch as one tensor, in shared memory, which is the fastest way.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from .cold_files import drop, read

RECORDS, RECORD_BYTES, BATCH, FILES = 8_000, 114_660, 400, 64
BUFFER = 1024  # records of a shuffle buffer
MOST_KEPT = 0.03  # largest share of the files that may stay in the page cache: some readers keep their last file mapped
CORES = os.cpu_count() or 1
EPOCH_BYTES = RECORDS // BATCH * BATCH * RECORD_BYTES

Epoch = Iterable[int]
"""The bytes of each batch, once the batch is there."""
Epochs = Iterator[Epoch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """A reader of large records.

    Attributes:
        environment: its environment in rivals.txt; "" is the one that runs.
        write: stores the records in a folder; None: it reads the shards of ringfeed.
        epochs: opens the folder, and returns its epochs.
        heats: how it is measured; not cold if its files stay cached while it lives, or if it reads ahead of an epoch.
    """

    environment: str
    write: Callable[[Path], None] | None
    epochs: Callable[[Path], Epochs]
    heats: Sequence[str] = ("cold", "warm")


def large_records(records: int = RECORDS, size: int = RECORD_BYTES) -> Iterator[dict[str, Any]]:
    """Records of random bytes, with a label of ten classes."""
    noise = os.urandom(size + RECORDS)
    for number in range(records):
        start = number % RECORDS
        yield {"image": noise[start : start + size], "label": number % 10}


def _shards(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.tfrecord")))


def _read_plain(folder: Path) -> Epochs:
    def epoch() -> Epoch:
        read(_shards(folder))
        yield EPOCH_BYTES

    while True:
        yield epoch()


def _read_ringfeed(folder: Path) -> Epochs:
    import tensorflow as tf

    from ringfeed.pipeline import Loader

    loader = Loader(str(folder), batch_size=BATCH, seed=1)
    for number in range(sys.maxsize):
        yield (int(tf.reduce_sum(tf.strings.length(batch["image"]))) for batch in loader.epoch(number))


def _read_ringfeed_numpy(folder: Path) -> Epochs:
    from ringfeed.pipeline import Loader

    loader = Loader(str(folder), batch_size=BATCH, seed=1)
    for number in range(sys.maxsize):
        yield (_bytes(batch["image"]) for batch in loader.numpy_epoch(number))


def _read_tensorflow(folder: Path) -> Epochs:
    import tensorflow as tf

    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    files = _shards(folder)
    dataset = (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files))
        .interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
        .shuffle(BUFFER)
        .batch(BATCH, drop_remainder=True)
        .map(lambda examples: tf.io.parse_example(examples, spec), num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )
    while True:
        yield (int(tf.reduce_sum(tf.strings.length(batch["image"]))) for batch in dataset)


def _write_arrow(folder: Path) -> None:
    from datasets import Dataset, Features, Value

    features = Features({"image": Value("binary"), "label": Value("int64")})
    dataset = Dataset.from_generator(large_records, features=features, cache_dir=str(folder / "cache"))
    dataset.save_to_disk(str(folder / "data"), num_shards=FILES)
    for path in (folder / "cache").rglob("*.arrow"):
        path.unlink()


def _read_arrow(folder: Path, workers: int) -> Epochs:
    from datasets import load_from_disk
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    dataset = load_from_disk(str(folder / "data"))
    order = BatchSampler(RandomSampler(dataset), BATCH, drop_last=True)
    if not workers:
        while True:
            yield (_bytes(dataset[rows]["image"]) for rows in order)
    loader = DataLoader(
        dataset,
        sampler=order,
        batch_size=None,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=_joined_columns,
    )
    while True:
        yield (batch.nbytes for batch, _ in loader)


def _write_lit(folder: Path) -> None:
    from litdata import optimize

    optimize(_lit_sample, list(range(RECORDS)), str(folder / "data"), chunk_bytes="16MB", num_workers=CORES)


def _lit_sample(number: int) -> dict[str, Any]:
    return {"image": os.urandom(RECORD_BYTES), "label": number % 10}


def _read_lit(folder: Path) -> Epochs:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder / "data"), shuffle=True, drop_last=True)
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH, num_workers=CORES, drop_last=True, persistent_workers=True, collate_fn=_joined
    )
    while True:
        yield (batch.nbytes for batch, _ in loader)


def _write_mds(folder: Path) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int64"}
    with MDSWriter(out=str(folder / "data"), columns=columns, size_limit="16mb") as out:
        for record in large_records():
            out.write(record)


def _read_mds(folder: Path) -> Epochs:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=str(folder / "data"), shuffle=True, batch_size=BATCH)
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=CORES, drop_last=True, persistent_workers=True, collate_fn=_joined
    )
    while True:
        yield (batch.nbytes for batch, _ in loader)


def _write_tar(folder: Path) -> None:
    import webdataset as wds

    with wds.ShardWriter(str(folder / "%02d.tar"), maxcount=RECORDS // FILES, verbose=0) as out:
        for number, record in enumerate(large_records()):
            out.write({"__key__": f"{number:06}", "image.bin": record["image"], "label.cls": record["label"]})


def _read_tar(folder: Path) -> Epochs:
    import webdataset as wds

    dataset = (
        wds.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=FILES)
        .shuffle(BUFFER)
        .map(lambda sample: {"image": sample["image.bin"], "label": int(sample["label.cls"])})
        .batched(BATCH, partial=True, collation_fn=_joined)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=CORES, persistent_workers=True)
    while True:
        yield (batch.nbytes for batch, _ in loader)


def _write_records(folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    numbered = enumerate(large_records())
    for number in range(FILES):
        writer = ArrayRecordWriter(str(folder / f"{number:02}.array_record"), "group_size:1")
        for _, (_, record) in zip(range(RECORDS // FILES), numbered, strict=False):
            writer.write(record["image"] + record["label"].to_bytes(8, "little"))
        writer.close()


def _joined_records(records: Iterable[bytes]) -> Any:
    import numpy as np

    return np.frombuffer(b"".join(records), np.uint8).reshape(BATCH, -1)


def _read_records(folder: Path) -> Epochs:
    import grain

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
    dataset = grain.MapDataset.source(source).shuffle(seed=1)
    dataset = dataset.batch(BATCH, drop_remainder=True, batch_fn=_joined_records)
    steps = len(dataset)
    # Repeated, so that the workers live on. What they read ahead is of the next epoch, so it is not much of one.
    ahead = grain.ReadOptions(num_threads=16, prefetch_buffer_size=1)
    workers = grain.MultiprocessingOptions(num_workers=CORES, per_worker_buffer_size=1)
    batches = iter(dataset.repeat().to_iter_dataset(ahead).mp_prefetch(workers))
    while True:
        yield (next(batches).nbytes - 8 * BATCH for _ in range(steps))


def _write_files(folder: Path) -> None:
    for number, record in enumerate(large_records()):
        place = folder / str(record["label"])
        place.mkdir(exist_ok=True)
        (place / f"{number:06}.bin").write_bytes(record["image"])


class _FileRecords:
    """A map-style dataset of a file for each record, in a folder for each class."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(map(str, folder.glob("*/*.bin")))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> dict[str, Any]:
        path = self._paths[number]
        with open(path, "rb", buffering=0) as file:
            return {"image": file.read(), "label": int(Path(path).parent.name)}


def _read_files(folder: Path) -> Epochs:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        _FileRecords(folder), batch_size=BATCH, shuffle=True, num_workers=CORES, drop_last=True,
        persistent_workers=True, collate_fn=_joined,
    )  # fmt: skip
    while True:
        yield (batch.nbytes for batch, _ in loader)


def _joined(samples: Sequence[dict[str, Any]]) -> Any:
    """A batch as a tensor of all bytes and one of labels."""
    return _joined_columns({name: [sample[name] for sample in samples] for name in ("image", "label")})


def _joined_columns(columns: dict[str, list[Any]]) -> Any:
    import torch

    return torch.frombuffer(bytearray().join(columns["image"]), dtype=torch.uint8), torch.tensor(columns["label"])


def _bytes(values: Iterable[bytes]) -> int:
    return sum(map(len, values))


READERS = {
    "plain read": Reader(environment="", write=None, epochs=_read_plain),
    "Loader.epoch": Reader(environment="", write=None, epochs=_read_ringfeed),
    "Loader.numpy_epoch": Reader(environment="", write=None, epochs=_read_ringfeed_numpy),
    "tf.data": Reader(environment="", write=None, epochs=_read_tensorflow),
    "Hugging Face datasets": Reader(environment="main", write=_write_arrow, epochs=partial(_read_arrow, workers=0)),
    "Hugging Face datasets, workers": Reader(
        environment="main", write=_write_arrow, epochs=partial(_read_arrow, workers=CORES)
    ),
    "PyTorch, a file each": Reader(environment="main", write=_write_files, epochs=_read_files),
    "LitData": Reader(environment="main", write=_write_lit, epochs=_read_lit, heats=("warm",)),
    "Grain + ArrayRecord": Reader(environment="main", write=_write_records, epochs=_read_records, heats=("warm",)),
    "WebDataset": Reader(environment="main", write=_write_tar, epochs=_read_tar),
    "MosaicML Streaming": Reader(environment="mosaicml", write=_write_mds, epochs=_read_mds),
}


def _serve(name: str, folder: Path, answers: TextIO) -> None:
    """Store the records, and answer pairs of lines of standard input: ready for an epoch, cold or warm; its seconds."""
    reader = READERS[name]
    if reader.write is not None and not any(folder.iterdir()):
        reader.write(folder)
    files = [str(path) for path in folder.rglob("*") if path.is_file()]
    epochs = reader.epochs(folder)
    for line in sys.stdin:
        if line.strip() == "cold":
            try:
                drop(files, MOST_KEPT)
            except RuntimeError:  # they are mapped
                del epochs
                gc.collect()
                epochs = reader.epochs(folder)
                drop(files, MOST_KEPT)
        answers.write("ready\n")
        answers.flush()
        sys.stdin.readline()
        start, delivered = time.perf_counter(), 0
        for size in next(epochs):
            delivered += size
        seconds = time.perf_counter() - start
        if delivered < EPOCH_BYTES * 0.95:
            raise ValueError(f"{name} delivers {delivered:,} bytes of {EPOCH_BYTES:,}")
        answers.write(f"{seconds} {delivered}\n")
        answers.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    _serve(sys.argv[1], Path(sys.argv[2]), answers)
