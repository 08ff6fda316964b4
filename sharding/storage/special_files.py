"""Refuses special files where a file must be: a FIFO blocks whoever opens it, and a device may never end."""

from __future__ import annotations

import os
import stat

__all__ = ["SpecialFileError", "check_regular"]

_KINDS = {stat.S_IFIFO: "a FIFO (pipe)", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


class SpecialFileError(OSError):
    """No file, but a FIFO, a device, or a reply that never ends; the message says what to do, without the path."""


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse a special file on this machine; folders are left to the reader.

    Raises:
        SpecialFileError: it is a FIFO, a socket or a device.
        OSError: it cannot be examined.
    """
    if kind := _KINDS.get(stat.S_IFMT(os.stat(path).st_mode)):
        raise SpecialFileError(f"it is {kind}, where a file must be; check the path, or write its content to a file")
