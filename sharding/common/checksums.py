"""Checksums of files: XXH3 of 128 bits, as text that names the algorithm.

Tested in tests/sharding/verifying/test_verify.py.
"""

from __future__ import annotations

import pyarrow as pa
import xxhash

PREFIX = "xxh3-128:"  # 32 hexadecimal digits follow


def checksum(data: bytes | memoryview | pa.Buffer) -> str:
    """The checksum of a file's bytes.

    >>> checksum(b"ringfeed")
    'xxh3-128:c64e23e74848e399a33c022f96d90d93'
    """
    return PREFIX + xxhash.xxh3_128_hexdigest(data)


class Checksum:
    """The checksum of a file that arrives in pieces, each passed to `update`.

    >>> digest = Checksum()
    >>> digest.update(b"ring"), digest.update(b"feed")
    (None, None)
    >>> digest.text == checksum(b"ringfeed")
    True
    """

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self.update = self._digest.update  # the method itself: a call for every piece of every record adds up

    @property
    def text(self) -> str:
        """The checksum of all pieces, in the form of `checksum`."""
        return PREFIX + self._digest.hexdigest()
