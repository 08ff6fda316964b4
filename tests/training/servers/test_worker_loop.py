"""One worker's loop, by each mode, ends with the weights of the usual trainer on the same batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from tests.helpers.warm import WarmServer

ROOT = Path(__file__).parents[3]


def test_each_mode_equals_the_trainer_where_nothing_is_late_or_held_back(
    tmp_path: Path, flights: str, warm: WarmServer
) -> None:
    tree = {
        "backend": "parameter_server",
        "data": {"url": flights, "batch_size": 60, "categorical": ["hour"], "eval_split": None},
        "model": {"hidden": [16, 8]},
        "optimizer": {"name": "sgd", "learning_rate": 0.2, "momentum": 0.0, "clip_norm": 0.3},
        "schedule": {"warmup_epochs": 0.5},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(tree))
    process = warm.start(["tests.helpers.server_loop", str(path)], folder=ROOT, output=tmp_path / "output")
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, output
    results = json.loads(output.splitlines()[-1])
    steps, weights = results["trainer"]["steps"], np.array(results["trainer"]["weights"])
    for mode in ("async", "split", "ssp", "asp", "sync"):
        assert (results[mode]["updates"], results[mode]["error"]) == (steps, "")
        assert results[mode]["staleness"] == [0] * steps
        np.testing.assert_allclose(results[mode]["weights"], weights, atol=1e-5, err_msg=mode)
    assert "optimizer.learning_rate, warm up for longer, or set optimizer.clip_norm" in results["steep"]["error"]
    assert results["clipped"]["error"] == ""  # by its remedy; a lower rate is that of the others
    assert results["late"] == {"shares": [0.0], "version": steps}  # a gradient that is dropped counts as no update
    assert results["hold"]["least_share"] < 0.5
    assert np.abs(np.array(results["hold"]["weights"]) - weights).max() > 1e-3
