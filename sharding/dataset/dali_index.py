"""The index of a TFRecord file for NVIDIA DALI: one line of text per record with its offset and size in bytes.

The format of DALI's own `tfrecord2idx`, also read by the `tfrecord` package.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def index_text(index: pa.Buffer) -> bytes:
    """Return a DALI index, made from ringfeed's index of an uncompressed TFRecord shard.

    Args:
        index: Arrow IPC file with the columns ``offset`` and ``length``.
    """
    table = pa.ipc.open_file(index).read_all()
    offsets, lengths = (table.column(name).cast(pa.string()) for name in ("offset", "length"))
    lines = pc.binary_join_element_wise(offsets, lengths, " ").to_pylist()
    return "".join(f"{line}\n" for line in lines).encode()
