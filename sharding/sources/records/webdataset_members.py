"""Members of WebDataset records as columns: infers what each extension holds over all records, and decodes it.

Tested in tests/sharding/sources/records/test_webdataset.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.messages import brief
from ringfeed.sharding.sources.text.json_parse import decode_document, make_decoder

from .python_values import ColumnType, column_of_values, flatten

_IMAGES = ("jpg", "png", "webp", "gif", "bmp")
_INTEGERS = ("cls", "id", "index")
_TEXTS = ("txt", "text", "caption")
_DECODER = make_decoder(float, int)
_PLAIN = {"image": pa.binary(), "int64": pa.int64(), "word": pa.string(), "string": pa.string(), "binary": pa.binary()}


def extension_of(name: str) -> str:
    """Return the extension of a member in lower case, with everything after the first dot; jpeg becomes jpg.

    >>> extension_of("a/b.c.JPEG"), extension_of("x.seg.png")
    ('c.jpg', 'seg.png')
    """
    extension = name.rpartition("/")[2].partition(".")[2].lower()
    return extension[:-4] + "jpg" if extension == "jpeg" or extension.endswith(".jpeg") else extension


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberType:
    """The type of the members of one extension."""

    extension: str
    # ``image``, ``int64``, ``word`` (text without the spaces and line ends around it), ``string``, ``binary``, ``json``
    # or ``npy``
    codec: str
    columns: pa.Schema  # columns that they become: one, or for JSON objects one for each value

    def decode(self, contents: Sequence[bytes | None]) -> list[pa.Array]:
        """Decode the members of some records to columns; None: a record has no such member.

        Raises:
            TypeError, ValueError: a member does not fit the type.
        """
        values = [None if content is None else _decode(self.codec, content) for content in contents]
        if self.codec != "json":
            (field,) = self.columns
            return [column_of_values(values, field)]
        rows = [{} if value is None else dict(_entries(value, self.extension)) for value in values]
        known = set(self.columns.names)
        if new := {name for row in rows for name, entry in row.items() if name not in known and entry is not None}:
            raise ValueError(f"it has the new entry {min(new)!r}")
        return [_json_column([row.get(field.name) for row in rows], field) for field in self.columns]


def _json_column(values: list[Any], field: pa.Field) -> pa.Array:
    if (field.metadata or {}).get(b"text"):
        values = [value if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return column_of_values(values, field)


def _decode(codec: str, content: bytes) -> Any:
    """Decode one member; raises a ValueError if its content contradicts its extension."""
    if codec in ("image", "binary"):
        return content
    if codec == "npy":
        return _read_npy(content)
    try:
        text = content.decode("utf-8-sig" if codec == "json" else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from error
    if codec == "string":
        return text
    if codec == "word":
        return text.strip()
    if codec == "int64":
        return _integer(text)
    try:
        return decode_document(_DECODER, text)
    except RecursionError as error:
        raise ValueError("it is JSON nested too deep") from error
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from error


def _integer(text: str) -> int:
    digits = text.strip()
    if not digits.removeprefix("-").isdecimal() or not digits.isascii() or len(digits) > 20:
        raise ValueError(f"it is no integer: {digits[:40]!r}")
    if not -(1 << 63) <= int(digits) < 1 << 63:
        raise ValueError(f"it is no 64-bit integer: {digits}")
    return int(digits)


def _entries(value: Any, extension: str, objects: set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the columns and values of a JSON document; add the names of objects to a set."""
    if isinstance(value, dict):
        if objects is not None:
            objects.add(extension)
        yield from flatten(value, f"{extension}.", objects)
    else:
        yield extension, value


def _read_npy(content: bytes) -> npt.NDArray[Any]:
    """Read an array: never a pickle, and only if it has the size that its header says."""
    file = BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
    except Exception as error:  # ValueError, but also what Python's tokenizer raises
        raise ValueError(f"it is no NumPy file ({brief(error)})") from error
    if dtype.kind not in "biuf":
        raise ValueError(f"it is a NumPy array of {dtype}, not of numbers")
    count = 1
    for size in shape:
        count *= size  # as Python integers: damaged sizes would overflow a fixed width
    body = content[file.tell() :]
    if len(body) != count * dtype.itemsize:
        raise ValueError(
            f"it has {len(body):,} bytes of numbers, and {shape} of {dtype} take {count * dtype.itemsize:,}"
        )
    array: npt.NDArray[Any] = np.frombuffer(body, dtype).reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


class MemberTypes:
    """The narrowest types that hold all members, found record by record; members of unwanted extensions are bytes.

    Args:
        wanted: whether the build needs a column, or the columns of an extension, of this name.
        label: name of the label column, or None.
    """

    def __init__(self, wanted: Callable[[str], bool] = lambda _: True, label: str | None = None) -> None:
        self._wanted, self._label = wanted, label
        self._values: dict[str, _ExtensionValues] = {}

    def add(self, members: dict[str, bytes]) -> None:
        """Widen the types by a record's members, by extension.

        Raises:
            ValueError: a member's content contradicts its extension, which the error names; no type was widened.
        """
        decoded = {}
        for extension, content in members.items():
            values = self._values.get(extension) or _ExtensionValues(
                extension, self._wanted(extension), is_label=extension == self._label
            )
            try:
                decoded[extension] = values, values.decode(content)
            except (ValueError, TypeError) as error:
                raise ValueError(f"its .{extension}: {error}") from error
        for extension, (values, value) in decoded.items():
            self._values[extension] = values
            values.add(value)

    def types(self) -> tuple[MemberType, ...]:
        """Return the type of each extension, sorted by name."""
        return tuple(values.type() for _, values in sorted(self._values.items()))

    @property
    def label_spellings(self) -> tuple[str, ...]:
        """The spellings of an integer label that has several, such as 1 and 01; it is then text."""
        return self._values[self._label].spellings if self._label in self._values else ()


class _ExtensionValues:
    """A summary of the members of one extension."""

    def __init__(self, extension: str, wanted: bool, *, is_label: bool = False) -> None:
        self._extension = extension
        last = extension.rpartition(".")[2]
        self._codec = (
            "binary" if not wanted
            else "image" if last in _IMAGES
            else "int64" if last in _INTEGERS
            else ("word" if is_label else "string") if last in _TEXTS
            else last if last in ("json", "npy")
            else "binary"
        )  # fmt: skip
        self._columns: dict[str, _Column] = {}
        self._objects: set[str] = set()
        self._records = 0
        self._spelling: dict[int, str] | None = {} if is_label else None  # of each integer
        self.spellings: tuple[str, ...] = ()

    def decode(self, content: bytes) -> Any:
        """Decode a member; int64 members stay text until `add` knows whether all are integers."""
        if self._codec == "int64":
            return _decode("word", content)
        if self._codec in ("image", "binary"):
            return None
        value = _decode(self._codec, content)
        if self._codec == "json":
            objects: set[str] = set()
            entries = list(_entries(value, self._extension, objects))
            if len({name for name, _ in entries}) < len(entries):
                raise ValueError("two of its entries have one name once they are columns")
            return entries, objects
        return value

    def add(self, value: Any) -> None:
        """Widen the type by a value that `decode` returned."""
        if self._codec == "int64":
            self._add_integer(value)
        entries: Sequence[tuple[str, Any]] = [("", value)] if self._codec == "npy" else ()
        if self._codec == "json":
            entries, objects = value
            self._objects |= objects
        for name, entry in entries:
            self._columns.setdefault(name, _Column()).add(entry, self._records)
        self._records += 1

    def _add_integer(self, text: str) -> None:
        """Make the column text if this is no integer, or if a label spells this integer in two ways."""
        try:
            value = _integer(text)
        except ValueError:
            self._codec = "word"
            return
        if self._spelling is not None and self._spelling.setdefault(value, text) != text:
            self._codec, self.spellings = "word", (self._spelling[value], text)

    def type(self) -> MemberType:
        """Return the type of all values."""
        codec = self._codec
        if codec == "json":
            columns = {n: column for n, column in self._columns.items() if column.seen or n not in self._objects}
            fields = [column.field(name) for name, column in sorted(columns.items())]
        elif codec == "npy" and self._columns[""].alike:
            fields = [self._columns[""].field(self._extension)]
        else:
            codec = "binary" if codec == "npy" else codec  # arrays that differ stay files
            metadata = {"encoding": "image"} if codec == "image" else None
            fields = [pa.field(self._extension, _PLAIN[codec], metadata=metadata)]
        return MemberType(extension=self._extension, codec=codec, columns=pa.schema(fields))


class _Column:
    """The type of a column whose values may turn out to have none in common."""

    def __init__(self) -> None:
        self._type: ColumnType | None = ColumnType()

    def add(self, value: Any, record: int) -> None:
        if self._type is not None:
            try:
                self._type.add_one(value, record)
            except TypeError:
                self._type = None

    @property
    def seen(self) -> bool:
        """Whether there was a value yet."""
        return self._type is None or self._type.seen

    @property
    def alike(self) -> bool:
        """Whether one type holds all values."""
        try:
            return self._type is not None and bool(self._type.field(""))
        except TypeError:
            return False

    def field(self, name: str) -> pa.Field:
        """Return the column: of the values' type, or of their JSON text."""
        if self._type is not None and self.alike:
            return self._type.field(name)
        return pa.field(name, pa.string(), metadata={"text": "json"})
