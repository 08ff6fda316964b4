"""URLs without their secrets, for messages and files: passwords, tokens, signatures.

Users write more than RFC 3986 allows, such as a raw ``@``, ``/`` or ``?`` in a password. A URL that can be read in two
ways is cut so that no secret is shown, even if a part of its path is lost.
"""

from __future__ import annotations

import re

_SCHEME = r"(?:[A-Za-z][A-Za-z0-9+.-]*://|(?:https?|ftps?|s3a?|gs|gcs|hdfs|az|abfss?):/)"  # one / after pathlib.Path
_URL = re.compile(rf"(?:^|(?<=::))({_SCHEME})((?:(?!::{_SCHEME}).)*)", re.DOTALL)  # groups: scheme, rest
_IN_TEXT = re.compile(rf"(?<![A-Za-z0-9+.-])({_SCHEME})((?:(?!(?:::|[\"'<>(,;]){_SCHEME})\S)*)")
_TRAILING = re.compile(r"[:;,.)'\"\]>}]*\Z")
_AUTHORITY = re.compile(r"[^/?#]*")
_HOST = re.compile(r"(?:[^:@\[\]]+|\[[0-9A-Fa-f:.%]+\])(?::\d*)?")
_CERTAIN_HOST = re.compile(r"[.:]|localhost")
_QUERY = re.compile(  # not the ? of a glob; clients quote it in their messages
    r"(?:[?#]|%3F|%23)(?!(?:versionId|uploadId)=[^&]*\Z)[\w.~-]+(?:=|%3D).*", re.DOTALL | re.IGNORECASE
)
_WEB = {"http", "https"}  # whose whole query may be a signature, and whose user may be a token
_BUCKETS = {"s3", "s3a", "gs", "gcs"}  # whose names hold neither : nor @
_CREDENTIALS = {"s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
_PLAIN = {"file", "local", "memory", "zip", "tar", "rar", "libarchive", "github", "hf", "reference"}  # without a host


def public_url(url: str) -> str:
    """Return a URL fit for messages and files.

    >>> public_url("https://me:secret@example.org/x.csv"), public_url("https://example.org/x.csv?Signature=secret")
    ('https://example.org/x.csv', 'https://example.org/x.csv')
    >>> public_url("zip://a.csv::ftp://me:se/cr@et@example.org/x.zip"), public_url("az://c/x.csv?sig=secret")
    ('zip://a.csv::ftp://me@example.org/x.zip', 'az://c/x.csv')
    """
    return _URL.sub(lambda match: _clean(match[1], match[2]), url)


def without_secrets(text: str) -> str:
    """Text with its URLs as `public_url` returns them.

    >>> without_secrets("nothing at https://me:secret@example.org/x.csv?Signature=secret; check the path")
    'nothing at https://example.org/x.csv; check the path'
    """

    def clean(match: re.Match[str]) -> str:
        end = _TRAILING.search(match[2])
        assert end is not None
        return public_url(_clean(match[1], match[2][: end.start()])) + end[0]

    return _IN_TEXT.sub(clean, text)


def secret_problem(url: str) -> str:
    """What is wrong with the place of the secrets in a URL, and the remedy; empty if nothing is.

    >>> secret_problem("http://me:se/cret@example.org"), secret_problem("http://me:se%2Fcret@example.org")
    ('write a /, ?, # or @ in its password as %2F, %3F, %23 or %40', '')
    """
    for match in _URL.finditer(url):
        kind = match[1].rstrip(":/").lower()
        if not _find_userinfo(kind, match[2])[1]:
            if kind in _BUCKETS:
                where = _CREDENTIALS["s3" if kind.startswith("s3") else "gs"]
                return f"the URL of a bucket holds no credentials; set {where} instead"
            return "write a /, ?, # or @ in its password as %2F, %3F, %23 or %40"
    return ""


def _find_userinfo(scheme: str, rest: str) -> tuple[int, bool]:
    """Find the ``user:password`` of a URL.

    Args:
        rest: what follows ``://``.

    Returns:
        Its length, -1 if there is none; and whether the URL is readable by RFC 3986.
    """
    authority = _AUTHORITY.match(rest)
    assert authority is not None
    user, at, host = authority[0].rpartition("@")
    if scheme in _PLAIN or authority[0].startswith("arn:"):
        return -1, True
    if scheme in _BUCKETS:
        return (rest.rfind("@"), False) if at or (":" in host and "@" in rest) else (-1, True)
    if not at and (not host or _HOST.fullmatch(host)):
        return -1, True
    if not _HOST.fullmatch(host):
        return rest.rfind("@"), "@" not in rest
    if ":" in user and not _CERTAIN_HOST.search(host):  # then an @ in the path may be of the password, too
        path = re.match(r"[^?#]*", rest[authority.end() :])
        assert path is not None
        return max(len(user), authority.end() + path[0].rfind("@") if "@" in path[0] else 0), True
    return len(user), True


def _clean(scheme: str, rest: str) -> str:
    kind = scheme.rstrip(":/").lower()
    if kind in _PLAIN:
        return scheme + rest
    end, _ = _find_userinfo(kind, rest)
    user = rest[: max(end, 0)].partition(":")[0]
    shown = "" if end < 0 or kind in _WEB | _BUCKETS else f"{user}@"
    rest = rest[end + 1 :]
    rest = re.split(r"[?#]", rest, maxsplit=1)[0] if kind in _WEB else rest
    return scheme + shown + _QUERY.sub("", rest)
