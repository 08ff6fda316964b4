"""A loader's memory holds windows and prefetched shards, and does not grow with the data."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build, open_dataset
from tests.helpers import peak_memory
from tests.helpers.lean import lean_environment

SHARD_RECORDS, WIDTH = 4096, 64  # 1 MiB of float32
SPLITS = {"two": 2, "eight": 8, "thirty_two": 32}  # times 4 MiB
KIB = 1 << 10
# mimalloc, Arrow's own, keeps some 40 MiB for its threads that nothing is in; glibc's heap, the holes between arrays.
LEAN_ALLOCATORS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(64 * KIB),
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = SHARD_RECORDS * 4 * sum(SPLITS.values())
    values = np.random.default_rng(0).random(records * WIDTH, np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)
    path: Path = tmp_path_factory.mktemp("memory") / "source.parquet"
    pq.write_table(pa.table({"vector": vectors, "label": np.arange(records) % 4}), path, compression="none")
    return path


@pytest.mark.parametrize("shard_format", ["tfrecord", "parquet"])
def test_sixteen_times_the_data_take_no_more_memory(source: Path, tmp_path: Path, shard_format: str) -> None:
    url = str(tmp_path / "shards")
    splits = {name: Fraction(share, sum(SPLITS.values())) for name, share in SPLITS.items()}
    build(
        BuildOptions(
            source=str(source), destination=url, label="label", shard_format=shard_format, splits=splits, shards=128
        )
    )
    shards = open_dataset(url).shards
    shard_kib = max(shard.bytes for shard in shards) / KIB
    total_kib = sum(shard.bytes for shard in shards if shard.split == "thirty_two") / KIB
    command = [sys.executable, peak_memory.__file__, url, *SPLITS]
    env = lean_environment(LEAN_ALLOCATORS)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=280)
    before, two, eight, most = json.loads(done.stdout)
    # Of each stream a window that is open, one ahead, and one that is being let go; file and columns of each.
    windows_kib = peak_memory.STREAMS * 3 * 2 * shard_kib
    allowed_kib = (
        windows_kib + 2 * peak_memory.PREFETCH_BYTES / KIB + 16 * KIB
    )  # for threads, and what is kept for them
    assert total_kib > 2 * allowed_kib
    assert two - before < allowed_kib
    assert most - before < allowed_kib
    assert most - eight < 6 * KIB
