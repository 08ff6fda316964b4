"""The contents of HDF5 files: opens a file, finds the arrays in it, and their features. `hdf5.py` reads their rows.

Tested in tests/sharding/sources/arrays/test_hdf5.py.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import IO, Any

import numpy as np

from ringfeed.sharding.errors import RingfeedError, SourceError
from ringfeed.sharding.schema import Feature
from ringfeed.sharding.sources.files.open import open_file, source_error
from ringfeed.sharding.storage.storage import Storage

from .array_columns import Leaf, fixed_feature, leaves_of, unsupported_array

_BUFFER_BYTES = 1 << 20  # read-ahead of remote files: HDF5 reads metadata in small pieces


def load_h5py() -> ModuleType:
    """Import h5py; raises a SourceError if it is not installed."""
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise SourceError("HDF5 files need h5py; install it with: pip install 'ringfeed[hdf5]'") from error


class _Raw(io.RawIOBase):
    """A file of fsspec with `readinto`, which HDF5 needs and not every client has."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def open_hdf5(path: str, remedy: str = "write it again with gzip") -> Iterator[Any]:
    """Open a file, and yield its root group.

    Raises:
        SourceError: it is damaged or not an HDF5 file, or uses a compression that h5py lacks.
    """
    h5py = load_h5py()
    with open_file(path) as file:
        local = Storage(path).local_path  # HDF5 reads local files itself, without Python in between
        try:
            opened = io.BufferedReader(_Raw(file), _BUFFER_BYTES) if local is None else local
            with h5py.File(opened, "r", locking=False) as root:
                yield root
        except RingfeedError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            remedy = f"the file is damaged, is not HDF5, or uses a compression that h5py lacks; {remedy}"
            raise source_error(path, error, remedy) from error


def find_leaves(root: Any, picks: Sequence[str]) -> Iterator[Leaf]:
    """Yield every array of a file that has a dimension, or of the picked groups."""
    h5py = load_h5py()
    groups, seen = [("", root)], set()
    while groups:
        prefix, group = groups.pop()
        inner = []
        for key in group:
            if isinstance(key, bytes):
                shown = prefix + key.decode(errors="backslashreplace")
                yield _no_column(shown, f"the name {shown!r} is not UTF-8; rename it")
                continue
            name = prefix + key
            if picks and not any(are_nested(name, pick) for pick in picks):
                continue
            link = group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                yield _no_column(name, f"{name!r} is a link to another file; choose others with ::/NAME,...")
            if not isinstance(link, h5py.HardLink):
                continue
            item = group[key]
            address = h5py.h5o.get_info(item.id).addr
            if isinstance(item, h5py.Group) and address not in seen:
                seen.add(address)  # a group may contain itself
                inner.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset) and item.shape:
                if problem := _problem(name, item):
                    yield _no_column(name, problem)
                else:
                    yield from leaves_of(name, name, item.dtype, item.shape)
        groups += reversed(inner)


def _problem(name: str, dataset: Any) -> str:
    """Return why a dataset cannot be a column whatever its type, or an empty string."""
    if dataset.is_virtual or dataset.external:
        return f"the data of {name!r} lie in other files; copy them into one, or choose others with ::/NAME,..."
    try:
        _ = dataset.dtype
    except TypeError as error:
        return f"{name!r} holds values of a type that NumPy lacks ({error}); store it as another"
    return ""


def are_nested(name: str, pick: str) -> bool:
    """Whether a name is a picked one, or inside of it, or around it."""
    return name == pick or name.startswith(f"{pick}/") or pick.startswith(f"{name}/")


def _no_column(name: str, problem: str) -> Leaf:
    return Leaf(name=name, holder=name, keys=(), dtype=np.dtype(object), shape=(), rows=0, problem=problem)


def feature_of(leaf: Leaf, path: str) -> Feature:
    """Return the feature that holds every value of a dataset.

    Raises:
        SourceError: no feature has its type or shape.
    """
    h5py = load_h5py()
    if h5py.check_string_dtype(leaf.dtype) is not None and 0 not in leaf.shape:
        return Feature(name=leaf.name, dtype="string", shape=leaf.shape)
    element = h5py.check_vlen_dtype(leaf.dtype)
    if element is None:
        if leaf.dtype.hasobject:
            raise unsupported_array(leaf, path, "references")
        return fixed_feature(leaf, path)
    element = np.dtype(element)
    if leaf.shape == () and h5py.check_string_dtype(element) is not None and element.hasobject:
        return Feature(name=leaf.name, dtype="string", shape=(None,))
    if leaf.shape or element.kind not in "biuf":
        inner = "texts or lists" if element.hasobject else element
        shape = f" in records of shape {leaf.shape}" if leaf.shape else ""
        raise unsupported_array(leaf, path, f"lists of {inner}{shape}")
    if not element.isnative:  # h5py 3.14 reads their bytes as native ones
        raise SourceError(f"{path}: {leaf.name!r} holds lists of big-endian numbers; store them little-endian")
    return Feature(name=leaf.name, dtype=fixed_feature(replace(leaf, dtype=element), path).dtype, shape=(None,))
