"""Arrow IPC files and streams of several record batches."""

from typing import Any

import pyarrow as pa


def write_ipc_file(table: pa.Table, path: Any) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)


def write_ipc_stream(table: pa.Table, path: Any) -> None:
    with pa.ipc.new_stream(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table, max_chunksize=100)
