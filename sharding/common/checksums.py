"""The checksum of a file's bytes, as text with its algorithm: XXH3, 128 bits."""

from __future__ import annotations

import pyarrow as pa
import xxhash

__all__ = ["PREFIX", "Checksum", "checksum"]

PREFIX = "xxh3-128:"  # 32 hexadecimal digits follow


def checksum(data: bytes | memoryview | pa.Buffer) -> str:
    """The checksum of a file's bytes, with its algorithm.

    >>> checksum(b"ringfeed")
    'xxh3-128:c64e23e74848e399a33c022f96d90d93'
    """
    return PREFIX + xxhash.xxh3_128_hexdigest(data)


class Checksum:
    """The checksum of bytes that come piece by piece, each to `update`.

    >>> digest = Checksum()
    >>> digest.update(b"ring"), digest.update(b"feed")
    (None, None)
    >>> digest.text == checksum(b"ringfeed")
    True
    """

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self.update = self._digest.update  # itself: a record may come in several pieces

    @property
    def text(self) -> str:
        """As `checksum` gives it."""
        return PREFIX + self._digest.hexdigest()
