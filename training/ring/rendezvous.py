"""What Horovod's ranks need to find each other on one machine: its rendezvous server, and the environment of each rank.

Beside `horovod`, the only module that knows Horovod; it imports no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from ...sharding.errors import TrainingError

__all__ = ["local_ranks"]

_LOOPBACK = "lo"


@contextmanager
def local_ranks(size: int) -> Iterator[list[dict[str, str]]]:
    """Serve a rendezvous for some ranks of this machine during the body.

    Yields:
        The environment of each rank.

    Raises:
        TrainingError: Horovod is not installed.
    """
    try:
        gloo_run = import_module("horovod.runner.gloo_run")
        hosts = import_module("horovod.runner.common.util.hosts")
    except ImportError as error:
        raise TrainingError(f"several ranks need Horovod ({error}): ringfeed install-horovod") from error
    slots = hosts.get_host_assignments(hosts.parse_hosts(f"localhost:{size}"), size)
    server = gloo_run.RendezvousServer(0)
    port = server.start()
    server.init(slots)
    shared = gloo_run.create_run_env_vars("127.0.0.1", [_LOOPBACK], port)
    try:
        yield [{name: str(v) for name, v in {**shared, **gloo_run.create_slot_env_vars(s)}.items()} for s in slots]
    finally:
        server.stop()
