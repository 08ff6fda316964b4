"""Files are read into the page cache before they are mapped, unless it holds them."""

import os
from collections import deque
from pathlib import Path

import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.fetch.page_cache import READ_BYTES, is_in_page_cache, read_into_page_cache
from ringfeed.sharding import build
from ringfeed.sharding.errors import CorruptionError
from ringfeed.sharding.storage.storage import Storage

SIZE = (4 << 20) + 123


@pytest.fixture
def cold_file(tmp_path: Path) -> str:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(SIZE))
    return chilled(path)


def let_go(descriptor: int) -> None:
    """Ask the page cache to drop a file."""
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def chilled(path: Path) -> str:
    """A file that the page cache does not hold, where the file system lets go of it."""
    descriptor = os.open(path, os.O_RDONLY)
    let_go(descriptor)
    try:
        os.preadv(descriptor, [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return str(path)
    except OSError:
        pytest.skip("the file system cannot tell what is cached")
    finally:
        os.close(descriptor)
    pytest.skip("the file system keeps files in memory")


def test_a_cold_file_is_read_once(cold_file: str) -> None:
    blocks: list[bytes] = []
    sizes = [1000, READ_BYTES, 5]
    assert read_into_page_cache(cold_file, 0, SIZE, lambda block: blocks.append(bytes(block)), sizes)
    assert [len(block) for block in blocks[:4]] == [*sizes, READ_BYTES]
    assert b"".join(blocks) == Path(cold_file).read_bytes()
    assert read_into_page_cache(cold_file, 0, SIZE, blocks.append) is None
    assert b"".join(blocks) == Path(cold_file).read_bytes()


def test_only_small_files_that_are_cold_are_waited_for(cold_file: str, tmp_path: Path) -> None:
    del cold_file  # skips where files cannot be let go of
    build(source=[{"x": 1.0}] * 10, destination=str(tmp_path / "d"), split={"train": 1})
    loader = Loader(str(tmp_path / "d"), batch_size=10)
    deque(loader.numpy_epoch(0), maxlen=0)
    assert loader.stats()["fetch"].wait_seconds == 0
    for path in (tmp_path / "d").rglob("train-*"):
        with path.open("rb") as file:
            let_go(file.fileno())  # looking whether it is gone would read it
    deque(loader.numpy_epoch(0), maxlen=0)
    assert loader.stats()["fetch"].wait_seconds > 0


def test_whether_a_file_is_in_memory_is_told_without_waiting(cold_file: str, tmp_path: Path) -> None:
    assert not is_in_page_cache(cold_file, SIZE)
    Path(cold_file).read_bytes()
    assert is_in_page_cache(cold_file, SIZE)
    os.mkfifo(tmp_path / "fifo")
    assert not is_in_page_cache(str(tmp_path / "fifo"), 1)
    assert not is_in_page_cache(str(tmp_path / "missing"), 1)


def test_only_the_range_is_looked_at(cold_file: str) -> None:
    assert read_into_page_cache(cold_file, 0, 1 << 20)
    assert not read_into_page_cache(cold_file, 0, 1 << 20)
    assert read_into_page_cache(cold_file, 3 << 20, SIZE)


@pytest.mark.parametrize("record_bytes", [50_000, 2 * READ_BYTES])
@pytest.mark.parametrize("streams", [1, 2])
def test_cold_shards_are_checked_whole_and_in_parts(tmp_path: Path, streams: int, record_bytes: int) -> None:
    rows = [{"image": os.urandom(record_bytes)} for _ in range(SIZE // record_bytes)]
    build(source=rows, destination=str(tmp_path / "data"), shards=1, split={"train": 1})
    (shard,) = (tmp_path / "data").glob("*.tfrecord")
    loader = Loader(str(tmp_path / "data"), batch_size=2, streams=streams)
    chilled(shard)
    values = [value for batch in loader.numpy_epoch(0) for value in batch["image"]]
    assert set(values) <= {row["image"] for row in rows}
    assert len(values) == len(rows) // 2 * 2
    content = bytearray(shard.read_bytes())
    content[SIZE // 3] ^= 1
    shard.write_bytes(content)
    chilled(shard)
    with pytest.raises(CorruptionError, match="is damaged"):
        deque(loader.numpy_epoch(0), maxlen=0)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (5, 5), (0, 1), (SIZE - 1, SIZE), (0, 2 * SIZE), (SIZE, SIZE + 9)])
def test_any_range_may_be_asked_for(tmp_path: Path, start: int, stop: int) -> None:
    (tmp_path / "shard").write_bytes(bytes(SIZE))
    read_into_page_cache(str(tmp_path / "shard"), start, stop)


def test_a_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_into_page_cache(str(tmp_path / "shard"), 0, 1)


def disk_bytes() -> int:
    """Bytes that this process has asked disks for."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


@pytest.mark.parametrize("will_need", [False, True])
def test_a_file_that_is_mapped_without_advice_is_not_read(cold_file: str, will_need: bool) -> None:
    folder, name = os.path.split(cold_file)
    before = disk_bytes()
    content = Storage(folder).map(name, will_need=will_need)
    assert content.size == SIZE
    assert (disk_bytes() - before >= SIZE // 2) == will_need
    assert content.to_pybytes() == Path(cold_file).read_bytes()


def test_a_mapped_file_is_unmapped_with_its_last_part(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(os.urandom(SIZE))
    content = Storage(str(tmp_path)).map("shard", will_need=False)
    part = content[SIZE - 9 :]
    del content
    assert str(tmp_path / "shard") in Path("/proc/self/maps").read_text()
    assert part.to_pybytes() == (tmp_path / "shard").read_bytes()[-9:]
    del part
    assert str(tmp_path / "shard") not in Path("/proc/self/maps").read_text()


def test_an_empty_file_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "shard").touch()
    assert Storage(str(tmp_path)).map("shard", will_need=False).size == 0
