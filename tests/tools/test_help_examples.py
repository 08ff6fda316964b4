"""Each example that the help of `profile`, `simulate` and `tune` prints runs as it stands; those with a cache twice."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringfeed.sharding import BuildOptions, build
from ringfeed.tools.profile import command as profile_command
from ringfeed.tools.simulation import command as simulate_command
from ringfeed.tools.tune import command as tune_command
from ringfeed.training.records.record_format import END, Launch, Row
from ringfeed.training.reports.events import RowsRecorded, RunEnded
from ringfeed.training.reports.recorder import RecordFile
from tests.helpers.commands import run_here

RECORDS = 17_000  # a global batch of 64 ranks
COMMANDS = {"profile": profile_command, "simulate": simulate_command, "tune": tune_command}
EXAMPLES = [
    line.split("#")[0].strip()
    for module in COMMANDS.values()
    for line in module._EPILOG.splitlines()
    if line.startswith("  ringfeed ")
]
MODEL = "def train_step(batch):\n    return batch['hour']\n\ndef prepare(batch):\n    return batch\n"
CONFIG = """\
data: {url: data/flights, batch_size: 1024, eval_split: null}
model: {name: tabular, hidden: [4]}
epochs: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the examples run: a dataset, a model, a configuration, the records and the trace of a run."""
    import tensorflow as tf

    root: Path = tmp_path_factory.mktemp("examples")
    rows = np.arange(RECORDS)
    columns = {"hour": rows % 24, "distance": rows / 7, "carrier": [("AA", "UA", "DL")[i % 3] for i in rows]}
    table = pa.table(columns | {"tail": [f"N{i % 9}" for i in rows], "late": rows % 2})
    pq.write_table(table, root / "flights.parquet")
    build(BuildOptions(source=str(root / "flights.parquet"), destination=str(root / "data/flights"), label="late"))
    (root / "model.py").write_text(MODEL)
    (root / "train.yaml").write_text(CONFIG)
    launch = Launch(rank=0, ranks=1, host="node", first_step=0, batch_size=8, total_steps=30)
    file = RecordFile(str(root / "runs/1/records"), launch)
    steps = [Row("step", step, 0, 1, 1e6 + step, 0.01, 0.05, 0.0, 0.01, 0.001) for step in range(30)]
    file.rows(RowsRecorded([*steps, Row(END, 30, 1, 1, 1e6 + 30, 0, 0, 0, 0, 0)]))
    file.close(RunEnded(30, 1, is_finished=True))
    tf.profiler.experimental.start(str(root / "runs/1/trace"))
    tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64])).numpy()
    tf.profiler.experimental.stop()
    return root


def test_there_are_examples_of_each_command() -> None:
    assert {line.split()[1] for line in EXAMPLES} == COMMANDS.keys()
    assert sum("s3://" in line for line in EXAMPLES) > 10


@pytest.fixture(scope="module")
def urls(folder: Path, s3_bucket: str) -> dict[str, str]:
    """What stands for the places in the examples."""
    return {"s3://bucket/flights": f"s3://{s3_bucket}/{folder.name}/flights", "/mnt/nvme": str(folder)}


@pytest.fixture
def remote(folder: Path, s3_env: dict[str, str], urls: dict[str, str]) -> str:
    """The dataset on S3, where it is built once."""
    url = urls["s3://bucket/flights"]
    if not (folder / "built").exists():
        build(BuildOptions(source=str(folder / "flights.parquet"), destination=url, label="late", workers=1))
        (folder / "built").touch()
    return url


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_the_help_runs(
    example: str, folder: Path, urls: dict[str, str], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    if "s3://" in example:
        request.getfixturevalue("remote")

    def run(line: str) -> int:
        for place, url in urls.items():
            line = line.replace(place, url)
        words = shlex.split(line)
        measures = "runs/1/" not in line and "--costs" not in words
        return run_here(words[0], [*words[1:], *(["--seconds", "0.2"] if measures else [])], {})

    if "--costs" in example and not (folder / "costs.json").exists():
        assert run(next(line for line in EXAMPLES if "--save-costs" in line)) == 0
    for _ in range(2 if "--cache /" in example else 1):  # cold, and warm
        assert run(example) == 0
