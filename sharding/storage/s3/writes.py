"""Writes objects to S3 and checks them: in one request, exclusively, or in parts that are retried one by one.

Tested in tests/sharding/storage/test_storage.py.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import fsspec
import pyarrow as pa

from ringfeed.sharding.storage.atomic_files import Bytes
from ringfeed.sharding.storage.client_errors import IncompleteError, is_transient
from ringfeed.sharding.storage.retry import RetryPolicy, retry

from .fast_uploads import send_part

T = TypeVar("T")

SINGLE_BYTES = 64 << 20  # objects up to this size are written in one request

_PART_BYTES = 16 << 20
_PARTS_OF_ONE_SIZE = 1000  # then the size doubles, so that 10,000 parts, the limit, hold 5 TiB
_PARTS_AT_ONCE = 4
_HASHED_BYTES = 1 << 20  # hashing more takes longer than a request for the size


def put_object(fs: fsspec.AbstractFileSystem, target: str, data: bytes) -> None:
    """Write an object in one request; an IncompleteError if the store does not have all of it."""
    bucket, key, _ = fs.split_path(target)
    reply = fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data)
    if len(data) > _HASHED_BYTES or _etag(reply) != hashlib.md5(data, usedforsecurity=False).hexdigest():
        _check_size(fs, bucket, key, len(data))  # the ETag of an encrypted object is no MD5


def create_object(fs: fsspec.AbstractFileSystem, target: str, data: bytes, policy: RetryPolicy) -> None:
    """Write an object that does not exist yet; raises a FileExistsError if it exists."""
    if retry(lambda: fs.exists(target), policy):  # some stores ignore the condition below
        raise FileExistsError(target)
    bucket, key, _ = fs.split_path(target)
    creator = secrets.token_hex(16)
    metadata = {**fs.s3_additional_kwargs.get("Metadata", {}), "creator": creator}

    def attempt() -> None:
        try:
            fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*", Metadata=metadata)
        except OSError as error:
            if not _is_precondition_failed(error):
                raise
            # The HTTP library repeats a PUT after a broken connection, which may find its own object.
            if fs.call_s3("head_object", Bucket=bucket, Key=key).get("Metadata", {}).get("creator") != creator:
                raise FileExistsError(target) from error
        _check_size(fs, bucket, key, len(data))

    retry(attempt, policy)


def list_uploads(fs: fsspec.AbstractFileSystem, root: str, start: str = "") -> list[tuple[str, str]]:
    """List up to 1,000 unfinished multipart uploads below a folder, as path and id; only paths that begin with `start`.

    Their parts cost storage, and no listing of files shows them.
    """
    bucket, _, prefix = root.partition("/")
    folder = f"{prefix}/" if prefix else ""
    reply = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=folder + start)
    uploads = ((upload["Key"], upload["UploadId"]) for upload in reply.get("Uploads", ()))
    return [(key.removeprefix(folder), upload) for key, upload in uploads if key.startswith(folder + start)]


def abort_upload(fs: fsspec.AbstractFileSystem, target: str, upload: str) -> None:
    """Abort a multipart upload, if it still exists, and remove its parts."""
    bucket, key, _ = fs.split_path(target)
    with suppress(FileNotFoundError):  # NoSuchUpload
        fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload)


class S3Draft:
    """A multipart upload: parts are sent in parallel as they fill up, and joined at the end."""

    def __init__(self, fs: fsspec.AbstractFileSystem, target: str, policy: RetryPolicy) -> None:
        self._fs, self._target, self._policy = fs, target, policy
        self._bucket, self._key, _ = fs.split_path(target)
        self._upload = ""
        self._part, self._filled = memoryview(b""), 0  # the current part, and the bytes in it
        self._bytes = 0
        self._parts: list[Future[str]] = []
        self._discarded = threading.Event()
        self._pool = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="ringfeed-upload")

    def write(self, data: Bytes) -> None:
        rest = memoryview(data).cast("B")
        self._bytes += len(rest)
        while len(rest):
            if not len(self._part):
                self._part = _new_part(_PART_BYTES << (len(self._parts) // _PARTS_OF_ONE_SIZE))
            some = rest[: len(self._part) - self._filled]
            self._part[self._filled : self._filled + len(some)] = some
            self._filled += len(some)
            if self._filled == len(self._part):
                self._send()
            rest = rest[len(some) :]

    def commit(self, *, exclusive: bool = False) -> None:
        if exclusive:
            raise ValueError("write an exclusive object with create_object")
        if not self._parts:
            data = bytes(self._part[: self._filled])
            retry(lambda: put_object(self._fs, self._target, data), self._policy)
        else:
            if self._filled:
                self._send()
            etags = [part.result() for part in self._parts]
            parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, start=1)]
            self._retry(lambda: self._complete(parts))
        self._pool.shutdown()

    def discard(self) -> None:
        self._discarded.set()
        self._pool.shutdown(cancel_futures=True)  # a part that arrives after the abort would stay forever
        if self._upload:
            with suppress(Exception):  # the original error matters
                self._call("abort_multipart_upload", UploadId=self._upload)

    def _send(self) -> None:
        if not self._upload:
            self._upload = self._retry(lambda: self._call("create_multipart_upload"))["UploadId"]
        if len(self._parts) >= _PARTS_AT_ONCE:
            self._parts[-_PARTS_AT_ONCE].result()  # limits the memory, and reports failures early
        body = self._part[: self._filled]
        self._part, self._filled = memoryview(b""), 0
        self._parts.append(self._pool.submit(self._send_part, len(self._parts) + 1, body))

    def _send_part(self, number: int, body: memoryview) -> str:
        upload = {"UploadId": self._upload, "PartNumber": number}
        fast = iter([self._policy.attempts > 1])  # the first attempt, if s3fs can make another and say what is wrong

        def attempt() -> str:
            if next(fast, False) and (etag := send_part(self._fs, self._target, upload, body)):
                return etag
            return str(self._call("upload_part", **upload, Body=bytes(body))["ETag"])

        return self._retry(attempt)

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        try:
            self._call("complete_multipart_upload", UploadId=self._upload, MultipartUpload={"Parts": parts})
        except FileNotFoundError:  # NoSuchUpload: probably completed, with a lost reply
            head = self._call("head_object")
            if not _etag(head).endswith(f"-{len(parts)}"):
                raise
        _check_size(self._fs, self._bucket, self._key, self._bytes)

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._fs.call_s3(method, Bucket=self._bucket, Key=self._key, **arguments)

    def _retry(self, operation: Callable[[], T]) -> T:
        def transient(error: Exception) -> bool:
            return not self._discarded.is_set() and is_transient(error)

        return retry(operation, self._policy, transient=transient, sleep=self._discarded.wait)


def _new_part(size: int) -> memoryview:
    """Allocate from Arrow's pool, whose recycled pages need no clearing."""
    return memoryview(pa.allocate_buffer(size)).cast("B")


def _check_size(fs: fsspec.AbstractFileSystem, bucket: str, key: str, expected: int) -> None:
    try:
        size = fs.call_s3("head_object", Bucket=bucket, Key=key)["ContentLength"]
    except FileNotFoundError as error:
        raise IncompleteError("the store accepted the object but does not have it") from error
    if size != expected:
        raise IncompleteError(f"the store has {size} bytes of {expected}")


def _etag(reply: Any) -> str:
    return str(reply.get("ETag", "")).strip('"')


def _is_precondition_failed(error: OSError) -> bool:
    """SeaweedFS and Ceph do not name the failed condition, so that s3fs raises EINVAL."""
    if isinstance(error, FileExistsError):
        return True
    response = getattr(error.__cause__, "response", None) or {}
    return bool(response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 412)
