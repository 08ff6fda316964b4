"""The only module that imports Horovod: its collectives for a rank, and its rendezvous for what starts ranks.

Nothing here imports TensorFlow, unless Horovod does.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ringfeed.sharding.errors import TrainingError

from .run_lines import QuietServer

_LOOPBACK, _LOOPBACK_INTERFACE = "127.0.0.1", "lo"
_INTERFACES = ("HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME")
_VALUE_BYTES = 1 << 20  # longest value in the store; addresses of a rank take some hundred bytes for each other rank


def require_horovod(size: int) -> Any:
    """Import `horovod.tensorflow` for one of `size` ranks; a TrainingError if it is missing, or does not work here."""
    try:
        return import_module("horovod.tensorflow")
    except Exception as error:  # a broken build raises more than ImportError
        reason = (str(error).splitlines() or ["no message"])[0]
        raise TrainingError(
            f"this process was started as one of {size} ranks, but Horovod does not work here "
            f"({type(error).__name__}: {reason}); training is refused, "
            "since the ranks would never synchronise. See `ringfeed doctor`, or run one process without a launcher"
        ) from error


@contextmanager
def ranks_on(
    hosts: Sequence[str], address: str = _LOOPBACK, peers: Container[str] | None = None
) -> Iterator[list[dict[str, str]]]:
    """Serve a rendezvous at an address for ranks during the body, and yield the environment of each, by its host.

    The ranks of a host are side by side. Requests from `peers` are taken, also from those that are added later; None:
    all ranks are on this machine. Elsewhere the environment lacks the interface by which a host reaches the others.
    """
    try:
        gloo_run = import_module("horovod.runner.gloo_run")
        plan = import_module("horovod.runner.common.util.hosts")
    except ImportError as error:
        raise TrainingError(f"several ranks need Horovod ({error}): ringfeed install-horovod") from error
    entries = ",".join(f"{host}:{count}" for host, count in Counter(hosts).items())
    slots = plan.get_host_assignments(plan.parse_hosts(entries), len(hosts))
    server = _rendezvous(address, peers)
    server.init(slots)
    shared = gloo_run.create_run_env_vars(address, [_LOOPBACK_INTERFACE], server.server_address[1])
    if peers is not None:
        shared = {name: value for name, value in shared.items() if name not in _INTERFACES}
    threading.Thread(target=server.serve_forever, name="ringfeed-rendezvous", daemon=True).start()
    try:
        yield [{name: str(v) for name, v in {**shared, **gloo_run.create_slot_env_vars(s)}.items()} for s in slots]
    finally:
        server.shutdown()
        server.server_close()


def _rendezvous(address: str, peers: Container[str] | None = None) -> Any:
    """Return Horovod's store at one address of this machine; Horovod's own is at all of them.

    Horovod's clients send no key, so whoever reaches that address may write to it; strange requests print nothing.
    """
    http_server = import_module("horovod.runner.http.http_server")

    class Handler(http_server.RendezvousHandler):  # type: ignore[misc,name-defined]  # known at run time
        def parse_request(self) -> bool:
            """Also refuse what Horovod's clients do not send, before it raises or is logged."""
            if not super().parse_request():
                return False
            size = self.headers.get("Content-Length", "0")
            if self.path.count("/") == 2 and size.isdecimal() and int(size) <= _VALUE_BYTES:
                return True
            self.send_status_code(http_server.BAD_REQUEST)
            return False

    class Server(QuietServer, http_server.RendezvousHTTPServer):  # type: ignore[misc,name-defined]
        def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:
            return peers is None or client_address[0] in peers

    return Server((address, 0), Handler, 0)


def ray_ranks(size: int, *, use_gpu: bool, start_seconds: int) -> Any:
    """Return Horovod's `RayExecutor` for some ranks, not started yet; this program is connected to a cluster.

    Their store is on loopback if the cluster is on this machine alone, else at the address that ranks reach it by.
    """
    try:
        runner: Any = import_module("horovod.ray.runner")
    except ImportError as error:
        raise TrainingError(f"ranks on Ray need Horovod ({error}): ringfeed install-horovod") from error
    http_server, ray = import_module("horovod.runner.http.http_server"), import_module("ray")
    hosts = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    address = _LOOPBACK if hosts == {socket.gethostname()} else ray.util.get_node_ip_address()

    class Store(http_server.RendezvousServer):  # type: ignore[misc,name-defined]  # known at run time
        def start(self, handler_cls: object = None) -> int:
            self._httpd = _rendezvous(address)
            self._listen_thread = threading.Thread(target=self._httpd.serve_forever, daemon=True)
            self._listen_thread.start()
            return int(self._httpd.server_address[1])

    class Coordinator(runner.Coordinator):  # type: ignore[misc]
        def establish_rendezvous(self) -> dict[str, str]:
            return {**super().establish_rendezvous(), "HOROVOD_GLOO_RENDEZVOUS_ADDR": address}

    runner.RendezvousServer, runner.Coordinator = Store, Coordinator  # Horovod has no option for the address
    settings = runner.RayExecutor.create_settings(placement_group_timeout_s=start_seconds)
    return runner.RayExecutor(settings, num_workers=size, use_gpu=use_gpu)


class _Listener:
    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def on_hosts_updated(self, timestamp: int, result: object) -> None:
        """Called by Horovod, in a thread of its own."""
        self._act()


def on_hosts_changed(act: Callable[[], None]) -> None:
    """Call a function whenever `horovodrun` finds other hosts; in a thread, and on rank 0 alone. Horovod must run."""
    manager = import_module("horovod.common.elastic").notification_manager
    manager.init()
    manager.register_listener(_Listener(act))
