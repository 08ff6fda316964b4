"""The containers of Keras' files, which may come from anyone: ZIP archives and HDF5, opened only within bounds.

Both may claim more than they hold, and HDF5 may name other files. What is in them is read elsewhere.
Tested in tests/test_forged_files.py.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import h5py

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.untrusted_files import check_inflation, file_bytes

_DIRECTORY_BYTES = 1 << 20  # some 10,000 members; Keras writes four
_SIZE_OF_DIRECTORY = 5  # field of an end record
_MOST_OBJECTS = 1 << 20  # groups and arrays of an HDF5 file


@contextmanager
def open_archive(data: bytes | BinaryIO, url: str) -> Iterator[zipfile.ZipFile]:
    """Open a `.keras` file, or raise a ConfigError that names its URL."""
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    try:
        end: Any = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # before all members are listed in memory
        if end and end[_SIZE_OF_DIRECTORY] > _DIRECTORY_BYTES:
            raise ValueError(f"its list of members has {end[_SIZE_OF_DIRECTORY]} bytes")
        archive = zipfile.ZipFile(file)
    except Exception as error:  # on forged bytes, `zipfile` raises many kinds
        raise ConfigError(f"{url} is not a .keras file, or is damaged") from error
    with archive:
        yield archive


def read_member(archive: zipfile.ZipFile, name: str, most_bytes: int | None = None) -> bytes:
    """Return a member's content, by default of a size in proportion to the archive's; raises anything if forged."""
    info = archive.getinfo(name)
    assert archive.fp is not None
    if most_bytes is None:
        check_inflation(info.file_size, file_bytes(archive.fp))  # type: ignore[arg-type]  # `zipfile` takes any IO
    elif info.file_size > most_bytes:
        raise ValueError(f"its member {name} claims {info.file_size} bytes")
    with archive.open(info) as member:
        data = member.read(info.file_size + 1)
    if len(data) != info.file_size:
        raise ValueError(f"its member {name} has another size than it claims")
    return data


def check_hdf5(path: Path) -> int:
    """Check that an HDF5 file names no other file, and holds what it claims; return the number of its bytes unpacked.

    A forged one raises any Exception.
    """
    found: list[int] = []

    def visit(name: str, link: Any) -> None:
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{name!r} is a link to another file or place")
        if len(found) == _MOST_OBJECTS:
            raise ValueError(f"it has more than {_MOST_OBJECTS} arrays and groups")
        item = file[name]
        if not isinstance(item, h5py.Dataset):
            found.append(0)
            return
        if item.is_virtual or item.external:
            raise ValueError(f"{name!r} is kept in another file")
        if item.dtype.kind == "c":
            raise ValueError(f"{name!r} holds complex numbers")
        found.append(item.size * item.dtype.itemsize if item.shape is not None else 0)

    with h5py.File(path, "r") as file:
        file.visititems_links(visit)
    check_inflation(sum(found), path.stat().st_size)
    return sum(found)
