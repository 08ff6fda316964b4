"""Reads S3 objects with obstore, if it is installed (``pip install 'ringfeed[fast]'``): s3fs takes 1.5 to 4 times as
long, because it reads all bodies in one Python thread.

Credentials, endpoint and region are those that s3fs found. With options that are not known here, and after a failure,
s3fs reads the object itself, with retries, and reports what is wrong.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.asyn import sync

from ringfeed.sharding.messages import brief
from ringfeed.sharding.storage.timeouts import call_within

_logger = logging.getLogger(__name__)

_OPTIONS = {
    "key", "secret", "token", "anon", "profile", "endpoint_url", "requester_pays", "username", "password",
    "client_kwargs", "config_kwargs", "use_listings_cache", "max_concurrency", "skip_instance_cache",
}  # fmt: skip
_CLIENT_OPTIONS = {"endpoint_url", "region_name"}
_CONFIG_OPTIONS = {"retries", "max_pool_connections", "signature_version"}
_REFRESH = timedelta(minutes=5)  # s3fs renews its credentials itself; asking it costs nothing
_FAILURES = 3  # in a row for a bucket, after which it is left to s3fs
_BUSY = re.compile(r"\b(?:429|503)\b|SlowDown")  # what obstore says of a refusal by a busy store, without its headers
_PIECE_BYTES = 1 << 20
_STORES = "_ringfeed_obstore"  # by bucket; kept in the s3fs instance, to live as long as it does
_TIMEOUTS = {"connect_timeout": "10s", "read_timeout": "15s", "timeout": "6h"}  # as in s3fs, which lacks the third

_pids: set[int] = set()  # processes that used obstore, whose threads a fork lacks


def read_object(fs: fsspec.AbstractFileSystem, path: str, span: tuple[int, int] | None = None) -> pa.Buffer | None:
    """Read an object, or a byte range of it.

    Returns:
        The bytes, or None if s3fs has to read them.
    """
    taken: list[pa.Buffer] = []

    def take(result: Any) -> None:
        first, last = result.range
        limit = fs.ringfeed_timings.request_limit_seconds(last - first)
        taken.append(pa.py_buffer(call_within(limit, result.bytes)))

    if _read(fs, path, take, span):
        return taken[0]
    return None


def copy_object(fs: fsspec.AbstractFileSystem, path: str, take: Callable[[Any], None]) -> bool:
    """Pass on an object piece by piece as it arrives.

    Returns:
        False if s3fs has to read the object, from its start.

    Raises:
        Exception: any error of `take`.
    """
    raised: list[BaseException] = []

    def copy(result: Any) -> None:
        for piece in result.stream(min_chunk_size=_PIECE_BYTES):
            try:
                take(piece)
            except BaseException as error:
                raised.append(error)
                return

    done = _read(fs, path, copy)
    if raised:
        raise raised[0]
    return done


def is_supported(fs: fsspec.AbstractFileSystem, bucket: str) -> bool:
    """Whether the bucket is an ordinary one, and all options of s3fs are known here."""
    options, config = fs.storage_options, fs.storage_options.get("config_kwargs") or {}
    return (
        options.keys() <= _OPTIONS
        and (options.get("client_kwargs") or {}).keys() <= _CLIENT_OPTIONS
        and config.keys() <= _CONFIG_OPTIONS
        and config.get("signature_version", "s3v4") == "s3v4"
        and ":" not in bucket
        and not bucket.endswith("--x-s3")
    )


def credentials(fs: fsspec.AbstractFileSystem) -> dict[str, Any]:
    """The credentials that s3fs found, by obstore's names."""
    if fs.key:
        return {"access_key_id": fs.key, "secret_access_key": fs.secret, "token": fs.token, "expires_at": None}
    frozen = sync(fs.loop, _frozen_credentials, fs.session)
    return {
        "access_key_id": frozen.access_key,
        "secret_access_key": frozen.secret_key,
        "token": frozen.token,
        "expires_at": datetime.now(timezone.utc) + _REFRESH,
    }


def _read(
    fs: fsspec.AbstractFileSystem, path: str, take: Callable[[Any], None], span: tuple[int, int] | None = None
) -> bool:
    """Pass the result of a request to `take`; return whether it succeeded."""
    _pids.add(os.getpid())
    if len(_pids) > 1:
        return False
    bucket, _, key = path.partition("/")
    stores: dict[str, list[Any]] = fs.__dict__.setdefault(_STORES, {})
    if bucket not in stores:
        stores[bucket] = [_open(fs, bucket), 0]
    store, failures = stores[bucket]
    if store is None or failures >= _FAILURES:
        return False
    import obstore

    try:
        get = partial(obstore.get, store, key, options={"range": span} if span else {})
        take(call_within(fs.ringfeed_timings.request_limit_seconds(0), get))
    except FileNotFoundError:
        return False
    except Exception as error:
        if not _BUSY.search(str(error)):
            stores[bucket][1] += 1
        _logger.info("obstore could not read %s, s3fs will: %s", path, brief(error))
        return False
    stores[bucket][1] = 0
    return True


def _open(fs: fsspec.AbstractFileSystem, bucket: str) -> Any:
    """Open a bucket with obstore; None if s3fs has to read it."""
    if not is_supported(fs, bucket):
        return None
    try:
        from obstore.store import S3Store
    except ImportError:
        return None
    client = sync(fs.loop, fs.set_session)
    endpoint = str(client.meta.endpoint_url)
    return S3Store(
        bucket,
        config={
            "aws_endpoint_url_s3": endpoint,  # takes precedence over `endpoint`, even from the environment
            "region": client.meta.region_name or "us-east-1",
            "virtual_hosted_style_request": False,
            "skip_signature": bool(fs.anon),
            "request_payer": bool(fs.req_kw),
        },
        client_options={**_TIMEOUTS, "allow_http": endpoint.startswith("http://")},
        retry_config={"max_retries": 0},
        **({} if fs.anon else {"credential_provider": lambda: credentials(fs)}),
    )


async def _frozen_credentials(session: Any) -> Any:
    return await (await session.get_credentials()).get_frozen_credentials()
