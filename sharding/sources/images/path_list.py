"""Text files of one path a line: a table of one column.

Tested in tests/sharding/sources/images/test_image_list.py.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import Part, RecordSource, Reject, fail_on_bad
from ringfeed.sharding.sources.files.find import fingerprint_files, require_files
from ringfeed.sharding.sources.files.open import open_file

_BLOCK_BYTES, _LINE_BYTES = 4 << 20, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSource(RecordSource):
    """A source of lines: the column ``path`` holds each line that is not empty. A part is a file."""

    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".lst")

    @classmethod
    def open(cls, url: str, label: str | None) -> LineSource:
        """List the files; raises a SourceError if there is no file, or a label is asked for."""
        files = require_files(url, cls.suffixes, "text file")
        return cls(
            url=url,
            schema=Schema(features=(Feature(name="path", dtype="string"),), label=label),
            parts=tuple(Part(path=file.url) for file in files),
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Return a null for each record."""
        for batch in self.drafts(part):
            yield pa.nulls(batch.num_rows)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Read the lines."""
        number, mark = 1, BOM_UTF8
        with open_file(part.path) as file:
            while block := file.read(_BLOCK_BYTES):
                rest = file.readline(_LINE_BYTES)
                if len(rest) == _LINE_BYTES and not rest.endswith(b"\n"):
                    raise SourceError(f"{part.path}: a line is longer than {_LINE_BYTES} bytes; write a path a line")
                lines = (block + rest).removeprefix(mark).split(b"\n")
                mark = b""
                texts = [_decode(part.path, number + i, line) for i, line in enumerate(lines)]
                number += len(lines) - 1
                yield pa.RecordBatch.from_arrays([pa.array(filter(None, texts), pa.string())], schema=self.schema.arrow)


def _decode(path: str, number: int, line: bytes) -> str:
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: line {number} is not UTF-8; convert the file first") from error
