"""The learning-rate range test, on a problem whose best rate is known, and through the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ringfeed.sharding import build
from ringfeed.training.run.find_rate import judge_rates
from ringfeed.training.train import main


def test_the_steepest_fall_lies_before_the_lowest_loss() -> None:
    rates = [10 ** (-4 + i / 20) for i in range(101)]
    losses, weight = [], 1.0
    for rate in rates:  # gradient descent on w^2, which diverges from a rate of 1 on
        losses.append(weight**2)
        weight = min(weight * abs(1 - 2 * rate), 1e3) if rate > 0.9 else weight * abs(1 - 2 * rate)
    found = judge_rates(rates, losses)
    assert found.suggestion is not None
    assert 0.01 < found.suggestion < 0.5 < found.lowest  # the average lags behind the loss
    assert len(found.losses) < 101  # it has diverged


def test_noise_at_low_rates_is_no_steep_fall() -> None:
    logs = np.linspace(-4, 1, 101)
    losses = 1 - 0.5 / (1 + np.exp(-4 * (logs + 1))) + np.random.default_rng(0).normal(0, 0.05, 101)
    found = judge_rates((10**logs).tolist(), [*losses, 9.0])
    assert found.suggestion is not None
    assert 0.03 < found.suggestion < 1  # the loss falls most steeply at 0.1, the average lags


def test_a_loss_that_never_falls_gives_no_rate() -> None:
    found = judge_rates([0.1, 1.0, 10.0], [1.0, 2.0, math.inf])
    assert found.suggestion is None
    assert found.losses == pytest.approx((1.0, (0.9 * 1 + 2) / 1.9))


def test_the_command_writes_figures_or_a_plot_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=400).astype(np.float32)
    table = pa.table({"x": x, "y": (x > 0).astype(np.int64)})
    build(source=table, destination=str(tmp_path / "data"), label="y")
    config = tmp_path / "run.yaml"
    config.write_text(
        f"data: {{url: {tmp_path / 'data'}, batch_size: 64, eval_split: null}}\nmodel: {{hidden: [4]}}\n"
        "optimizer: {name: sgd, learning_rate: 0.1, base_batch_size: 32}\ndeterministic: false\n"
        f"checkpoint: {{url: {tmp_path / 'checkpoints'}}}\n"
    )
    assert main(["--config", str(config), "--lr-find", str(tmp_path / "rates.json"), "-q"]) == 0
    found = json.loads((tmp_path / "rates.json").read_text())
    assert found["rates"][0] == pytest.approx(1e-5)  # 1e-4 of optimizer.learning_rate
    assert len(found["rates"]) == len(found["losses"]) > 10
    assert f"at optimizer.learning_rate={found['suggestion']:.3g}," in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "rates.json", "run.yaml"]
    assert main(["--config", str(config), "--lr-find", "rates.bmp"]) == 1
    assert "--lr-find: rates.bmp must end in one of .png, .svg, .pdf, .json" in capsys.readouterr().err
