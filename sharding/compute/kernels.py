"""Compiled loops over files and records, from kernels.c, and the checks of their arguments.

Long loops release the interpreter's lock, so that threads run in parallel. Each caller also has an equivalent in Python
and NumPy, with the same result to the byte, for installations without a C compiler. ``RINGFEED_KERNELS=0`` in the
environment turns the compiled loops off.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint64, c_void_p
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from .arrays import Int32, Int64, Integers, UInt8, UInt64

FILE_CHANGED = -1
VIEW = np.dtype([("length", "<i4"), ("prefix", "<u4"), ("buffer", "<i4"), ("offset", "<i4")])  # Arrow's binary_view
INLINE_BYTES, INLINE_AT = 12, 4  # values of up to 12 bytes are in the view itself, from byte 4 on
_MODULE = "._kernels"
_SWITCH = "RINGFEED_KERNELS"
_VARINT_BYTES = 10  # of the longest varint
_FRAME_BYTES = 16  # of the frame around an empty message


def are_compiled() -> bool:
    """Whether the kernels can be called; the other functions must not be called otherwise."""
    return _library is not None


def read_files(paths: Sequence[bytes], offsets: Int64, target: UInt8) -> tuple[int, int]:
    """Read whole local files into memory.

    Args:
        offsets: boundaries of the files in `target`, int64 [files + 1]; each file must have exactly its size.

    Raises:
        ValueError: a path contains a zero byte.

    Returns:
        0, or an errno, or `FILE_CHANGED` if a file has another size; and the number of that file.
    """
    failed = c_int64()
    _check_offsets(offsets, len(paths) + 1)
    _check(target, np.uint8, int(offsets[-1]), writeable=True)
    names = b"\0".join([*paths, b""])
    if names.count(b"\0") != len(paths):
        raise ValueError("embedded null byte")
    error = _kernels().ringfeed_read_files(names, len(paths), _address(offsets), _address(target), ctypes.byref(failed))
    return int(error), failed.value


def frame_rows(matrix: UInt8) -> None:
    """Write the header and footer of the TFRecord frame in each row, around the message that is there already.

    Args:
        matrix: frames, uint8 [records, 12 + length + 4], contiguous.
    """
    _check(matrix, np.uint8, matrix.size, writeable=True)
    _check_frames(matrix.shape[1:])
    _kernels().ringfeed_frame_rows(_extend_crc, _address(matrix), *matrix.shape)


def frame_columns(columns: Sequence[tuple[UInt8, Int64]], bounds: Int64) -> Iterator[UInt8]:
    """Yield consecutive TFRecord frames, a run of records at a time; each run overwrites the one before.

    Args:
        columns: data and offsets, int64 [records + 1], of each column; a message is the record's elements end to end.
    """
    records = len(columns[0][1]) - 1
    _check_offsets(bounds, len(bounds))
    if bounds[-1] > records:
        raise ValueError(f"expected runs of {records} records, got {bounds[-1]}")
    sizes = _FRAME_BYTES * np.diff(bounds)
    for data, offsets in columns:
        _check_offsets(offsets, records + 1)
        _check(data, np.uint8, int(offsets[-1]))
        sizes += np.diff(offsets[bounds])
    return _frame_runs(columns, bounds.tolist(), sizes.tolist())


def _frame_runs(columns: Sequence[tuple[UInt8, Int64]], bounds: list[int], sizes: list[int]) -> Iterator[UInt8]:
    target, pointers = np.empty(max(sizes, default=0), np.uint8), c_void_p * len(columns)
    data_of = pointers(*(_address(data) for data, _ in columns))
    offsets_of = pointers(*(_address(offsets) for _, offsets in columns))
    address, frame = _address(target), _kernels().ringfeed_frame_columns
    for (start, stop), size in zip(pairwise(bounds), sizes, strict=True):
        frame(_extend_crc, start, stop, len(columns), data_of, offsets_of, address)
        yield target[:size]


def first_bad_frame(data: UInt8, ends: Int64) -> int:
    """The number of the first TFRecord frame whose length or content fails its CRC, or the number of frames.

    Args:
        data: consecutive frames of at least 16 bytes each.
    """
    _check(ends, np.int64, len(ends))
    if (least := ends.min(initial=0)) < 0:  # or a difference may wrap around
        raise ValueError(f"expected ends of 0 or more, got {least}")
    _check_frames(np.diff(ends, prepend=0))
    _check(data, np.uint8, int(ends[-1]) if len(ends) else 0)
    return int(_kernels().ringfeed_first_bad_frame(_extend_crc, len(ends), _address(ends), _address(data)))


def pack_varints(values: UInt64) -> tuple[UInt8, Int64]:
    """Encode minimal varints end to end, uint8 [bytes], with their boundaries, int64 [values + 1]."""
    _check(values, np.uint64, len(values))
    packed, offsets = np.empty(_VARINT_BYTES * len(values), np.uint8), np.zeros(len(values) + 1, np.int64)
    ends = offsets[1:]
    count = _kernels().ringfeed_pack_varints(_address(values), len(values), _address(packed), _address(ends))
    return packed[:count], offsets


def walk_examples(
    data: UInt8, starts: Int64, ends: Int64, keys: Sequence[bytes], tags: Sequence[int]
) -> tuple[Int64, Int64] | None:
    """Locate the serialised list of each feature in `tf.train.Example` messages.

    Args:
        data: bytes that hold the messages.
        keys: for each feature, the beginning of its map entry: the serialised key, then the tag of the value.
        tags: for each feature, the tag of its kind of list.

    Returns:
        Starts and ends of the lists, int64 [features, messages], -1 where a message lacks the feature. None if a
        message has other features or another order.
    """
    starts, ends = (np.ascontiguousarray(places, np.int64) for places in (starts, ends))
    _check_places(data, starts, ends)
    bodies, stops = (np.empty((len(keys), len(starts)), np.int64) for _ in range(2))
    joined, of_tags = np.frombuffer(b"".join(keys), np.uint8), np.array(tags, np.uint8)
    key_offsets = np.concatenate([[0], np.cumsum(list(map(len, keys)))]).astype(np.int64)
    walked = _kernels().ringfeed_walk_examples(
        *(_address(data), len(starts), _address(starts), _address(ends)),
        *(len(keys), _address(joined), _address(key_offsets), _address(of_tags), _address(bodies), _address(stops)),
    )
    return (bodies, stops) if walked == len(starts) else None


def enter_lists(data: UInt8, bodies: Int64, stops: Int64) -> Int64 | None:
    """Locate the single value of each serialised list of strings or bytes.

    Args:
        bodies: start of each list, from `walk_examples`.

    Returns:
        Starts of the values, int64 [lists]; the end of a list that is empty. None if a list holds anything else.
    """
    _check_places(data, bodies, stops)
    starts = np.empty(len(bodies), np.int64)
    places = _address(bodies), _address(stops), _address(starts)
    return starts if _kernels().ringfeed_enter_lists(_address(data), len(bodies), *places) == len(bodies) else None


def read_varints(data: UInt8, starts: Int64, ends: Int64) -> UInt64 | None:
    """Decode slices that hold one varint each, uint64 [slices]; None if one holds anything else."""
    _check_places(data, starts, ends)
    values = np.empty(len(starts), np.uint64)
    places = _address(starts), _address(ends), _address(values)
    return values if _kernels().ringfeed_read_varints(_address(data), len(starts), *places) == len(starts) else None


def gather(data: UInt8, starts: Int64, width: int) -> UInt8:
    """Copy slices of one size into a matrix, uint8 [slices, width]."""
    _check(starts, np.int64, len(starts))
    if width < 0 or starts.min(initial=0) < 0:
        raise ValueError(f"expected slices of 0 bytes or more in the data, got {width} from {starts.min(initial=0)}")
    _check(data, np.uint8, int(starts.max()) + width if len(starts) else 0)
    pieces = np.empty((len(starts), width), np.uint8)
    _gather(_address(data), starts, [0], [pieces])
    return pieces


def gather_fields(addresses: Int64, firsts: Sequence[int], targets: Sequence[UInt8]) -> None:
    """Copy fields of rows from anywhere in memory into one matrix per field.

    Args:
        addresses: addresses of the rows, int64 [rows]; the caller must keep the rows alive.
        firsts: position of each field's first byte in a row.
        targets: matrix of each field, uint8 [rows, width].
    """
    _check(addresses, np.int64, len(addresses))
    for first, target in zip(firsts, targets, strict=True):
        _check(target, np.uint8, len(addresses) * target.shape[1], writeable=True)
        if first < 0:
            raise ValueError(f"expected a field to begin at byte 0 or later, got {first}")
    _gather(None, addresses, firsts, targets)


def copy_values(addresses: Int64, lengths: Int64) -> list[bytes]:
    """Copy values from anywhere in memory, all of them with the interpreter's lock released.

    Args:
        addresses: address of each value, int64 [values]; the caller must keep the memory alive.
        lengths: length of each value, int64 [values].

    Raises:
        MemoryError: there is no memory for the copies.
    """
    _check(addresses, np.int64, len(lengths))
    _check(lengths, np.int64, len(addresses))
    if lengths.min(initial=0) < 0:
        raise ValueError(f"expected lengths of at least 0, got {lengths.min()}")
    values = [_new_bytes(None, length) for length in lengths.tolist()]
    targets = np.fromiter(map(_bytes_address, values), np.int64, len(values))
    _kernels().ringfeed_copy_values(len(values), _address(addresses), _address(lengths), _address(targets))
    return values


def _gather(data: int | None, starts: Int64, firsts: Sequence[int], targets: Sequence[UInt8]) -> None:
    count = len(targets)
    widths, places = (c_int64 * count)(*(t.shape[1] for t in targets)), (c_void_p * count)(*map(_address, targets))
    _kernels().ringfeed_gather(data, len(starts), _address(starts), count, (c_int64 * count)(*firsts), widths, places)


def locate_rows(rows: Int64, values: npt.NDArray[Any]) -> Int64:
    """The memory addresses of rows of an array, int64 [rows].

    Args:
        values: contiguous array of all rows.

    Raises:
        IndexError: a number is out of range.
    """
    rows = np.ascontiguousarray(rows, np.int64)
    _check(values, values.dtype, values.size)
    addresses = np.empty(len(rows), np.int64)
    places = _address(values), values.nbytes // max(len(values), 1), _address(addresses)
    located = _kernels().ringfeed_locate_rows(_address(rows), len(rows), len(values), *places)
    if located < len(rows):
        raise IndexError(f"expected rows in [0, {len(values)}), got {rows[located]}")
    return addresses


def view_bytes(data: UInt8, starts: Int64, ends: Int64, span: int) -> npt.NDArray[np.void]:
    """Views of slices of data as elements of Arrow's binary_view, `VIEW` [slices].

    Args:
        span: distance between the starts of the data's buffers, in bytes.
    """
    _check_places(data, starts, ends)
    if (lengths := ends - starts).min(initial=0) < 0 or lengths.max(initial=0) >= 1 << 31 or span < 1:
        raise ValueError("expected slices of less than 2 GiB and buffers of at least 1 byte")
    views = np.empty(len(starts), VIEW)
    places = _address(starts), _address(ends)
    _kernels().ringfeed_view_bytes(_address(data), len(starts), *places, span, _address(views))
    return views


def noise(salt: int, size: int, free: int, low: int, groups: Int32 | None = None) -> UInt64:
    """The numbers of ``range(size)``, each below noise from `mix64` of the number and a salt; sorted, uint64 [size].

    Args:
        size: how many numbers.
        free: how many of the highest bits hold the group.
        low: how many of the lowest bits hold the number.
        groups: group of each number, [size]; None: the highest bits are 0.
    """
    if min(free, low, size) < 0 or free + low >= 64 or size > 1 << low:
        raise ValueError(f"expected enough bits for {size} numbers and some for noise, got {free} and {low}")
    if groups is not None:
        groups = np.ascontiguousarray(groups, np.int32)
        if len(groups) != size or (size and not 0 <= groups.min() <= groups.max() < 1 << free):
            raise ValueError(f"expected {size} groups in [0, {1 << free})")
    numbers, other = np.empty(size, np.uint64), np.empty(size, np.uint64)
    of_groups = None if groups is None or not free else _address(groups)  # C does not define a shift by 64 bits
    _kernels().ringfeed_noise(salt, size, free, low, of_groups, _address(numbers), _address(other))
    return numbers


def draw(classes: Integers, members: Int64, bounds: Int64, following: Int64) -> Int64:
    """Draw the next member of each sample's class, cycling through the members; int64 [samples].

    Args:
        classes: class of each sample; uint8 and int32 are not copied.
        members: members of all classes, class after class.
        bounds: boundaries of the classes in `members`, int64 [classes + 1].
        following: position of each class's next member, advanced in place.

    Raises:
        ValueError: a class does not exist or has no members.
    """
    _check_offsets(bounds, len(following) + 1)
    _check(members, np.int64, int(bounds[-1]))
    _check(following, np.int64, len(bounds) - 1, writeable=True)
    if (following < 0).any() or (following >= np.maximum(np.diff(bounds), 1)).any():
        raise ValueError("expected positions of members within their classes to come next")
    if len(classes) and not 0 <= classes.min() <= classes.max() < len(following):
        raise ValueError(f"expected classes in [0, {len(following)}), got {classes.min()} to {classes.max()}")
    classes = np.ascontiguousarray(classes, np.uint8 if classes.dtype == np.uint8 else np.int32)
    drawn = np.empty(len(classes), np.int64)
    count = _kernels().ringfeed_draw(
        *(_address(classes), classes.itemsize, len(classes), _address(members), _address(bounds)),
        *(_address(following), _address(drawn)),
    )
    if count < len(classes):
        raise ValueError(f"class {classes[count]} has no members")
    return drawn


def _check(array: npt.NDArray[Any], dtype: npt.DTypeLike, size: int, *, writeable: bool = False) -> None:
    """Refuse an argument that would make a kernel read or write foreign memory."""
    if array.dtype != dtype or array.size < size or not array.flags.c_contiguous:
        raise ValueError(f"expected {size} contiguous {np.dtype(dtype)}, got {array.size} {array.dtype}")
    if writeable and not array.flags.writeable:
        raise ValueError("expected a writeable array")


def _check_offsets(offsets: Int64, count: int) -> None:
    _check(offsets, np.int64, count)
    if offsets[0] < 0 or (offsets[1:] < offsets[:-1]).any():
        raise ValueError("expected ascending offsets from 0 or more")


def _check_frames(lengths: npt.ArrayLike) -> None:
    if (least := np.min(lengths, initial=_FRAME_BYTES)) < _FRAME_BYTES:
        raise ValueError(f"a frame has at least {_FRAME_BYTES} bytes, got {least}")


def _check_places(data: UInt8, starts: Int64, ends: Int64) -> None:
    _check(starts, np.int64, len(ends))
    _check(ends, np.int64, len(starts))
    _check(data, np.uint8, int(max(starts.max(initial=0), ends.max(initial=0))))
    if len(starts) and min(starts.min(), ends.min()) < 0:
        raise ValueError(f"expected positions in the data, got {starts.min()} and {ends.min()}")


def _address(array: npt.NDArray[Any]) -> int:
    return array.ctypes.data


def _kernels() -> Any:
    if _library is None:
        raise RuntimeError("the kernels were not compiled; check are_compiled() first")
    return _library


def _load() -> tuple[ctypes.CDLL | None, ctypes.c_void_p | None]:
    """Load the compiled module and the CRC function of google_crc32c's C library; both or neither.

    Kernels that take only nanoseconds per value keep the interpreter's lock, as regaining it may take 5 ms.
    """
    spec = find_spec(_MODULE, __package__)
    if spec is None or spec.origin is None or sys.byteorder != "little" or os.environ.get(_SWITCH) == "0":
        return None, None
    try:
        library, holding_lock = ctypes.CDLL(spec.origin), ctypes.PyDLL(spec.origin)
        checksums = ctypes.CDLL(google_crc32c._crc32c.__file__)
        extend = ctypes.cast(checksums.crc32c_extend, c_void_p)
    except (OSError, AttributeError):  # google_crc32c in pure Python, or without an exported C function
        return None, None
    for name in ("draw", "enter_lists", "locate_rows", "pack_varints", "read_varints", "view_bytes", "walk_examples"):
        setattr(library, f"ringfeed_{name}", getattr(holding_lock, f"ringfeed_{name}"))
    signatures: tuple[tuple[Any, ...], ...] = (
        ("read_files", c_int, c_char_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)),
        ("frame_rows", None, c_void_p, c_void_p, c_int64, c_int64),
        ("frame_columns", None, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p),
        ("first_bad_frame", c_int64, c_void_p, c_int64, c_void_p, c_void_p),
        ("pack_varints", c_int64, c_void_p, c_int64, c_void_p, c_void_p),
        ("walk_examples", c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, *[c_void_p] * 5),
        ("enter_lists", c_int64, c_void_p, c_int64, *[c_void_p] * 3),
        ("read_varints", c_int64, c_void_p, c_int64, *[c_void_p] * 3),
        ("gather", None, c_void_p, c_int64, c_void_p, c_int64, *[c_void_p] * 3),
        ("copy_values", None, c_int64, c_void_p, c_void_p, c_void_p),
        ("locate_rows", c_int64, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p),
        ("view_bytes", None, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_void_p),
        ("noise", None, c_uint64, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p),
        ("draw", c_int64, c_void_p, c_int64, c_int64, *[c_void_p] * 4),
    )
    for name, result, *arguments in signatures:
        kernel = getattr(library, f"ringfeed_{name}")
        kernel.restype, kernel.argtypes = result, arguments
    return library, extend


_library, _extend_crc = _load()
# Python's own functions to make a `bytes` object that is filled afterwards, before anybody else sees it.
_new_bytes = ctypes.PYFUNCTYPE(ctypes.py_object, c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
_bytes_address = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object)(("PyBytes_AsString", ctypes.pythonapi))
