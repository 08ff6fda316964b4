"""A real Dask cluster for the tests: a scheduler and worker processes, on loopback."""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from .process import free_ports, running, wait_until_ready

# No dashboard, and a look at the memory less often than the time a test takes.
SETTINGS = {
    "DASK_DISTRIBUTED__DASHBOARD__LINK": "",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskCluster:
    """A running cluster; each worker is a process of its own with one thread."""

    port: int
    scheduler: subprocess.Popen[bytes]
    workers: tuple[subprocess.Popen[bytes], ...]

    @property
    def engine(self) -> str:
        """As `--engine` takes it."""
        return f"dask://127.0.0.1:{self.port}"


@contextmanager
def dask_cluster(
    directory: Path, workers: int, environment: Mapping[str, str] | None = None, prelude: str = ""
) -> Iterator[DaskCluster]:
    """Start a cluster whose files lie in a directory.

    Args:
        directory: that is there.
        workers: processes; the body begins when all have registered.
        environment: of all processes, besides that of the tests.
        prelude: Python that each worker runs first.
    """
    (port,) = free_ports(1)
    scheduler_log = directory / "dask-scheduler.log"
    flags = [f"--port={port}", "--host=127.0.0.1", "--no-dashboard", "--no-show"]
    settings = {**SETTINGS, **(environment or {})}
    with ExitStack() as stack:
        scheduler = stack.enter_context(running([*command("scheduler"), *flags], scheduler_log, settings, directory))
        logs = {scheduler_log: scheduler}
        for number in range(workers):
            log = directory / f"dask-worker-{number}.log"
            words = [*command("worker", prelude), f"tcp://127.0.0.1:{port}", "--nthreads=1", "--no-nanny"]
            words += ["--no-dashboard", "--host=127.0.0.1", f"--local-directory={directory}", f"--name={number}"]
            logs[log] = stack.enter_context(running(words, log, settings, directory))

        def probe() -> None:
            with socket.create_connection(("127.0.0.1", port), 1):
                pass
            waiting = [log for log in list(logs)[1:] if "Registered to" not in log.read_text(errors="replace")]
            if waiting:
                raise RuntimeError(f"{len(waiting)} workers have not registered")

        wait_until_ready("Dask", probe, logs)
        yield DaskCluster(port=port, scheduler=scheduler, workers=tuple(logs.values())[1:])


def command(which: str, prelude: str = "") -> list[str]:
    """As `dask scheduler` and `dask worker` run, in this interpreter."""
    return [sys.executable, "-c", f"{prelude}\nfrom distributed.cli.dask_{which} import main; main()"]
