"""URLs: which protocols behave alike, how a URL from a user is checked, and how it is printed without its secrets."""

from __future__ import annotations

import os
import re

from ..errors import ConfigError

__all__ = [
    "OBJECT_STORE_PROTOCOLS", "S3_PROTOCOLS", "WEB_PROTOCOLS", "normalize_url", "normalize_url_fields", "public_url",
    "validate_url",
]  # fmt: skip

S3_PROTOCOLS = {"s3", "s3a"}
WEB_PROTOCOLS = {"http", "https"}
OBJECT_STORE_PROTOCOLS = {*S3_PROTOCOLS, "gs", "gcs", "az", "abfs", "abfss", "memory"}  # where a single PUT is atomic

_SCHEME = re.compile(r"(?:^|(?<=::))[A-Za-z][A-Za-z0-9+.-]*://")
_LOST_SLASH = re.compile(r"(s3a?|hdfs|gs|gcs|az|abfss?|https?):/(?!/)")
_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]*@")
_WEB_QUERY = re.compile(r"(https?://[^?]*?)\?.*?(?=::|$)", re.DOTALL)


def normalize_url(url: object, what: str) -> str:
    """Return a URL or path as text, its schemes in lower case (RFC 3986).

    Args:
        url: a string or path.
        what: its name, for the error.

    Raises:
        ConfigError: it is neither, or is not valid UTF-8, so that neither Arrow nor a manifest could store it.
    """
    if not isinstance(url, (str, os.PathLike)) or not isinstance(text := os.fspath(url), str):
        raise ConfigError(f"{what} must be a URL or a path, got {url!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} must be a name in UTF-8, got {text!r}; rename it") from error
    return _SCHEME.sub(lambda scheme: scheme[0].lower(), text)


def validate_url(url: object, what: str) -> str:
    """`normalize_url` for a URL from a user, who may have left a variable unset or passed a URL through `pathlib`.

    Raises:
        ConfigError: it is no URL or path, is empty, or has lost a slash.
    """
    text = normalize_url(url, what)
    if not text:
        raise ConfigError(f"{what} must be a URL or a path, got an empty one")
    if lost := _LOST_SLASH.match(text):
        raise ConfigError(
            f"{what} must be a URL or a path, got {text!r}, which lacks a slash, as a URL does after pathlib.Path; "
            f"name {lost[1]}://{text[lost.end() :]}, or ./{text} if it is a folder of this machine"
        )
    return text


def normalize_url_fields(options: object, *names: str, optional: str = "") -> None:
    """Replace URL fields of a frozen dataclass by their validated text.

    Args:
        options: the dataclass.
        names: required fields.
        optional: a field that may be None.
    """
    for name in (*names, *([optional] if optional and getattr(options, optional) is not None else [])):
        object.__setattr__(options, name, validate_url(getattr(options, name), name))


def public_url(url: str) -> str:
    """Return a URL fit for messages: without a password, or the query of a web link, which may be a signature.

    >>> public_url("https://me:secret@example.org/x.csv"), public_url("https://example.org/x.csv?Signature=secret")
    ('https://me@example.org/x.csv', 'https://example.org/x.csv')
    """
    return _WEB_QUERY.sub(r"\1", _PASSWORD.sub(r"\1@", url))
