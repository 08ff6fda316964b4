"""A real HDFS for the tests: a NameNode and a DataNode (Hadoop 2.7.3), everything below one directory.

The client is ``hdfs-native``, which needs neither Java nor a configuration: the URL says all.
"""

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from hdfs_native import Client, WriteOptions

from .install import hadoop_jars, java
from .process import ServerError, free_ports, kill, running, tail, wait_until_ready

NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
OPENED_PACKAGES = (
    "java.base/java.lang",
    "java.base/java.util",
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/java.net",
    "java.base/java.lang.reflect",
    "java.security.jgss/sun.security.krb5",
)
"""What Hadoop 2.7 reaches into by reflection, and Java 17 closes."""

LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsServer:
    """How to reach a running HDFS: its root, as ``hdfs://127.0.0.1:PORT``."""

    url: str


class HdfsProcesses:
    """A NameNode, and a DataNode that a test may kill and start again."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._ports = free_ports(5)
        self._command = _prepare(directory, self._ports)
        self._namenode = self._start(NAMENODE)
        self._datanode = self._start(DATANODE)

    @property
    def server(self) -> HdfsServer:
        """How to reach them."""
        return HdfsServer(url=f"hdfs://127.0.0.1:{self._ports[0]}")

    def wait_until_writable(self) -> None:
        """Return once a file was written and read: an open port is not yet a server that stores a block."""
        processes = {self._log(NAMENODE): self._namenode, self._log(DATANODE): self._datanode}
        wait_until_ready("HDFS", self._write_and_read, processes)

    def kill_datanode(self) -> None:
        """SIGKILL the DataNode: what is stored cannot be read until it is started again."""
        kill(self._datanode)

    def signal_datanode(self, number: int) -> None:
        """Send the DataNode a signal: stopped (SIGSTOP), it takes connections and answers none until SIGCONT."""
        self._datanode.send_signal(number)

    def start_datanode(self) -> None:
        """Start the DataNode again, with its blocks and at its old port, and wait until it serves."""
        self._datanode = self._start(DATANODE)
        self.wait_until_writable()

    def _start(self, main_class: str) -> subprocess.Popen[bytes]:
        log = self._log(main_class)
        return self._stack.enter_context(running([*self._command, main_class], log, {}, cwd=self._directory))

    def _log(self, main_class: str) -> Path:
        return self._directory / f"{main_class.rpartition('.')[2].lower()}.log"

    def _write_and_read(self) -> None:
        # The client itself would wait for minutes at a closed port.
        for port in (self._ports[0], self._ports[2]):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        client = Client(self.server.url)
        with client.create("/.readiness", WriteOptions(overwrite=True)) as probe:
            probe.write(b"ready")
        with client.read("/.readiness") as probe:
            body = probe.read()
        client.delete("/.readiness")
        if body != b"ready":
            raise ServerError(f"wrote b'ready', read {body!r}")


@contextmanager
def hdfs(directory: Path) -> Iterator[HdfsProcesses]:
    """Run an HDFS with its data, configuration and logs in ``directory``; this process's user is its superuser.

    Raises:
        ServerError: it did not start; the message shows the ends of its logs.
    """
    with ExitStack() as stack:
        processes = HdfsProcesses(directory, stack)
        processes.wait_until_writable()
        yield processes


def _prepare(directory: Path, ports: list[int]) -> list[str]:
    """Write the configuration, format the NameNode, and return the command but for the main class."""
    conf = directory / "conf"
    for servlets in ("hdfs", "datanode"):
        web = conf / "webapps" / servlets / "WEB-INF"
        web.mkdir(parents=True)
        (web / "web.xml").write_text("<web-app/>\n")
    (conf / "log4j.properties").write_text(LOG4J)
    (conf / "core-site.xml").write_text(_xml({"fs.defaultFS": f"hdfs://127.0.0.1:{ports[0]}"}))
    (conf / "hdfs-site.xml").write_text(_xml(_settings(directory, ports)))
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED_PACKAGES]
    small = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    inside = ["-Djava.net.preferIPv4Stack=true", f"-Djava.io.tmpdir={directory}", "-XX:-UsePerfData"]
    command = [java(), *opened, *small, *inside, "-cp", f"{conf}:{hadoop_jars()}/*"]
    log = directory / "format.log"
    with log.open("wb") as output:
        formatting = [*command, NAMENODE, "-format", "-nonInteractive"]
        done = subprocess.run(formatting, stdout=output, stderr=output, cwd=directory)
    if done.returncode != 0:
        raise ServerError(f"formatting the NameNode ended with status {done.returncode}; {tail(log)}")
    return command


def _settings(directory: Path, ports: list[int]) -> dict[str, str]:
    _, namenode_http, datanode, datanode_http, datanode_ipc = (f"127.0.0.1:{port}" for port in ports)
    return {
        "dfs.namenode.http-address": namenode_http,
        "dfs.namenode.name.dir": f"file://{directory}/name",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.datanode.address": datanode,
        "dfs.datanode.http.address": datanode_http,
        "dfs.datanode.ipc.address": datanode_ipc,
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.datanode.data.dir": f"file://{directory}/data",
        "dfs.heartbeat.interval": "1",
        "dfs.replication": "1",
        "dfs.webhdfs.enabled": "false",  # its Jersey is not among the jars
    }


def _xml(settings: Mapping[str, str]) -> str:
    rows = [
        f"<property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in settings.items()
    ]
    return "\n".join(["<configuration>", *rows, "</configuration>", ""])
