"""Records and metrics of real runs under `horovodrun`, with and without a rank that is slow on purpose."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from ringfeed.tools.measure.run_records import read_run
from ringfeed.tools.report.run_result import RunProfile, profile_records
from tests.servers.process import free_ports
from tests.servers.prometheus import is_prometheus_there, prometheus_obstacle, scraping

WriteConfig = Callable[..., Path]
BOARD = Path(__file__).resolve().parents[3] / "examples" / "grafana-training.json"
NETWORK = """
import os, time
import keras
import tensorflow as tf

class Wait(keras.layers.Layer):
    def call(self, x):
        seconds = float(os.environ["OWN_SECONDS"].split(",")[int(os.environ["HOROVOD_RANK"])])
        waited = tf.numpy_function(lambda value: time.sleep(seconds) or value, [tf.stop_gradient(x)], tf.float32)
        waited.set_shape(x.shape)
        return x + 0 * waited

    def compute_output_shape(self, shape):
        return shape

class Align(keras.layers.Layer):
    # Ends the backward pass at a tick of the clock that the ranks of a machine share.
    def call(self, x):
        seconds = float(os.environ.get("TICK_SECONDS", 0))

        def wait(value):
            if seconds:
                time.sleep(seconds - time.monotonic() % seconds)
            return value

        @tf.custom_gradient
        def aligned(value):
            def gradient(upstream):
                waited = tf.numpy_function(wait, [upstream], tf.float32)
                waited.set_shape(upstream.shape)
                return waited

            return tf.identity(value), gradient

        return aligned(x)

    def compute_output_shape(self, shape):
        return shape

def network(manifest, config):
    hour = keras.Input((), dtype="int32", name="hour")
    x = Wait()(keras.ops.expand_dims(keras.ops.cast(hour, "float32"), 1) / 24)
    return keras.Model(hour, Align(dtype="float32")(keras.layers.Dense(len(manifest.classes), dtype="float32")(x)))
"""


@pytest.fixture
def configured(tmp_path: Path, write_config: WriteConfig) -> Callable[..., Path]:
    """A function that writes the configuration of a run whose step takes as long as it is told to."""

    def configure(**output: Any) -> Path:
        (tmp_path / "waiting.py").write_text(NETWORK)
        return write_config(
            data={"include": ["hour"], "categorical": []},
            model={"name": "waiting:network", "hidden": [], "dropout": 0.0},
            optimizer={"name": "sgd", "learning_rate": 0.1},
            output={"records": str(tmp_path / "records"), "log_every": 5, **output},
        )

    return configure


def _profile(tmp_path: Path) -> RunProfile:
    return profile_records(read_run(str(tmp_path / "records")))


def test_equal_ranks_have_no_straggler(tmp_path: Path, configured: Callable[..., Path], train_on_ranks: Any) -> None:
    # On a busy machine one of two equal ranks may well be late, so their gradients are ready at the same tick: a step
    # waits for 0.3 s, and what else it takes may be as long.
    timeline = tmp_path / "new" / "timeline.json"
    words = ("max_steps=26", f"track.timeline={timeline}")
    environ = {"OWN_SECONDS": "0.3,0.3", "TICK_SECONDS": "0.6"}
    status, output = train_on_ranks(configured(), *words, ranks=2, environ=environ)
    assert status == 0, output
    events = json.loads(timeline.read_text())  # of Horovod
    assert sum(event.get("name") == "ALLREDUCE" for event in events) >= 26
    result = _profile(tmp_path)
    assert (result.ranks, result.ended, result.last_step) == (2, True, 25)
    assert (result.verdict.bottleneck, result.verdict.stragglers) == ("none", ()), result
    assert all(each.compute_seconds >= 0.3 for each in result.rank_times)
    assert result.evaluation_seconds >= 0.3


def _queries() -> list[str]:
    """The expressions of the board, for the last half minute."""
    panels = json.loads(BOARD.read_text())["panels"]
    found = [target["expr"].replace("$__rate_interval", "30s") for panel in panels for target in panel["targets"]]
    assert len(found) >= 8
    return found


def test_a_slow_rank_is_named_also_after_all_were_killed(
    tmp_path: Path, configured: Callable[..., Path], start: Any
) -> None:
    if not is_prometheus_there():
        pytest.skip(f"no Prometheus: {prometheus_obstacle() or 'run python -m tests.servers.install'}")
    ports = free_ports(3)
    while [port - ports[0] for port in ports] != [0, 1, 2]:
        ports = [port := free_ports(1)[0], port + 1, port + 2]
    process = start(
        configured(prometheus_port=ports[0]), "epochs=10000", ranks=3, environ={"OWN_SECONDS": "0.02,0.02,0.2"}
    )
    deadline = time.monotonic() + 280
    try:
        with scraping(ports, tmp_path) as server:
            while not all((answers := {query: server.query(query) for query in _queries()}).values()):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline, answers
                time.sleep(0.5)
    finally:
        launcher = psutil.Process(process.pid)
        for each in [*launcher.children(recursive=True), launcher]:  # ranks first: a launcher's death ends them gently
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.communicate(timeout=60)
    assert all(math.isfinite(float(each["value"][1])) for answer in answers.values() for each in answer)
    (waits,) = [answer for query, answer in answers.items() if "scalar" in query]
    shares = {each["metric"]["rank"]: float(each["value"][1]) for each in waits}
    assert min(shares, key=shares.__getitem__) == "2"
    result = _profile(tmp_path)
    assert not result.ended
    assert (result.verdict.bottleneck, result.verdict.stragglers, result.verdict.cause) == (
        "straggler", (2,), "compute"
    ), result  # fmt: skip
