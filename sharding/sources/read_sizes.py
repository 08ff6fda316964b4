"""How large the parts of a source are, and how much of its files is read at a time.

Tested in tests/sharding/sources/text/test_csv.py and tests/sharding/sources/records/test_tfrecord.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSizes:
    """Sizes that a source is read in; None: what suits its kind.

    Attributes:
        block_bytes: bytes of a text or TFRecord file that are read and parsed at a time.
        part_bytes: bytes of a part, at least; of an array, at most.
        part_rows: rows of a part of a table, at least.
    """

    block_bytes: int | None = None
    part_bytes: int | None = None
    part_rows: int | None = None


OWN_SIZES = ReadSizes()
