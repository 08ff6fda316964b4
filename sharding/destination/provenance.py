"""What a finished folder was made from, so that a command that is run again finds that its work is done.

Tested in tests/sharding/destination/test_provenance.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from ringfeed.sharding.storage.storage import Storage


def digest_of(*inputs: Any) -> str:
    """Return the xxh3-128 of all that decides the content of a folder, as hexadecimal text.

    >>> digest_of("flights", ["test"]) == digest_of("flights", ("test",)) != digest_of("flights", ["train"])
    True
    """
    return xxhash.xxh3_128_hexdigest(json.dumps(inputs, sort_keys=True).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What a folder was made from, and where in it that is recorded."""

    record: str  # the file that holds `digest`
    digest: str  # `digest_of` the inputs and options
    files: Sequence[str] = ()  # other files that a finished folder holds

    def made(self, folder: Storage) -> bool:
        """Whether a folder was made from the same, and holds its files; raises a StorageError if the store refuses."""
        try:
            return self.digest.encode() in folder.read(self.record) and {*self.files} <= {*folder.list()}
        except FileNotFoundError:
            return False
