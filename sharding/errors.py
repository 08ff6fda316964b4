"""The package's errors. Each also subclasses the builtin that a caller would expect to catch."""

from __future__ import annotations

from .url_secrets import without_secrets

__all__ = [
    "ConfigError", "CorruptionError", "DatasetError", "DestinationError", "PageError", "RangesError",
    "RingfeedError", "SourceError", "StorageError", "TrainingError", "WorkerError",
]  # fmt: skip


class RingfeedError(Exception):
    """Base of every error that a user can meet. Its text is one line, says what to do next and holds no secrets.

    Attributes:
        may_pass: whether the same command may succeed when it is run again unchanged.
    """

    may_pass = False

    def __init__(self, text: str = "") -> None:
        super().__init__(without_secrets(text))


class ConfigError(RingfeedError, ValueError):
    """An option, a flag or a configuration key has a forbidden value."""


class SourceError(RingfeedError, ValueError):
    """The source data cannot be read in its declared format."""


class DestinationError(RingfeedError, OSError):
    """A dataset cannot be written to its destination."""


class DatasetError(RingfeedError, ValueError):
    """A folder is no dataset, or one that this version cannot read."""


class CorruptionError(RingfeedError, OSError):
    """Stored bytes differ from those that were written."""


class StorageError(RingfeedError, OSError):
    """The storage refused a request or failed: wrong credentials, a missing bucket, a broken network."""

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
    """A worker process was killed."""

    may_pass = True


class TrainingError(RingfeedError, RuntimeError):
    """Training cannot continue correctly."""
