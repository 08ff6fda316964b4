"""The package's errors. Each also subclasses the builtin that a caller would expect to catch.

Tested in tests/sharding/engines/test_engine.py.
"""

from __future__ import annotations

from .messages import printable
from .url_secrets import without_secrets


class RingfeedError(Exception):
    """Base of every error that a user can meet. Its text is one printable line, and says what to do; no secrets.

    Attributes:
        may_pass: whether the same command may succeed when it is run again unchanged.
        flags: words to add to the command, which then may succeed; empty if none are known.

    >>> from ringfeed.sharding import open_dataset
    >>> try:
    ...     open_dataset("elsewhere")
    ... except RingfeedError as error:
    ...     print(type(error).__name__)
    DatasetError
    """

    may_pass = False

    def __init__(self, text: str = "", flags: tuple[str, ...] = ()) -> None:
        super().__init__(printable(without_secrets(text)))
        self.flags = flags


class ConfigError(RingfeedError, ValueError):
    """An option, a flag or a configuration key has a forbidden value.

    >>> from ringfeed.sharding import build
    >>> build(source="flights.parquet", destination="shards", shards=0)
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.ConfigError: shards must be at least 1, got 0
    """


class SourceError(RingfeedError, ValueError):
    """The source data cannot be read in its declared format.

    >>> from ringfeed.sharding import build
    >>> build(source="missing.parquet", destination="shards")
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.SourceError: ...
    """


class DestinationError(RingfeedError, OSError):
    """A dataset cannot be written to its destination.

    >>> from ringfeed.sharding import build
    >>> build(source="flights.parquet", destination="flights")
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.DestinationError: ...
    """


class RepeatedError(DestinationError):
    """The same call has written the same before, and it is still there, whole: there is nothing to do.

    A command that meets it ends with status 0.

    >>> from ringfeed.sharding import build
    >>> manifest = build(source="flights.parquet", destination="shards", label="arrival", shards=4)
    >>> build(source="flights.parquet", destination="shards", label="arrival", shards=4)
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.RepeatedError: ...
    """


class DatasetError(RingfeedError, ValueError):
    """A folder is no dataset, or one that this version cannot read.

    >>> from ringfeed.sharding import open_dataset
    >>> open_dataset("elsewhere")
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.DatasetError: ...
    """


class CorruptionError(RingfeedError, OSError):
    """Stored bytes differ from those that were written.

    >>> from ringfeed.pipeline import Loader
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> next(iter(Loader("flights", batch_size=320, cache=None).numpy_epoch(0)))
    Traceback (most recent call last):
        ...
    ringfeed.sharding.errors.CorruptionError: ...
    """


class StorageError(RingfeedError, OSError):
    """The storage refused a request or failed: wrong credentials, a missing bucket, a broken network.

    >>> from ringfeed.sharding import RingfeedError
    >>> issubclass(StorageError, RingfeedError), issubclass(StorageError, OSError)
    (True, True)
    """

    may_pass = True


class RangesError(StorageError):
    """The storage cannot read a part of a file; some HTTP servers cannot."""

    may_pass = False

    @classmethod
    def of(cls, where: str) -> RangesError:
        """The error for the file at a URL."""
        return cls(
            f"{where}: the server ignores range requests and sends the whole file; copy the file to storage that "
            "supports them, such as a local disk"
        )


class PageError(StorageError):
    """A web server sends an HTML page, often a login form, instead of a file."""

    may_pass = False

    @classmethod
    def of(cls, where: str) -> PageError:
        """The error for the file at a URL."""
        return cls(
            f"{where}: the server sends a page (text/html) instead of the file, perhaps a login form; open it in a "
            "browser and check the URL, or copy the file to a local disk"
        )


class WorkerError(RingfeedError, RuntimeError):
    """A worker process was killed.

    >>> from ringfeed.sharding import RingfeedError
    >>> issubclass(WorkerError, RingfeedError), issubclass(WorkerError, RuntimeError)
    (True, True)
    """

    may_pass = True


class TrainingError(RingfeedError, RuntimeError):
    """Training cannot continue correctly.

    >>> from ringfeed.sharding import RingfeedError
    >>> issubclass(TrainingError, RingfeedError), issubclass(TrainingError, RuntimeError)
    (True, True)
    """
