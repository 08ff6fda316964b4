"""The records of a rank as Prometheus metrics, served at a port of its own."""

from __future__ import annotations

import io
import threading
from typing import Any, TextIO
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.records.record_format import CHECKPOINT, EVALUATION, STEP, Launch, Row
from ringfeed.training.ring.run_lines import QuietServer

from .events import RowsRecorded, RunEnded, StepsLogged
from .tracker import Tracker

_PREFIX = "ringfeed_train_"
_SECONDS = {
    "input_wait": "Seconds that the rank waited for its input.",
    "compute": "Seconds of forward and backward pass and optimizer.",
    "collective": "Seconds in the all-reduce, with the wait for the slowest rank.",
    "host": "Seconds of the training loop between steps.",
}
_GAUGES = {
    "loss": "Mean training loss since the report before, over all ranks.",
    "learning_rate": "Learning rate.",
    "gradient_norm": "Global norm of the gradients, before clipping.",
}


class _Server(QuietServer, WSGIServer):
    """Listens at all addresses of the machine, as Prometheus expects."""


class _Handler(WSGIRequestHandler):
    def log_message(self, *args: object) -> None:
        """Log no request."""

    def get_stderr(self) -> TextIO:
        """Drop the tracebacks of requests that the client broke off, or that are none."""
        return io.StringIO()


class Prometheus(Tracker):
    """Counts the rows of one rank, and serves the counts at ``http://HOST:PORT/metrics``; rank r adds r to the port."""

    label = "output.prometheus_port"

    def __init__(self, port: int, launch: Launch) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app
        except ImportError as error:
            raise ConfigError(
                "output.prometheus_port needs prometheus_client; install it with: pip install 'ringfeed[prometheus]'"
            ) from error
        registry, self._rank = CollectorRegistry(), str(launch.rank)

        def metric(kind: Any, name: str, text: str) -> Any:
            return kind(_PREFIX + name, text, ["rank"], registry=registry).labels(self._rank)

        self._samples_per_step = launch.batch_size // launch.ranks
        self._steps = metric(Counter, "steps", "Training steps.")
        self._samples = metric(Counter, "samples", "Samples that the rank trained on.")
        self._seconds = {name: metric(Counter, f"{name}_seconds", text) for name, text in _SECONDS.items()}
        self._activities = Counter(
            f"{_PREFIX}activity_seconds", "Seconds of evaluations and checkpoints.", ["rank", "activity"],
            registry=registry,
        )  # fmt: skip
        self._epoch = metric(Gauge, "epoch", "Number of the epoch, from 0.")
        self._gauges = {name: metric(Gauge, name, text) for name, text in _GAUGES.items()}
        metric(Gauge, "total_steps", "Steps of the whole run.").set(launch.total_steps)
        try:
            self._server = make_server("", port + launch.rank, make_wsgi_app(registry), _Server, _Handler)
        except OSError as error:
            raise TrainingError(
                f"rank {launch.rank} cannot serve its metrics at port {port + launch.rank} "
                f"({error.strerror or error}); set another output.prometheus_port: rank r takes port + r"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="ringfeed-exporter", daemon=True)
        self._thread.start()

    def rows(self, event: RowsRecorded) -> None:
        for row in event.rows:
            if row.activity == STEP:
                self._count_step(row)
            elif row.activity in (EVALUATION, CHECKPOINT):
                self._activities.labels(self._rank, row.activity).inc(row.host_seconds)

    def _count_step(self, row: Row) -> None:
        self._steps.inc(row.steps)
        self._samples.inc(row.steps * self._samples_per_step)
        self._epoch.set(row.epoch)
        computed = row.gradient_seconds + row.update_seconds
        seconds = (row.input_seconds, computed, row.collective_seconds, row.host_seconds)
        for counter, value in zip(self._seconds.values(), seconds, strict=True):
            counter.inc(row.steps * max(value, 0.0))  # below 0 where the clock was set back

    def steps(self, event: StepsLogged) -> None:
        for name, gauge in self._gauges.items():
            gauge.set(event.entry[name])

    def close(self, event: RunEnded) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
