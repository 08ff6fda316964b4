"""URLs as users write them, as they are opened, and as they may be printed."""

from __future__ import annotations

import os
import re

from ..errors import ConfigError

__all__ = ["OBJECT_STORES", "S3", "WEB", "given_url", "public_url", "take_urls", "url_text"]


def url_text(url: object, what: str) -> str:
    """A URL as text, given so or as a path; its schemes in lower case, as RFC 3986 has it.

    Raises:
        ConfigError: it is neither, or holds bytes that are no UTF-8, which neither Arrow nor a manifest can name.
    """
    if not isinstance(url, (str, os.PathLike)) or not isinstance(text := os.fspath(url), str):
        raise ConfigError(f"{what} must be a URL or a path, got {url!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} must be a name in UTF-8, got {text!r}; rename it") from error
    return re.sub(r"(?:^|(?<=::))[A-Za-z][A-Za-z0-9+.-]*://", lambda scheme: scheme[0].lower(), text)


def given_url(url: object, what: str) -> str:
    """As `url_text`, of one that a user gives; empty it would be the current folder, and is a variable that is not set.

    Raises:
        ConfigError: it is neither, or empty.
    """
    text = url_text(url, what)
    if not text:
        raise ConfigError(f"{what} must be a URL or a path, got an empty one")
    if lost := re.match(r"(s3a?|hdfs|gs|gcs|az|abfss?|https?):/(?!/)", text):
        raise ConfigError(
            f"{what} must be a URL or a path, got {text!r}, which lacks a slash, as URLs do that were a pathlib.Path; "
            f"name {lost[1]}://{text[lost.end() :]}, or ./{text} if it is a folder of this machine"
        )
    return text


def take_urls(options: object, *names: str, optional: str = "") -> None:
    """Make text of fields of a frozen dataclass that may be given as paths, one also as None; see `given_url`."""
    for name in (*names, *([optional] if optional and getattr(options, optional) is not None else [])):
        object.__setattr__(options, name, given_url(getattr(options, name), name))


def public_url(url: str) -> str:
    """A URL without the password that it may hold, or the query of a web link, which may sign it; to be written down.

    >>> public_url("https://me:secret@example.org/x.csv"), public_url("https://example.org/x.csv?Signature=secret")
    ('https://me@example.org/x.csv', 'https://example.org/x.csv')
    """
    plain = re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1@", url)
    return re.sub(r"(https?://[^?]*?)\?.*?(?=::|$)", r"\1", plain, flags=re.DOTALL)


S3 = {"s3", "s3a"}


WEB = {"http", "https"}


OBJECT_STORES = {*S3, "gs", "gcs", "az", "abfs", "abfss", "memory"}  # a single PUT is atomic there
