"""The index of a TFRecord file as NVIDIA DALI reads it: a line of text a record, its offset and its size in bytes.

It is what DALI's own `tfrecord2idx` writes, and the `tfrecord` package's.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["index_name", "index_text"]


def index_name(shard_path: str) -> str:
    """The name of a shard's index.

    >>> index_name("train-00000-of-00016.tfrecord")
    'train-00000-of-00016.idx'
    """
    return shard_path.removesuffix(".tfrecord") + ".idx"


def index_text(index: pa.Buffer) -> bytes:
    """The text, of the index that ringfeed writes beside an uncompressed TFRecord shard.

    Args:
        index: an Arrow IPC file with the columns ``offset`` and ``length``.
    """
    table = pa.ipc.open_file(index).read_all()
    offsets, lengths = (table.column(name).cast(pa.string()) for name in ("offset", "length"))
    lines = pc.binary_join_element_wise(offsets, lengths, " ").to_pylist()
    return "".join(f"{line}\n" for line in lines).encode()
