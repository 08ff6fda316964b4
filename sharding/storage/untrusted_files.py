"""The guard for files that may come from anyone: a regular file, a bounded size, and one line whatever is in it.

Each kind of file that a command opens from elsewhere goes through these three: `open_untrusted` or `read_untrusted`
gives its bytes, `load_json` parses text within bounds, and `guarded` turns whatever a parser or a library raises on the
content into one error that names the file.

Tested in tests/test_forged_files.py.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from ringfeed.sharding.errors import ConfigError, RingfeedError
from ringfeed.sharding.messages import brief, one_line
from ringfeed.sharding.url_secrets import public_url

from .special_files import check_regular
from .storage import Storage

_FLAT_BYTES, _MOST_INFLATION = 16 << 20, 20  # trained weights hardly compress
_MOST_CONTAINERS = 2_000_000  # lists and objects of a JSON text take up to 80 times its bytes in memory


@contextmanager
def guarded(url: str, what: str, *, error: type[RingfeedError] = ConfigError, prefix: str = "") -> Iterator[None]:
    """Turn every error that a file's content causes in the body into one line that names the file.

    Args:
        what: what it must hold, with an article, for the error.
        prefix: what names the file, such as an option, before its URL.

    Raises:
        RingfeedError: as raised in the body, with prefix and name of the file before it unless it has them.

    >>> with guarded("a.json", "costs of a simulation"):
    ...     {}["store"]
    Traceback (most recent call last):
    ringfeed.sharding.errors.ConfigError: a.json does not hold costs of a simulation, or is damaged (KeyError: 'store')
    """
    name = prefix + one_line(public_url(url))
    try:
        yield
    except RingfeedError as known:
        text = str(known) if one_line(public_url(url)) in str(known) else f"{one_line(public_url(url))}: {known}"
        raise type(known)(text if text.startswith(prefix) else f"{prefix}{text}") from known
    except MemoryError as problem:
        raise error(f"{name} needs more memory than there is; it may be damaged or forged") from problem
    except Exception as problem:  # on forged bytes, libraries raise anything
        reason = f"{type(problem).__name__}: {one_line(brief(problem))}"
        raise error(f"{name} does not hold {what}, or is damaged ({reason})") from problem


@contextmanager
def open_untrusted(url: str, what: str = "file") -> Iterator[BinaryIO]:
    """Open a file to read at random; a local one is not read as a whole, a remote one is.

    Raises:
        ConfigError: there is no such file.
        StorageError: it is a folder, a FIFO, a socket or a device, or the store refuses.
    """
    folder, separator, name = url.rpartition("/")
    storage = Storage(folder or separator or ".")
    try:
        if storage.local_path is None:
            file: BinaryIO = io.BytesIO(storage.read(name))
        else:
            with storage.errors("read", name):
                check_regular(storage.local_path / name)
                file = open(storage.local_path / name, "rb")  # noqa: SIM115  # closed below, after the body
    except FileNotFoundError as error:
        raise ConfigError(f"there is no {what} at {url}; check the path") from error
    with file:
        yield file


def read_untrusted(url: str, most_bytes: int, what: str = "file") -> bytes:
    """Return the content of a file.

    Raises:
        ConfigError: it is larger than `most_bytes`, or there is no such file.
        StorageError: as by `open_untrusted`.
    """
    with open_untrusted(url, what) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ConfigError(f"{url} has more than {most_bytes:,} bytes, so it is no such file; check the path")
    return data


def load_json(data: bytes | str) -> Any:
    """Parse a JSON text of bounded size; a ValueError if it is none, or is nested too deep or too often."""
    marks: tuple[Any, Any] = (b"[", b"{") if isinstance(data, bytes) else ("[", "{")
    if sum(map(data.count, marks)) > _MOST_CONTAINERS:
        raise ValueError(f"it has more than {_MOST_CONTAINERS} lists and objects")
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def check_inflation(unpacked_bytes: int, packed_bytes: int) -> None:
    """Raise a ValueError for content that is out of proportion to the file that holds it: a bomb."""
    if unpacked_bytes > _FLAT_BYTES + _MOST_INFLATION * packed_bytes:
        raise ValueError(f"{packed_bytes} bytes of it claim to hold {unpacked_bytes}")


def file_bytes(file: BinaryIO) -> int:
    """Return the size of an open file."""
    return file.seek(0, os.SEEK_END)
