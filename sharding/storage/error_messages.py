"""Explains errors of the stores' clients in one line: what is wrong, and what to do about it.

Tested in tests/sharding/storage/test_retry.py.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from pathlib import Path

from ringfeed.sharding.url_secrets import without_secrets

from .client_errors import (
    cause_chain,
    error_code,
    error_number,
    is_redirect_loop,
    is_tls_failure,
    is_unknown_host,
    s3_response,
)
from .s3.timeouts import NotS3Error
from .special_files import SpecialFileError
from .urls import S3_PROTOCOLS, WEB_PROTOCOLS

_DENIALS = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessControlException")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken")
_ELSEWHERE = ("301", "307", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException")
_OTHER_REGION = ("AuthorizationHeaderMalformed", "AuthorizationQueryParametersError")
_NO_HTTP = ("Bad status line", "Bad HTTP", "Invalid header", "Got more than", "Expected HTTP/")  # aiohttp's parser
_BUSY = ("SlowDown", "ServiceUnavailable", "503", "429", "TooManyRequests")
_NO_REPOSITORY = ("RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError")  # of the Hugging Face Hub
_ARCHIVES = ("zip", "tar", "libarchive", "rar")
_PROTOCOLS = "name a path of this machine, s3://, hdfs://, gs://, az://, https://, or another that fsspec opens"
_DISK = {
    errno.ENOSPC: "the disk is full; free space or choose another folder",
    errno.EDQUOT: "the disk quota is used up; free space or choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.EFBIG: "the file is larger than this process or file system may write; raise the limit (ulimit -f), or ask "
    "for more --shards",
    errno.EISDIR: "it is a folder, where a file must be; check the path",
    errno.ENAMETOOLONG: "its name is longer than the file system takes; check the path",
    errno.ENOTDIR: "a name in its path belongs to a file, or to a link that leads nowhere, where a folder must be; "
    "check the path",
    errno.ENFILE: "this machine has too many open files; end other programs, or raise its limit (fs.file-max)",
}
_NO_INODES = (
    "the file system has free space, but no inodes, so it takes no more files; remove small files, choose another "
    "folder, or ask for fewer --shards"
)
PROCESS_LIMIT_REACHED = (
    "this machine starts no more processes or threads; use fewer --workers, or raise the limit (ulimit -u, or the "
    "container's limit of processes)"
)
_REFUSALS = ("can't start new thread", "Failed to launch worker thread")  # of Python, of Arrow
_HDFS = {
    "QuotaExceeded": "the quota of the folder is used up; free space or choose another folder",
    "could only be replicated to 0 nodes": "no DataNode takes data: they are down or full",
    "InvalidPathException": "HDFS takes no such path: none with ':' or '//' in it, and none through '.' or '..'",
    "SafeModeException": "the NameNode is in safe mode; wait until it has left it",
    "All DataNodes failed": "the DataNodes that hold the file do not answer",
    "All nodes failed": "the DataNodes do not answer",
    "Failed to complete file in time": "the DataNodes do not answer",
    "no answer within": "the NameNode takes the connection and does not answer; see whether it is stopped, overloaded "
    "or behind a firewall (hdfs dfsadmin -report)",
    "Connection refused (os error": "the NameNode or a DataNode is down",
    "Connection refused": "no NameNode answers there; check host and port, and that it runs",
}


def explain(error: BaseException, protocol: str, *, writing: bool, place: Path | None = None) -> str:
    """Say what is wrong and what to do about it, in one line.

    Args:
        writing: whether the operation was a write, for which "not found" means the bucket or folder.
        place: folder on this machine that was read or written, if it was.

    >>> explain(OSError(28, "No space left on device"), "file", writing=True)
    'the disk is full; free space or choose another folder'
    """
    name, text = type(error).__name__, without_secrets(str(error))
    if isinstance(error, SpecialFileError):
        return text
    if problem := _process_problem(error):
        return problem
    code = error_code(error)
    if problem := (
        _of_the_url(error, protocol, text, writing=writing)
        or _of_the_server(error, protocol)
        or _of_the_access(error, protocol, text, code, writing=writing)
    ):
        return problem
    number = error_number(error)
    if number == errno.ENOSPC and place is not None and _lacks_inodes(place):
        return _NO_INODES
    if number in _DISK:
        return _DISK[number]
    if protocol == "hdfs":
        for mark, meaning in _HDFS.items():
            if mark in text:
                return meaning
    if code in _BUSY:
        return f"the store asks for fewer requests ({code}); use fewer --workers, or try later"
    if not text and any(kind.__name__ == "TimeoutError" for kind in type(error).__mro__):  # or asyncio's
        return f"no answer came in time ({name})"
    if code:
        name, text = code, re.sub(r"^\[Errno \d+\] ", "", text)
    line = " ".join(re.split(r"\n|\\n", text)[0].split())  # HDFS clients append a Java stack trace
    return f"{name}: {line[:300]}" if line else name


def _of_the_url(error: BaseException, protocol: str, text: str, *, writing: bool) -> str:
    """What is wrong with a URL, apart from what it names; empty if nothing is."""
    if writing and isinstance(error, NotImplementedError):  # raised by fsspec's read-only file systems
        return "nothing can be written to such a store; name a folder on a local disk, S3, HDFS, GCS or Azure"
    if "Protocol not known" in text:  # from fsspec's registry
        return f"no file system is called {text.rpartition(' ')[2]!r}; {_PROTOCOLS}"
    if protocol in _ARCHIVES and isinstance(error, IsADirectoryError):  # fsspec opened the current folder
        return f"no archive is named; name one after ::, as in {protocol}://PATH::ARCHIVE"
    if "multiple values for keyword argument 'host'" in text:  # fsspec fails on chains to such stores
        return "a chained URL cannot open a file on a store whose URL has a host, such as HDFS; copy it to a local disk"
    return ""


def _of_the_access(error: BaseException, protocol: str, text: str, code: str, *, writing: bool) -> str:
    """Why a store refuses access to what a URL names, or does not find it; empty if it does neither."""
    name = type(error).__name__
    if protocol in S3_PROTOCOLS and (invalid := re.search(r"Invalid bucket name \"(.*?)\":", text)):
        return f"no bucket can be called {invalid[1]!r}; check the URL"
    if code in _EXPIRED:
        resumes = ": it goes on where it stopped" if writing else ""
        return f"the credentials have expired ({code}); renew them and start the same command again{resumes}"
    if code == "RequestTimeTooSkewed":
        return "the clock of this machine is wrong; set it"
    if protocol in S3_PROTOCOLS and (refused := _refused(error, code)):
        return refused
    if isinstance(error, FileNotFoundError):
        return _missing(protocol)
    if "NoCredentials" in f"{name} {text}":
        return (
            "permission denied: no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or FSSPEC_S3_ANON=true for a public bucket"
        )
    denied = "Permission denied" in text or any(word in f"{name} {text}" for word in _DENIALS)
    if denied or isinstance(error, PermissionError):
        return f"permission denied; {_remedy(protocol)}"
    if name in _NO_REPOSITORY:
        return "there is no such repository or revision, or it is private: check its name, or set HF_TOKEN"
    return ""


def _lacks_inodes(place: Path) -> bool:
    """Whether a file system has free space, but room for no more files."""
    try:
        status = os.statvfs(next(folder for folder in (place, *place.parents) if folder.exists()))
    except OSError:
        return False
    return status.f_files > 0 and not status.f_favail and status.f_bavail > 0


def _process_problem(error: BaseException) -> str:
    """Explain an error by the memory or the open files that this process may have; empty for other errors."""
    number = error.errno if isinstance(error, OSError) else None
    unloaded = isinstance(error, ImportError) and "failed to map segment" in str(error)
    if isinstance(error, MemoryError) or number == errno.ENOMEM or unloaded:
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        limited = f"this process may have {most >> 20:,} MiB: raise the limit (ulimit -v), or"
        limit = "end other programs, or" if most == resource.RLIM_INFINITY else limited
        return f"out of memory; {limit} use less at a time (fewer --workers, a smaller --memory or batch size)"
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"too many open files: this process may have {most}; raise the limit (ulimit -n)"
    return ""


def limit_problem(error: BaseException) -> str:
    """Explain an error by a limit of this process or machine, wherever it arose; empty for other errors.

    >>> limit_problem(RuntimeError("can't start new thread")) == PROCESS_LIMIT_REACHED, limit_problem(ValueError("x"))
    (True, '')
    """
    return PROCESS_LIMIT_REACHED if is_process_limit(error) else _process_problem(error)


def is_process_limit(error: BaseException) -> bool:
    """Whether an error means that no process or thread could be started.

    >>> is_process_limit(RuntimeError("can't start new thread")), is_process_limit(BlockingIOError(11, "fork"))
    (True, True)
    """
    if isinstance(error, BlockingIOError) or any(refusal in str(error) for refusal in _REFUSALS):
        return True
    return error.__context__ is not None and is_process_limit(error.__context__)  # the clean-up failed as well


def _of_the_server(error: BaseException, protocol: str) -> str:
    """Explain what is wrong with the server itself, whatever the request; empty if unknown."""
    where = "the endpoint (AWS_ENDPOINT_URL)" if protocol in S3_PROTOCOLS else "the URL"
    if isinstance(error, NotS3Error):
        return f"the server is no S3 store: it sends {error}; check {where}: its host and its port"
    if is_unknown_host(error):
        return f"the host name is unknown here; check {where}"
    if is_tls_failure(error):
        reason = re.search(r"certificate verify failed: ([^(\]]*[^(\] ])", " ".join(map(str, cause_chain(error))))
        if not reason:
            return f"the server speaks no TLS there, or another version; check {where}, its scheme and its port"
        setting = "AWS_CA_BUNDLE" if protocol in S3_PROTOCOLS else "SSL_CERT_FILE"
        return (
            f"the server's certificate is not trusted ({reason[1]}); if it is right, name a file with the "
            f"certificate of its authority ({setting})"
        )
    if protocol in S3_PROTOCOLS and (isinstance(error, RecursionError) or is_redirect_loop(error)):  # of botocore
        return f"the store redirects without naming a place; check the region (AWS_DEFAULT_REGION) and {where}"
    if is_redirect_loop(error):
        return f"the server redirects in circles, as some do to ask for a login; check {where}"
    if any(
        type(link).__name__ == "ClientResponseError" and mark in str(link)
        for link in cause_chain(error)
        for mark in _NO_HTTP
    ):
        return f"the server speaks no HTTP there; check {where}, its scheme and its port"
    return ""


def _refused(error: BaseException, code: str) -> str:
    """Explain a refusal of S3 that needs more than its code; empty if there is no more to say."""
    reply = s3_response(error)
    about = reply.get("ResponseMetadata", {})
    if code in _ELSEWHERE or code in _OTHER_REGION:
        region = reply["Error"].get("Region") or about.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
        named = f", {region}" if region else ""
        return (
            f"the bucket is in another region{named}, or at another endpoint ({code}); set AWS_DEFAULT_REGION or "
            "AWS_ENDPOINT_URL"
        )
    status = about.get("HTTPStatusCode")
    if code == "400":  # a reply without a body, as to HEAD
        return (
            "the store refuses the request and does not say why (400 Bad Request); the credentials may have expired: "
            "renew them; or the region may be wrong (AWS_DEFAULT_REGION)"
        )
    if code in ("405", "MethodNotAllowed", "501", "NotImplemented"):
        return f"the server takes no such requests ({code}); check that the endpoint (AWS_ENDPOINT_URL) is one of S3"
    if status in (401, 403) and code in ("", "401"):
        return f"permission denied; {_remedy('s3')}"
    if status is not None and not code:  # the page of a proxy or web server
        return f"the server answers {status}, and not as S3 does; check the endpoint (AWS_ENDPOINT_URL)"
    return ""


def _missing(protocol: str) -> str:
    if protocol in S3_PROTOCOLS:
        return "the bucket does not exist; create it first, or check its name and the endpoint (AWS_ENDPOINT_URL)"
    return "there is no such file or folder"


def _remedy(protocol: str) -> str:
    if protocol in S3_PROTOCOLS:
        return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the rights they have"
    if protocol == "hdfs":
        return "check the folder's owner and mode, and HADOOP_USER_NAME"
    if protocol in WEB_PROTOCOLS:
        return "a signed link may have expired; else name user and password in the URL"
    return "check the rights of the folder"
