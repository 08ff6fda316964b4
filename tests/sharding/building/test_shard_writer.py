"""Small files are written side by side once there are enough of them, and none is lost."""

import pyarrow as pa

from ringfeed.sharding.building.shard_writer import SmallFiles
from ringfeed.sharding.storage.storage import Storage
from tests.servers.store import Store


def test_small_files_are_written_many_at_a_time(store: Store) -> None:
    small = SmallFiles(Storage(store.url))
    for number in range(15):
        small.add({f"{number:02d}": pa.py_buffer(bytes([number])), f"{number:02d}.index": b"i"})
    assert store.list() == []
    small.add({"15": b"\x0f", "15.index": b"i"})
    assert store.list() == sorted(name for number in range(16) for name in (f"{number:02d}", f"{number:02d}.index"))
    small.add({"last": b"1"})
    small.flush()
    assert [store.read_bytes(f"{number:02d}") for number in range(16)] == [bytes([number]) for number in range(16)]
    assert store.read_bytes("last") == b"1"


def test_a_large_file_is_written_at_once(store: Store) -> None:
    small = SmallFiles(Storage(store.url))
    small.add({"a": b"1"})
    small.add({"b": bytes(8 << 20)})
    assert store.list() == ["a", "b"]
