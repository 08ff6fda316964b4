"""A cluster is read from TF_CONFIG, or refused with a line that says what it has to hold."""

from __future__ import annotations

import json

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.servers.cluster import cluster_from_environment

CLUSTER = {"chief": ["a:1"], "ps": ["a:2", "b:2"], "worker": ["a:3", "b:3", "b:4"]}


def test_a_task_of_one_process_is_that_of_another_in_its_environment() -> None:
    config = {"cluster": CLUSTER, "task": {"type": "worker", "index": 2}}
    cluster = cluster_from_environment({"TF_CONFIG": json.dumps(config)})
    assert (cluster.workers, cluster.servers, cluster.host, cluster.local_tasks) == (3, 2, "b", 3)
    other = cluster_from_environment(cluster.environment("ps", 1))
    assert (other.kind, other.index, other.tasks) == ("ps", 1, cluster.tasks)


def test_a_chief_on_a_host_of_its_own_has_all_of_its_cores() -> None:
    config = {"cluster": {**CLUSTER, "chief": ["c:1"]}, "task": {"type": "chief", "index": 0}}
    assert cluster_from_environment({"TF_CONFIG": json.dumps(config)}).local_tasks == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "ringfeed launch --ps 1 --workers 2 train"),
        ("{", "TF_CONFIG is not a cluster with a task (Expecting property name"),
        ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}, "('chief' is missing)"),
        ({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}, "('evaluator' is missing)"),
        ({"cluster": CLUSTER, "task": {"type": "ps", "index": 2}}, "there is no such task"),
        ({"cluster": {**CLUSTER, "ps": []}, "task": {"type": "chief", "index": 0}}, "at least one ps and worker"),
        ({"cluster": {**CLUSTER, "ps": ["a"]}, "task": {"type": "chief", "index": 0}}, "each host:port"),
    ],
)
def test_a_wrong_cluster_is_refused_with_an_example(config: object, message: str) -> None:
    text = config if isinstance(config, str) else json.dumps(config)
    with pytest.raises(ConfigError) as error:
        cluster_from_environment({"TF_CONFIG": text})
    assert message in str(error.value)
    example = str(error.value).rpartition("such as ")[2]
    assert cluster_from_environment({"TF_CONFIG": example}).workers == 2  # the remedy
