"""The metrics of a rank, as Prometheus gets them."""

from __future__ import annotations

import urllib.request

import pytest

from ringfeed.sharding import TrainingError
from ringfeed.training.records.record_format import CHECKPOINT, Launch, Row
from ringfeed.training.reports.events import RowsRecorded, RunEnded, StepsLogged
from ringfeed.training.reports.prometheus import Prometheus
from tests.servers.process import free_ports

parser = pytest.importorskip("prometheus_client.parser", reason="the extra `test` is not installed")
LAUNCH = Launch(rank=1, ranks=2, host="h", first_step=0, batch_size=8, total_steps=9)


def test_rows_and_reports_become_metrics() -> None:
    port = free_ports(1)[0]
    exporter = Prometheus(port, LAUNCH)
    try:
        exporter.rows(RowsRecorded([Row("step", 3, 1, 2, 100.0, 0.5, 0.25, 0.125, 0.0625, 0.5)] * 2))
        checkpoint = Row(CHECKPOINT, 4, 1, 1, 102.0, 0.0, 0.0, 0.0, 0.0, 3.0)
        exporter.rows(RowsRecorded([checkpoint, Row("step", 4, 1, 1, 1.0, *[-1.0] * 5)]))
        exporter.steps(StepsLogged({"loss": 0.75, "learning_rate": 0.5, "gradient_norm": 2.0}))
        with urllib.request.urlopen(f"http://localhost:{port + 1}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        with pytest.raises(TrainingError, match=rf"rank 1 cannot serve its metrics at port {port + 1} .*port \+ r"):
            Prometheus(port, LAUNCH)
    finally:
        exporter.close(RunEnded(9, 0, is_finished=True))
    values = {
        sample.name.removeprefix("ringfeed_train_"): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["rank"] == "1" and not sample.name.endswith("_created")
    }
    assert values == {
        "steps_total": 5, "samples_total": 20, "epoch": 1, "total_steps": 9, "loss": 0.75, "learning_rate": 0.5,
        "gradient_norm": 2, "input_wait_seconds_total": 2, "compute_seconds_total": 1.25,
        "collective_seconds_total": 0.5, "host_seconds_total": 2, "activity_seconds_total": 3,
    }  # fmt: skip
