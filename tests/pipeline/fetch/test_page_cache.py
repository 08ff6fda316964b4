"""Files are read into the page cache before they are mapped, unless it holds them."""

import os
from pathlib import Path

import pytest

from ringfeed.pipeline.fetch.page_cache import read_into_page_cache
from ringfeed.sharding.storage.storage import Storage

SIZE = (4 << 20) + 123


@pytest.fixture
def cold_file(tmp_path: Path) -> str:
    """A file that the page cache does not hold, where the file system lets go of it."""
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(SIZE))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.preadv(descriptor, [bytearray(1)], SIZE // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return str(path)
    except OSError:
        pytest.skip("the file system cannot tell what is cached")
    finally:
        os.close(descriptor)
    pytest.skip("the file system keeps files in memory")


def test_a_cold_file_is_read_once(cold_file: str) -> None:
    assert read_into_page_cache(cold_file, 0, SIZE)
    assert not read_into_page_cache(cold_file, 0, SIZE)


def test_only_the_range_is_looked_at(cold_file: str) -> None:
    assert read_into_page_cache(cold_file, 0, 1 << 20)
    assert not read_into_page_cache(cold_file, 0, 1 << 20)
    assert read_into_page_cache(cold_file, 3 << 20, SIZE)


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
