"""DLIO's own training loop with ringfeed's data loader, in DLIO's environment."""

import json
import subprocess
from pathlib import Path

import pytest

from ringfeed.sharding import build
from tests.servers.dlio import dlio_environment, dlio_obstacle, dlio_python, has_dlio

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDS = 48


def test_dlio_reads_a_dataset_through_the_plug_in(tmp_path: Path) -> None:
    if not has_dlio():
        pytest.skip(f"DLIO is not installed: {dlio_obstacle() or 'run python -m tests.servers.install'}")
    data = tmp_path / "data"
    for folder in ("train", "valid"):
        (data / folder).mkdir(parents=True)
    for number in range(2):  # files that DLIO counts, and leaves to the data loader
        (data / "train" / f"img_{number}_of_2.tfrecord").touch()
    images = [{"image": bytes([number]) * 500} for number in range(RECORDS)]
    build(source=images, destination=str(data / "ringfeed"))
    settings = {
        "dataset.data_folder": data, "dataset.num_files_train": 2, "dataset.num_samples_per_file": RECORDS // 2,
        "dataset.record_length": 500, "reader.batch_size": 8, "output.folder": tmp_path / "out",
        "reader.data_loader_classname": "ringfeed.tools.dlio.Loader", "reader.data_loader_sampler": "iterative",
    }  # fmt: skip
    overrides = ["workload=resnet50_h100", *(f"++workload.{name}={value}" for name, value in settings.items())]
    done = subprocess.run(
        [str(dlio_python()), str(ROOT / "benchmarks" / "parts" / "dlio_reader.py"), *overrides],
        input="0.05\n0\n", cwd=tmp_path, env=dlio_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    _, slow, fast = map(json.loads, done.stdout.splitlines())
    assert "custom data loader class Loader" in done.stderr
    for epoch in (1, 2):
        assert f"Ending epoch {epoch} - {RECORDS // 8} steps completed" in done.stderr
    assert 0 < slow["utilisation"] <= 100
    assert 0 < slow["rate"] <= 8 / 0.05
    assert fast["rate"] > 0
    assert (slow["next_epoch"], fast["next_epoch"]) == (2, 3)
