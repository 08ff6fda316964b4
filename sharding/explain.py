"""One line for what a store's client raised: what is wrong, and what to do about it."""

from __future__ import annotations

import errno
import re

from .clients import S3, WEB
from .retry import error_code, error_number

__all__ = ["NO_MORE_PROCESSES", "explain", "refuses_processes"]

_DENIALS = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessControlException")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken")
_BUSY = ("SlowDown", "ServiceUnavailable", "503", "429", "TooManyRequests")
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
    errno.ENOTDIR: "a name in its path is that of a file, or of a link that leads nowhere, where a folder must be; "
    "check the path",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
}
NO_MORE_PROCESSES = (
    "this machine begins no more processes or threads; use fewer --workers, or raise the limit (ulimit -u, or that of "
    "processes in the container)"
)
_REFUSALS = ("can't start new thread", "Failed to launch worker thread")  # Python's RuntimeError, Arrow's
_HDFS = {
    "QuotaExceeded": "the quota of the folder is used up; free space or choose another folder",
    "could only be replicated to 0 nodes": "no DataNode takes data: they are down or full",
    "SafeModeException": "the NameNode is in safe mode; wait until it has left it",
    "All DataNodes failed": "the DataNodes that hold the file do not answer",
    "All nodes failed": "the DataNodes do not answer",
    "Failed to complete file in time": "the DataNodes do not answer",
    "no answer within": "the NameNode takes the connection and does not answer; see whether it is stopped, overloaded "
    "or behind a firewall (hdfs dfsadmin -report)",
    "Connection refused (os error": "the NameNode or a DataNode is down",
    "Connection refused": "no NameNode answers there; check host and port, and that it runs",
}


def explain(error: BaseException, protocol: str, *, writing: bool) -> str:
    """What is wrong and what to do about it, in one line.

    Args:
        error: as the client raised it.
        protocol: of the store.
        writing: whether something was being written: then an unknown file is an unknown bucket or folder.

    >>> explain(OSError(28, "No space left on device"), "file", writing=True)
    'the disk is full; free space or choose another folder'
    """
    name, text = type(error).__name__, str(error)
    if writing and isinstance(error, NotImplementedError):  # so fsspec says of stores that are only read
        return "nothing can be written to such a store; name a folder on a local disk, S3, HDFS, GCS or Azure"
    if "Protocol not known" in text:  # of fsspec's registry
        return f"no file system is called {text.rpartition(' ')[2]!r}; {_PROTOCOLS}"
    if protocol in _ARCHIVES and isinstance(error, IsADirectoryError):  # fsspec takes no archive for the current folder
        return f"no archive is named; name one after ::, as in {protocol}://PATH::ARCHIVE"
    if "multiple values for keyword argument 'host'" in text:  # fsspec opens chains to such stores no more
        return "what lies on a store whose URL has a host, such as HDFS, is opened by no chain; copy it to a local disk"
    code = error_code(error)
    if code in _EXPIRED:
        goes_on = ": it goes on where it stopped" if writing else ""
        return f"the credentials have expired ({code}); renew them and start the same command again{goes_on}"
    if code == "RequestTimeTooSkewed":
        return "the clock of this machine is wrong; set it"
    if isinstance(error, FileNotFoundError):
        return _missing(protocol)
    if "NoCredentials" in f"{name} {text}":
        return (
            "permission denied, for no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "AWS_PROFILE, or FSSPEC_S3_ANON=true for a public bucket"
        )
    if (
        isinstance(error, PermissionError)
        or "Permission denied" in text
        or any(w in f"{name} {text}" for w in _DENIALS)
    ):
        return f"permission denied; {_remedy(protocol)}"
    number = error_number(error)
    if number in _DISK:
        return _DISK[number]
    if protocol == "hdfs":
        for mark, meaning in _HDFS.items():
            if mark in text:
                return meaning
    if code in _BUSY:
        return f"the store asks for fewer requests ({code}); use fewer --workers, or try later"
    if code:
        name, text = code, re.sub(r"^\[Errno \d+\] ", "", text)
    line = " ".join(re.split(r"\n|\\n", text)[0].split())  # HDFS clients append a Java stack trace
    return f"{name}: {line[:300]}" if line else name


def refuses_processes(error: BaseException) -> bool:
    """Whether an error says that no process or thread could be begun.

    >>> refuses_processes(RuntimeError("can't start new thread")), refuses_processes(BlockingIOError(11, "fork"))
    (True, True)
    """
    if isinstance(error, BlockingIOError) or any(refusal in str(error) for refusal in _REFUSALS):
        return True
    return error.__context__ is not None and refuses_processes(error.__context__)  # cleaning up fails next


def _missing(protocol: str) -> str:
    if protocol in S3:
        return "the bucket does not exist; create it first, or check its name and the endpoint (AWS_ENDPOINT_URL)"
    return "there is no such file or folder"


def _remedy(protocol: str) -> str:
    if protocol in S3:
        return "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_PROFILE, and the rights they have"
    if protocol == "hdfs":
        return "check the folder's owner and mode, and HADOOP_USER_NAME"
    if protocol in WEB:
        return "a signed link may have expired; else name user and password in the URL"
    return "check the rights of the folder"
