"""Debian's Prometheus, unpacked into a folder of the cache: its package would start a service."""

import json
import logging
import os
import shutil
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from .cache import cache_directory, made_once, run
from .process import ServerError, free_ports, running, wait_until_ready

PACKAGE = "prometheus"
_FOLDER = "prometheus-debian"
_PROGRAM = "usr/bin/prometheus"

logger = logging.getLogger(__name__)


def prometheus_obstacle() -> str:
    """Return why there is no Prometheus here; empty if there is one, or it can be unpacked."""
    if shutil.which(PACKAGE) or (cache_directory() / _FOLDER).is_dir():
        return ""
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        return ""
    return f"it is unpacked from Debian's package {PACKAGE}; elsewhere, put it on the path"


def is_prometheus_there() -> bool:
    """Whether Prometheus is on the path or unpacked."""
    return bool(shutil.which(PACKAGE)) or (cache_directory() / _FOLDER).is_dir()


def prometheus_program() -> str:
    """Return the path of Prometheus, after unpacking it if it is not there.

    Raises:
        ServerError: it cannot be had here.
    """
    return shutil.which(PACKAGE) or str(made_once(_FOLDER, _make) / _PROGRAM)


def _make(scratch: Path) -> Path:
    logger.info("downloading Debian's %s", PACKAGE)
    if os.geteuid() == 0:
        run(["apt-get", "update"])
    run(["env", "-C", str(scratch), "apt-get", "download", PACKAGE])
    made = scratch / "unpacked"
    run(["dpkg-deb", "-x", str(next(scratch.glob("*.deb"))), str(made)])
    if not (made / _PROGRAM).exists():
        raise ServerError(f"Debian's {PACKAGE} holds no {_PROGRAM}")
    return made


class Prometheus:
    """A running server that scrapes some ports of this machine each second."""

    def __init__(self, port: int) -> None:
        self._port = port

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the answer to an expression now: samples, each with ``metric`` (labels) and ``value`` (time, text)."""
        asked = urllib.parse.urlencode({"query": expression})
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            connection.request("GET", f"/api/v1/query?{asked}")
            with connection.getresponse() as answer:
                result: list[dict[str, Any]] = json.loads(answer.read())["data"]["result"]
        return result


@contextmanager
def scraping(ports: Sequence[int], folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus in a folder; it scrapes these ports each second."""
    (own,) = free_ports(1)
    job = {"job_name": "ringfeed", "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        prometheus_program(), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{own}",
    ]  # fmt: skip
    log, server = folder / "prometheus.log", Prometheus(own)
    with running(command, log, {}, folder) as process:
        wait_until_ready(PACKAGE, lambda: server.query("vector(1)"), {log: process})
        yield server
