"""`ringfeed bench-ring`: means that are right, on a real ring, and costs that fit them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ringfeed.tools.measure.costs import RingCosts
from ringfeed.tools.simulation.bench_ring import RingTrial, fit_quality
from tests.helpers.lean import lean_environment


def command(*words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "ringfeed.tools.cli", *words)
    return subprocess.run(words, capture_output=True, text=True, env=lean_environment(), timeout=300, check=False)


def test_two_ranks_average_every_size() -> None:
    pytest.importorskip("horovod")
    done = command("launch", "-n", "2", "bench-ring", "--max-size", "1KiB", "--seconds", "0.02", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [trial["size"] for trial in found["trials"]] == [8, 16, 32, 64, 128, 256, 512, 1024]
    assert not any(trial["wrong"] for trial in found["trials"])
    for trial in found["trials"]:
        assert trial["algbw"] == pytest.approx(trial["size"] / trial["seconds"])
        assert trial["busbw"] == pytest.approx(trial["algbw"])  # 2 (n - 1) / n of two ranks is 1
    assert found["latency_seconds"] > 0


def test_one_rank_is_told_how_to_start_more() -> None:
    done = command("bench-ring")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("start several, as in: ringfeed launch -n 2 bench-ring")


def test_a_perfect_fit_has_a_quality_of_one() -> None:
    costs = RingCosts(latency_seconds=1e-4, bytes_per_second=1e9, gradient_bytes=0)
    times = {size: 2 * 3 * (1e-4 + size / 4 / 1e9) for size in (8, 8000, 8_000_000)}
    trials = [
        RingTrial(size=size, count=size // 4, seconds=seconds, algbw=0.0, busbw=0.0, wrong=0)
        for size, seconds in times.items()
    ]
    assert fit_quality(trials, costs, 4) == pytest.approx(1.0)
    worse = RingCosts(latency_seconds=2e-4, bytes_per_second=1e9, gradient_bytes=0)
    assert fit_quality(trials, worse, 4) < 1.0
