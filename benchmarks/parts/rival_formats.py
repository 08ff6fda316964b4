"""How each rival writes the table and reads it, in the way its documentation recommends; and the process it does so in.

Each runs in an environment of its own, so nothing is imported at the top that not all of them have.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Batch = tuple[np.ndarray, np.ndarray]
Epochs = Iterator[Iterable[Batch]]

BATCH, WIDTH, FILES, BUFFER = 1024, 32, 16, 10_000
CORES = os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A reader: its environment in rivals.txt ("" is the one that runs), how it writes the table, and its epochs."""

    environment: str
    write: Callable[[Path, Path], None]
    epochs: Callable[[Path], Epochs]


def _table(source: Path) -> Batch:
    table = pq.read_table(source).combine_chunks()
    features = table["features"].chunk(0).flatten().to_numpy()
    return features.reshape(-1, WIDTH), table["label"].to_numpy()


def _samples(source: Path) -> Iterator[tuple[np.ndarray, int]]:
    features, labels = _table(source)
    yield from zip(features, labels.tolist(), strict=True)


def _write_parquet(source: Path, folder: Path) -> None:
    # Of fixed-size lists Petastorm knows nothing; it stacks lists that are of one length.
    features, labels = _table(source)
    ends = pa.array(np.arange(len(labels) + 1, dtype=np.int32) * WIDTH)
    table = pa.table({"features": pa.ListArray.from_arrays(ends, features.ravel()), "label": labels})
    rows = -(-len(table) // FILES)
    for number in range(FILES):
        pq.write_table(table.slice(number * rows, rows), folder / f"{number:02}.parquet", row_group_size=rows)


def _write_ringfeed(source: Path, folder: Path) -> None:
    from ringfeed.sharding import BuildOptions, build

    build(BuildOptions(source=str(source), destination=str(folder / "data"), label="label", shards=FILES))


def _ringfeed_numpy(folder: Path) -> Epochs:
    from ringfeed.pipeline import Loader

    loader = Loader(str(folder / "data"), batch_size=BATCH, seed=1)
    for epoch in range(sys.maxsize):
        yield ((batch["features"], batch["label"]) for batch in loader.numpy_epoch(epoch))


def _ringfeed_tensorflow(folder: Path) -> Epochs:
    from ringfeed.pipeline import Loader

    loader = Loader(str(folder / "data"), batch_size=BATCH, seed=1)
    for epoch in range(sys.maxsize):
        yield ((batch["features"], batch["label"]) for batch in loader.epoch(epoch).as_numpy_iterator())


def _write_mds(source: Path, folder: Path) -> None:
    from streaming import MDSWriter

    columns = {"features": f"ndarray:float32:{WIDTH}", "label": "int64"}
    with MDSWriter(out=str(folder / "data"), columns=columns, size_limit="8mb") as out:
        for features, label in _samples(source):
            out.write({"features": features, "label": label})


def _read_mds(folder: Path) -> Epochs:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=str(folder / "data"), shuffle=True, batch_size=BATCH)
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=CORES, drop_last=True, persistent_workers=True)
    while True:
        yield ((batch["features"].numpy(), batch["label"].numpy()) for batch in loader)


def _write_tar(source: Path, folder: Path) -> None:
    import webdataset as wds

    rows = -(-pq.read_metadata(source).num_rows // FILES)
    with wds.ShardWriter(str(folder / "%02d.tar"), maxcount=rows, verbose=0) as out:
        for number, (features, label) in enumerate(_samples(source)):
            out.write({"__key__": f"{number:06}", "features.bin": features.tobytes(), "label.cls": label})


def _read_tar(folder: Path) -> Epochs:
    import webdataset as wds

    dataset = (
        wds.WebDataset(sorted(map(str, folder.glob("*.tar"))), shardshuffle=FILES)
        .shuffle(BUFFER)
        .map(lambda sample: (np.frombuffer(sample["features.bin"], np.float32), int(sample["label.cls"])))
        .batched(BATCH, partial=False)
    )
    # Batches are whole when they leave the workers, as the documentation advises: single samples are slow to send.
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=CORES, persistent_workers=True)
    while True:
        yield ((np.asarray(features), np.asarray(labels)) for features, labels in loader)


def _read_petastorm(folder: Path) -> Epochs:
    from petastorm import make_batch_reader

    while True:
        # Row groups come in random order, their rows shuffled within, as arrays: batches are cut from these.
        with make_batch_reader(
            folder.as_uri(), shuffle_row_groups=True, shuffle_rows=True, num_epochs=1, workers_count=CORES
        ) as reader:
            yield _rebatched((group.features, group.label) for group in reader)


def _rebatched(groups: Iterable[Batch]) -> Iterator[Batch]:
    rest = np.empty((0, WIDTH), np.float32), np.empty(0, np.int64)
    for group in groups:
        features, labels = (np.concatenate(pair) for pair in zip(rest, group, strict=True))
        whole = len(labels) // BATCH * BATCH
        for start in range(0, whole, BATCH):
            yield features[start : start + BATCH], labels[start : start + BATCH]
        rest = features[whole:], labels[whole:]


def _write_arrow(source: Path, folder: Path) -> None:
    from datasets import Dataset

    Dataset.from_parquet(str(source), cache_dir=str(folder / "cache")).save_to_disk(str(folder / "data"))


def _read_arrow(folder: Path) -> Epochs:
    from datasets import load_from_disk
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    dataset = load_from_disk(str(folder / "data")).with_format("numpy")
    batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=True)
    loader = DataLoader(dataset, sampler=batches, batch_size=None, num_workers=CORES, persistent_workers=True)
    while True:
        yield ((batch["features"].numpy(), batch["label"].numpy()) for batch in loader)


def _lit_sample(sample: tuple[np.ndarray, int]) -> dict[str, Any]:
    return {"features": sample[0], "label": sample[1]}


def _write_lit(source: Path, folder: Path) -> None:
    from litdata import optimize

    optimize(_lit_sample, list(_samples(source)), str(folder / "data"), chunk_bytes="8MB", num_workers=CORES)


def _read_lit(folder: Path) -> Epochs:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(str(folder / "data"), shuffle=True, drop_last=True)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, num_workers=CORES, drop_last=True, persistent_workers=True)
    while True:
        yield ((batch["features"].numpy(), batch["label"].numpy()) for batch in loader)


def _write_records(source: Path, folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    features, labels = _table(source)
    records = np.concatenate([features.view(np.uint8), labels.astype(np.int64)[:, None].view(np.uint8)], axis=1)
    for number, part in enumerate(np.array_split(records, FILES)):
        writer = ArrayRecordWriter(str(folder / f"{number:02}.array_record"), "group_size:1")
        for record in part:
            writer.write(record.tobytes())
        writer.close()


def _parse_records(records: Iterable[bytes]) -> Batch:
    rows = np.frombuffer(b"".join(records), np.uint8).reshape(BATCH, -1)
    split = WIDTH * 4
    return np.ascontiguousarray(rows[:, :split]).view(np.float32), np.ascontiguousarray(rows[:, split:]).view(np.int64)


def _read_records(folder: Path) -> Epochs:
    import grain

    source = grain.sources.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
    dataset = grain.MapDataset.source(source).shuffle(seed=1).batch(BATCH, drop_remainder=True, batch_fn=_parse_records)
    steps = len(dataset)
    # Repeated, so that the workers live on. The 500 elements that a worker reads ahead by default would be epochs here.
    ahead = grain.ReadOptions(num_threads=16, prefetch_buffer_size=16)
    workers = grain.MultiprocessingOptions(num_workers=CORES)
    batches = iter(dataset.repeat().to_iter_dataset(ahead).mp_prefetch(workers))
    while True:
        yield (next(batches) for _ in range(steps))


def _write_tfds(source: Path, folder: Path) -> None:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    features, labels = _table(source)
    spec = {"features": tfds.features.Tensor(shape=(WIDTH,), dtype=np.float32), "label": np.int64}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="table",
        version="1.0.0",
        features=tfds.features.FeaturesDict(spec),
        split_datasets={"train": tf.data.Dataset.from_tensor_slices({"features": features, "label": labels})},
        data_dir=str(folder),
        download_config=tfds.download.DownloadConfig(num_shards=FILES),
    )


def _read_tfds(folder: Path) -> Epochs:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    # Not cached in memory, which TFDS does with what is small: from the second epoch on nothing would be read.
    config = tfds.ReadConfig(try_autocache=False, interleave_cycle_length=FILES, shuffle_reshuffle_each_iteration=True)
    builder = tfds.builder_from_directory(str(folder / "table" / "1.0.0"))
    dataset = builder.as_dataset(split="train", shuffle_files=True, read_config=config)
    dataset = dataset.shuffle(BUFFER).batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    while True:
        yield ((batch["features"], batch["label"]) for batch in tfds.as_numpy(dataset))


RIVALS = {
    "Loader.numpy_epoch": Rival(environment="", write=_write_ringfeed, epochs=_ringfeed_numpy),
    "Loader.epoch": Rival(environment="", write=_write_ringfeed, epochs=_ringfeed_tensorflow),
    "TFDS": Rival(environment="main", write=_write_tfds, epochs=_read_tfds),
    "LitData": Rival(environment="main", write=_write_lit, epochs=_read_lit),
    "Hugging Face datasets": Rival(environment="main", write=_write_arrow, epochs=_read_arrow),
    "Grain + ArrayRecord": Rival(environment="main", write=_write_records, epochs=_read_records),
    "WebDataset": Rival(environment="main", write=_write_tar, epochs=_read_tar),
    "Petastorm": Rival(environment="petastorm", write=_write_parquet, epochs=_read_petastorm),
    "MosaicML Streaming": Rival(environment="mosaicml", write=_write_mds, epochs=_read_mds),
}


def _serve(name: str, source: Path, folder: Path, answers: TextIO) -> None:
    """Write the table, and answer every line of standard input with the rows per second of an epoch."""
    if not any(folder.iterdir()):
        RIVALS[name].write(source, folder)
    epochs = RIVALS[name].epochs(folder)
    for _ in sys.stdin:
        start, rows = time.perf_counter(), 0
        for features, labels in next(epochs):
            if features.shape != (BATCH, WIDTH) or features.dtype != np.float32 or labels.size != BATCH:
                raise ValueError(f"{name} delivers {features.shape} {features.dtype} and {labels.shape} labels")
            rows += len(features)
        answers.write(f"{rows / (time.perf_counter() - start)}\n")
        answers.flush()
        print(f"{name}: {rows} rows", file=sys.stderr)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    _serve(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), answers)
