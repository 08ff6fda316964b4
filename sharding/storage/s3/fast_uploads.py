"""Parts of uploads to S3 by urllib3: s3fs copies and hashes all bodies in one Python thread.

To the same places, with the same credentials and the same checksum: see `fast.py`, which does so for what is read. What
fails is to be left to s3fs, which says what is wrong.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from urllib.request import getproxies

import fsspec
from fsspec.asyn import sync

from ..retry import IncompleteError
from .fast_reads import credentials, is_supported

__all__ = ["send_part"]

_SENDERS = "_ringfeed_senders"  # by bucket; kept in the s3fs instance, to live as long as it does
_FAILURES = 3  # of a bucket, without a success between, and it is left to s3fs
_CONNECTIONS = 32
_CONNECT_SECONDS, _READ_SECONDS = 5.0, 15.0  # those of s3fs
_BLOCK_BYTES = 256 << 10  # that the store has to take within the first of them
_VALID_SECONDS = 900  # a signed request


def send_part(fs: fsspec.AbstractFileSystem, target: str, upload: Mapping[str, Any], body: memoryview) -> str | None:
    """Send a part of a multipart upload.

    Args:
        fs: of s3fs.
        target: bucket and key.
        upload: ``UploadId`` and ``PartNumber``.
        body: of the part.

    Returns:
        Its ETag; None if s3fs has to send it.

    Raises:
        IncompleteError: it failed; s3fs has to send it then.
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
        self._fs, self._endpoint = fs, str(client.meta.endpoint_url).rstrip("/")
        self._region = client.meta.region_name or "us-east-1"
        self._checked = getattr(client.meta.config, "request_checksum_calculation", None) != "when_required"
        authorities = fs.session.get_config_variable("ca_bundle") or get_cert_path(True)
        timeout = urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS)
        self._pool = urllib3.PoolManager(maxsize=_CONNECTIONS, ca_certs=authorities, timeout=timeout, retries=False)
        self._failures = 0

    def send(self, target: str, upload: Mapping[str, Any], body: memoryview) -> str | None:
        if self._failures >= _FAILURES:
            return None
        headers = {"x-amz-request-payer": "requester"} if self._fs.req_kw else {}
        if self._checked:
            headers["x-amz-checksum-crc32"] = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        try:
            url = self._signed(target, upload, headers)
            headers["content-length"] = str(len(body))
            blocks = (body[start : start + _BLOCK_BYTES] for start in range(0, len(body), _BLOCK_BYTES))
            reply = self._pool.request("PUT", url, body=blocks, headers=headers)  # type: ignore[arg-type]  # sockets send it
            etag = reply.headers.get("etag")
            if reply.status != 200 or not etag:
                raise OSError(f"HTTP {reply.status} {reply.data[:200]!r}")
        except Exception as error:
            self._failures += 1
            raise IncompleteError(f"urllib3 could not send a part ({type(error).__name__})") from error
        self._failures = 0
        return str(etag)

    def _signed(self, target: str, upload: Mapping[str, Any], headers: Mapping[str, str]) -> str:
        """The URL of the part; the signature is of everything but its body."""
        from botocore.auth import S3SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        known = credentials(self._fs)
        identity = Credentials(known["access_key_id"], known["secret_access_key"], known["token"])
        place = f"{self._endpoint}/{quote(target, safe='/~')}"
        query = {"partNumber": str(upload["PartNumber"]), "uploadId": upload["UploadId"]}
        request = AWSRequest("PUT", place, headers=dict(headers), params=query)
        S3SigV4QueryAuth(identity, "s3", self._region, expires=_VALID_SECONDS).add_auth(request)
        return str(request.url)
