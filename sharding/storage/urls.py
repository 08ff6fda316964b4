"""URLs: which protocols behave alike, how a URL from a user is checked, and how it is printed without its secrets.

Tested in tests/sharding/test_url_secrets.py.
"""

from __future__ import annotations

import os
import re

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.url_secrets import public_url, secret_problem

S3_PROTOCOLS = {"s3", "s3a"}
WEB_PROTOCOLS = {"http", "https"}
OBJECT_STORE_PROTOCOLS = {*S3_PROTOCOLS, "gs", "gcs", "az", "abfs", "abfss", "memory"}  # where a single PUT is atomic

_SCHEME = re.compile(r"(?:^|(?<=::))[A-Za-z][A-Za-z0-9+.-]*://")
_LOST_SLASH = re.compile(r"(s3a?|hdfs|gs|gcs|az|abfss?|https?):/(?!/)")


class SecretUrl(str):
    """A URL with secrets, whose `repr` leaves them out, as `public_url` does. Its text is for the store's client."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(public_url(self))


def normalize_url(url: object, what: str) -> str:
    """Return a URL or path as text, its schemes in lower case (RFC 3986).

    Raises:
        ConfigError: it is neither, or is not valid UTF-8, so that neither Arrow nor a manifest could store it; or its
            password cannot be told from the rest.
    """
    if not isinstance(url, (str, os.PathLike)) or not isinstance(text := os.fspath(url), str):
        shown = repr(os.fsdecode(url) if isinstance(url, bytes) else url)
        raise ConfigError(f"{what} must be a URL or a path, got {shown}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} must be a name in UTF-8, got {text!r}; rename it") from error
    if problem := secret_problem(text):
        raise ConfigError(f"{what} {public_url(text)}: {problem}")
    text = _SCHEME.sub(lambda scheme: scheme[0].lower(), text)
    return text if public_url(text) == text else SecretUrl(text)


def validate_url(url: object, what: str) -> str:
    """`normalize_url` for a URL from a user, who may have left a variable unset or passed a URL through `pathlib`.

    Raises:
        ConfigError: it is no URL or path, is empty, or has lost a slash.
    """
    text = normalize_url(url, what)
    if not text:
        raise ConfigError(f"{what} must be a URL or a path, got an empty one")
    if lost := _LOST_SLASH.match(text):
        text = public_url(text)
        raise ConfigError(
            f"{what} must be a URL or a path, got {text!r}, which lacks a slash, as a URL does after pathlib.Path; "
            f"name {lost[1]}://{text[lost.end() :]}, or ./{text} if it is a folder of this machine"
        )
    return text


def normalize_url_fields(options: object, *names: str, optional: str = "") -> None:
    """Replace URL fields of a frozen dataclass by their validated text."""
    for name in (*names, *([optional] if optional and getattr(options, optional) is not None else [])):
        object.__setattr__(options, name, validate_url(getattr(options, name), name))
