"""The errors of the package. Each also subclasses the builtin that a caller would expect to catch."""

from __future__ import annotations

from .messages import without_secrets

__all__ = [
    "ConfigError",
    "CorruptionError",
    "DatasetError",
    "DestinationError",
    "PageError",
    "RangesError",
    "RingfeedError",
    "SourceError",
    "StorageError",
    "TrainingError",
    "WorkerError",
]


class RingfeedError(Exception):
    """Base of every error a user can cause or meet; its text is one line that says what to do next, without secrets.

    Attributes:
        may_pass: whether the same command, started again, may succeed with no change to what it was given.
    """

    may_pass = False

    def __init__(self, text: str = "") -> None:
        super().__init__(without_secrets(text))


class ConfigError(RingfeedError, ValueError):
    """An option, a flag or a configuration key has a value that its rule forbids."""


class SourceError(RingfeedError, ValueError):
    """The data to be sharded cannot be read as what it claims to be."""


class DestinationError(RingfeedError, OSError):
    """A dataset cannot be written where it was asked to go."""


class DatasetError(RingfeedError, ValueError):
    """What was opened is no dataset, or one that this version cannot read."""


class CorruptionError(RingfeedError, OSError):
    """Bytes on storage are not the bytes that were written."""


class StorageError(RingfeedError, OSError):
    """The storage refused or failed: credentials, a missing bucket, a network that is down."""

    may_pass = True


class RangesError(StorageError):
    """The storage cannot read a part of a file without the rest, as some servers of HTTP cannot."""

    may_pass = False

    @classmethod
    def of(cls, where: str) -> RangesError:
        """The error of a file, by its URL."""
        return cls(
            f"{where}: the server sends all of a file where a part is asked for; copy the file to where parts can be "
            "read, such as a local disk"
        )


class PageError(StorageError):
    """A web server sends a page instead of a file, as some do to ask for a login."""

    may_pass = False

    @classmethod
    def of(cls, where: str) -> PageError:
        """The error of a file, by its URL."""
        return cls(
            f"{where}: the server sends a page (text/html) instead of the file, as some do to ask for a login; see in "
            "a browser what it says, and check the URL, or copy the file to a local disk"
        )


class WorkerError(RingfeedError, RuntimeError):
    """A process that worked on a part of the job was killed."""

    may_pass = True


class TrainingError(RingfeedError, RuntimeError):
    """Training cannot go on without breaking a promise it made."""
