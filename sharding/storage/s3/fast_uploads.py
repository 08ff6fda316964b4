"""Sends parts of S3 uploads with urllib3, because s3fs copies and hashes all bodies in one Python thread.

A part goes to the same URL, with the same credentials and checksum, as from s3fs, whose client signs it (which takes
0.6 to 2 ms for 16 MiB, measured 2026-11-26). `fast_reads.py` does the same for reads. What fails here is left to s3fs,
which then reports what is wrong.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.request import getproxies

import fsspec
from fsspec.asyn import sync

from ringfeed.sharding.storage.client_errors import HTTPError, IncompleteError, is_busy

from .fast_reads import is_supported

_SENDERS = "_ringfeed_senders"  # by bucket; kept in the s3fs instance, to live as long as it does
_FAILURES = 3  # in a row for a bucket, after which it is left to s3fs
_CONNECTIONS = 32
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 15.0  # as in s3fs
_BLOCK_BYTES = 256 << 10  # sent per call: the store has to accept one within the read timeout
_VALID_SECONDS = 900  # of a signed request


def send_part(fs: fsspec.AbstractFileSystem, target: str, upload: Mapping[str, Any], body: memoryview) -> str | None:
    """Send one part of a multipart upload.

    Args:
        upload: ``UploadId`` and ``PartNumber``.

    Returns:
        The part's ETag, or None if s3fs has to send it.

    Raises:
        HTTPError: the store is busy, and has to be asked again.
        IncompleteError: sending failed; s3fs has to send it.
    """
    bucket = target.partition("/")[0]
    senders: dict[str, _Sender | None] = fs.__dict__.setdefault(_SENDERS, {})
    if bucket not in senders:
        senders[bucket] = _Sender(fs) if is_supported(fs, bucket) and not fs.anon and not getproxies() else None
    sender = senders[bucket]
    return None if sender is None else sender.send(target, upload, body)


class _Sender:
    def __init__(self, fs: fsspec.AbstractFileSystem) -> None:
        import urllib3
        from botocore.httpsession import get_cert_path

        client = sync(fs.loop, fs.set_session)
        self._fs = fs
        self._checked = getattr(client.meta.config, "request_checksum_calculation", None) != "when_required"
        authorities = fs.session.get_config_variable("ca_bundle") or get_cert_path(True)
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
        self._pool = urllib3.PoolManager(maxsize=_CONNECTIONS, ca_certs=authorities, timeout=timeout, retries=False)
        self._failures = 0

    def send(self, target: str, upload: Mapping[str, Any], body: memoryview) -> str | None:
        if self._failures >= _FAILURES:
            return None
        bucket, _, key = target.partition("/")
        parameters = {"Bucket": bucket, "Key": key, **upload, **self._fs.req_kw}
        headers = {"content-length": str(len(body))}
        if self._fs.req_kw:
            headers["x-amz-request-payer"] = "requester"
        if self._checked:
            checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
            parameters["ChecksumCRC32"] = headers["x-amz-checksum-crc32"] = checksum
        try:
            url = sync(self._fs.loop, self._signed_url, parameters)
            blocks = (body[start : start + _BLOCK_BYTES] for start in range(0, len(body), _BLOCK_BYTES))
            reply = self._pool.request("PUT", url, body=blocks, headers=headers)  # type: ignore[arg-type]  # sockets send it
            etag = reply.headers.get("etag")
            if reply.status != 200:
                raise HTTPError(reply.status, str(reply.data[:200]), reply.headers)
            if not etag:
                raise OSError("no ETag")
        except Exception as error:
            if is_busy(error):
                raise
            self._failures += 1
            raise IncompleteError(f"urllib3 could not send a part ({type(error).__name__})") from error
        self._failures = 0
        return str(etag)

    async def _signed_url(self, parameters: Mapping[str, Any]) -> str:
        client = await self._fs.set_session()
        url: str = await client.generate_presigned_url("upload_part", Params=parameters, ExpiresIn=_VALID_SECONDS)
        return url
