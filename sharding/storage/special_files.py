"""Refuses special files where a file must be: a FIFO blocks whoever opens it, and a device may never end."""

from __future__ import annotations

import os
import stat

_KINDS = {stat.S_IFIFO: "a FIFO (pipe)", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class SpecialFileError(OSError):
    """No file, but a FIFO, a device, or a reply that never ends; the message says what to do, without the path."""


def check_regular(path: str | os.PathLike[str], most_bytes: int | None = None) -> None:
    """Refuse a special file on this machine, or one that is too large; folders are left to the reader.

    Raises:
        SpecialFileError: it is a FIFO, a socket or a device, or has more than `most_bytes`.
        OSError: it cannot be examined.
    """
    status = os.stat(path)
    if kind := _KINDS.get(stat.S_IFMT(status.st_mode)):
        raise SpecialFileError(f"it is {kind}, where a file must be; check the path, or write its content to a file")
    if most_bytes is not None and status.st_size > most_bytes:
        raise SpecialFileError(f"it has {status.st_size:,} bytes, and such a file at most {most_bytes:,}")
