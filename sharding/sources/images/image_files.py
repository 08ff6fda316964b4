"""Reads many image files into one Arrow column without a copy in between, and checks them for damage.

Tested in tests/sharding/sources/images/test_class_folders.py and tests/sharding/sources/images/test_image_list.py.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from operator import sub
from statistics import median
from time import perf_counter
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.compute import kernels
from ringfeed.sharding.compute.batches import BATCH_BYTES
from ringfeed.sharding.errors import ConfigError, SourceError, StorageError
from ringfeed.sharding.formats.arrow_binary import data_of, offsets_of
from ringfeed.sharding.formats.images.file_types import unreadable_format
from ringfeed.sharding.formats.images.sizes import check_image, error_text
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.base import SKIP_REMEDY, BadRecord, Reject, fail_on_bad
from ringfeed.sharding.sources.files.open import MissingFileError, read_files, stat_files
from ringfeed.sharding.storage.client_errors import cause_chain
from ringfeed.sharding.storage.storage import Storage

_THREADS = 4
_RUN_FILES = 8
_TIMED_RUNS = 16  # runs whose median time decides whether threads read the rest
_SLOW_SECONDS = 200e-6  # a file that takes longer comes from the disk; from the page cache it takes 30 us
_REMOTE_FILES = 256  # fetched or checked at a time
_NO_FILE = (errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_NAME_REMEDY = f"fix it, or {SKIP_REMEDY}"
_COLUMN_BYTES = (1 << 31) - 1
IMAGE_FEATURES = (
    Feature(name="image", dtype="binary", encoding="image"),
    Feature(name="height", dtype="int32"),
    Feature(name="width", dtype="int32"),
)  # the file's bytes, and the size of the image in pixels
ImageCheck = Callable[[bytes | memoryview], str | None]  # returns what is wrong, to follow "the image", or None
T = TypeVar("T")


def read_images(urls: Sequence[str], sizes: npt.NDArray[np.int64] | None = None) -> dict[str, pa.Array]:
    """Read files, and check that each is a whole image; return the columns of `IMAGE_FEATURES` by name.

    Args:
        urls: URLs or paths of the files.
        sizes: expected sizes in bytes, int64 [n], if known: a file of another size has changed, and is refused.

    Raises:
        SourceError: a file is missing, has changed, or is not a whole image, as far as its format can show.
        StorageError: the store refuses.
        ConfigError: the files exceed the 2 GiB of one column.
    """
    paths = [_local_path(url) for url in urls]
    if all(paths):
        buffer, offsets = _read_local([path for path in paths if path], sizes)
    else:
        buffer, offsets = _read_remote(urls)
        if sizes is not None and (changed := np.flatnonzero(np.diff(offsets) != sizes)).size:
            raise _changed(urls[changed[0]])
    view = memoryview(buffer).cast("B")
    extents = np.empty((len(urls), 2), np.int32)
    for i, (start, end) in enumerate(pairwise(offsets.tolist())):
        try:
            extents[i] = check_image(view[start:end])
        except ValueError as error:
            fail_on_bad(BadRecord(path=urls[i], place="", reason=f"the image {_fault(error, view[start:end])}"))
    images = pa.BinaryArray.from_buffers(pa.binary(), len(urls), [None, pa.py_buffer(offsets.astype(np.int32)), buffer])
    heights, widths = (pa.array(np.ascontiguousarray(column)) for column in extents.T)
    return {"image": images, "height": heights, "width": widths}


def file_sizes(urls: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the sizes of files in bytes, int64 [n], without opening them.

    Raises:
        SourceError: a file is missing.
        StorageError: the store refuses.
    """
    paths = [path for url in urls if (path := _local_path(url))]
    if len(paths) == len(urls):
        sizes = _sizes(paths)
    else:
        blocks = (urls[start : start + _REMOTE_FILES] for start in range(0, len(urls), _REMOTE_FILES))
        sizes = [size for block in blocks for size in stat_files(block)]
    return np.array(sizes, np.int64)


def image_fault(data: bytes | memoryview) -> str | None:
    """Return what is wrong with an image, as far as its format can show, or None; see `check_image`."""
    try:
        check_image(data)
    except ValueError as error:
        return _fault(error, data)
    return None


def _fault(error: ValueError, data: bytes | memoryview) -> str:
    if not len(data):
        return "is empty (0 bytes)"
    if form := unreadable_format(data):
        return f"is {form}, which neither Pillow nor TensorFlow decodes: convert it to JPEG or PNG"
    return f"is damaged or cut short ({error})"


def find_bad_files(
    files: Sequence[str | BadRecord], sizes: Sequence[int] | None, reject: Reject, fault: ImageCheck = image_fault
) -> Iterator[pa.Array]:
    """Find the files that cannot be read or have a fault.

    Args:
        files: URLs of the files; or a bad record in place of a missing URL.
        sizes: sizes in bytes, if known: at most `BATCH_BYTES`, and 256 files, are held at a time.
        reject: called with each bad file; may raise.
        fault: returns what is wrong with a file's bytes, or None; default: what `read_images` would fail on.

    Yields:
        Positions in `files`, int64, ascending.
    """
    for start, end in _blocks(len(files), sizes):
        checked = enumerate(_check_files(files[start:end], fault), start)
        bad = [(position, record) for position, record in checked if record is not None]
        for _, record in bad:
            reject(record)
        if bad:
            yield pa.array([position for position, _ in bad], pa.int64())


def find_faulty_images(column: pa.BinaryArray, fault: ImageCheck = image_fault) -> Iterator[tuple[int, str]]:
    """Yield the position of each faulty image in a column, and what is wrong with it; nulls are not faulty."""
    if column.buffers()[2] is None:
        return
    data, offsets = data_of(column), offsets_of(column)
    view = memoryview(data).cast("B")
    for i in np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)).tolist():
        if (reason := fault(view[offsets[i] : offsets[i + 1]])) is not None:
            yield i, reason


def _local_path(url: str) -> str | None:
    if url.startswith(("/", "file:///")):  # the usual case, for speed
        return url.removeprefix("file://")
    path = Storage(url).local_path
    return None if path is None else str(path)


# --- reading into one column -----------------------------------------------------------------------------------


def _read_local(paths: Sequence[str], sizes: npt.NDArray[np.int64] | None) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    offsets = _offsets(_sizes(paths) if sizes is None else sizes)
    buffer = pa.allocate_buffer(int(offsets[-1]))  # from Arrow's pool, whose pages are in use already
    view, bounds = memoryview(buffer).cast("B"), offsets.tolist()
    target = np.frombuffer(buffer, np.uint8)

    def read(start: int, stop: int) -> list[None]:
        if kernels.are_compiled():
            names = [os.fsencode(path) for path in paths[start:stop]]
            error, failed = kernels.read_files(names, offsets[start : stop + 1], target)
            if error == kernels.FILE_CHANGED:
                raise _changed(paths[start + failed])
            if error:
                cause = OSError(error, os.strerror(error))  # of the subclass that fits the number
                raise _translated(paths[start + failed], cause) from cause
            return []
        for path, begin, end in zip(paths[start:stop], bounds[start:stop], bounds[start + 1 : stop + 1], strict=True):
            _read_into(path, view[begin:end])
        return []

    _in_runs(read, len(paths))
    return buffer, offsets


def _sizes(paths: Sequence[str]) -> list[int]:
    return _in_runs(lambda start, stop: list(map(_size, paths[start:stop])), len(paths))


def _size(path: str) -> int:
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) or error.errno in _NO_FILE:
            raise SourceError(f"{path} names no file ({error_text(error)}); {_NAME_REMEDY}") from error
        raise _translated(path, error) from error
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would block
        raise SourceError(f"{path} is a folder or a device, not a file; {_NAME_REMEDY}")
    return status.st_size


def _read_into(path: str, target: memoryview) -> None:
    size, beyond = len(target), bytearray(1)
    try:
        file = os.open(path, os.O_RDONLY)
        try:  # the extra byte shows whether the file has grown
            done = count = os.readv(file, [target, beyond])
            while count and done < size:
                done += (count := os.readv(file, [target[done:], beyond]))
        finally:
            os.close(file)
    except OSError as error:
        raise _translated(path, error) from error
    if done != size:
        raise _changed(path)


def _changed(path: str) -> SourceError:
    return SourceError(f"{path}: the file changed while the source was read; build again")


def _translated(path: str, error: OSError) -> Exception:
    if isinstance(error, FileNotFoundError):
        return MissingFileError.of(path)
    return StorageError(
        f"cannot read {path}: {error.strerror}; check the file's permissions and the health of the disk"
    )


def _read_remote(urls: Sequence[str]) -> tuple[pa.Buffer, npt.NDArray[np.int64]]:
    """Fetch files, many concurrently, and return their bytes and offsets."""
    sink, sizes = pa.BufferOutputStream(), []
    for start in range(0, len(urls), _REMOTE_FILES):
        for data in read_files(urls[start : start + _REMOTE_FILES]):
            sink.write(data)
            sizes.append(len(data))
    return sink.getvalue(), _offsets(sizes)


def _offsets(sizes: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    if offsets[-1] > _COLUMN_BYTES:
        raise ConfigError(
            f"{len(sizes)} images of one shard take {offsets[-1] >> 20} MiB, more than the 2 GiB that one column can "
            "hold; ask for more shards"
        )
    return offsets


def _in_runs(work: Callable[[int, int], list[T]], count: int) -> list[T]:
    """Apply a function to half-open runs of `count` files, with threads once they turn out to wait for the disk.

    While files come from the page cache, threads would only compete for the interpreter, at a third more CPU time
    (20,000 files, 2 busy cores, 2026-11-21).
    """
    results: list[T] = []
    runs = [(start, min(start + _RUN_FILES, count)) for start in range(0, count, _RUN_FILES)]
    for first in range(0, len(runs), _TIMED_RUNS):
        moments = [perf_counter()]
        for start, stop in runs[first : first + _TIMED_RUNS]:
            results += work(start, stop)
            moments.append(perf_counter())
        if median(map(sub, moments[1:], moments)) > _SLOW_SECONDS * _RUN_FILES:
            with ThreadPoolExecutor(_THREADS) as threads:
                for more in threads.map(lambda run: work(*run), runs[first + _TIMED_RUNS :]):
                    results += more
            break
    return results


# --- checking ---------------------------------------------------------------------------------------------------


def _blocks(count: int, sizes: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of files to hold at a time."""
    start = block_bytes = 0
    for i in range(count):
        if i > start and (i - start == _REMOTE_FILES or (sizes and block_bytes + sizes[i] > BATCH_BYTES)):
            yield start, i
            start, block_bytes = i, 0
        block_bytes += sizes[i] if sizes else 0
    if count > start:
        yield start, count


def _check_files(files: Sequence[str | BadRecord], fault: ImageCheck) -> list[BadRecord | None]:
    """Return what is wrong with each file, or None."""
    urls = [file for file in files if isinstance(file, str)]
    if all(map(_local_path, urls)):
        return _in_runs(lambda start, stop: [_check_file(file, fault) for file in files[start:stop]], len(files))
    try:
        contents = dict(zip(urls, read_files(urls), strict=True))
    except (SourceError, StorageError) as error:  # a file is missing, or cannot exist; reading one by one shows which
        if isinstance(error, StorageError) and not _names_no_file(error):
            raise
        return [_check_file(file, fault) for file in files]
    return [_check_file(file, fault, contents.get(file) if isinstance(file, str) else None) for file in files]


def _check_file(file: str | BadRecord, fault: ImageCheck, data: bytes | None = None) -> BadRecord | None:
    if isinstance(file, BadRecord):
        return file
    try:
        if data is None and (path := _local_path(file)) is not None and os.path.exists(path):
            _size(path)
        reason = fault(read_files([file])[0] if data is None else data)
    except MissingFileError:
        return BadRecord(path=file, place="", reason="there is no such file", remedy="restore it, or remove its record")
    except (SourceError, StorageError) as error:
        if isinstance(error, StorageError) and not _names_no_file(error):
            raise
        return BadRecord(path=file, place="", reason="it names no file that can be read", remedy="fix its name")
    return None if reason is None else BadRecord(path=file, place="", reason=f"the image {reason}")


def _names_no_file(error: StorageError) -> bool:
    """Whether an error shows that no file can have such a name."""
    numbers = (cause.errno for cause in cause_chain(error) if isinstance(cause, OSError))
    return any(isinstance(cause, ValueError) for cause in cause_chain(error)) or any(n in _NO_FILE for n in numbers)
