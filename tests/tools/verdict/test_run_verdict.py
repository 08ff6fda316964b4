"""The verdict on runs whose bottleneck is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ringfeed.tools.measure.run_records import read_run
from ringfeed.tools.report.run_plots import plot_step_parts
from ringfeed.tools.report.run_result import profile_records
from ringfeed.tools.verdict.run_verdict import RunVerdict, judge_run, rank_times

Write = Callable[..., str]
STEPS = 200


def _noise(ranks: int, mean: float, share: float, seed: int) -> np.ndarray:
    """Seconds that scatter around a mean, float64 [ranks, STEPS]."""
    return mean * (1 + share * np.random.default_rng(seed).standard_normal((ranks, STEPS)).clip(-2, 2))


def _judge(folder: str) -> RunVerdict:
    return judge_run(read_run(folder))


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_equal_ranks_that_compute_have_no_bottleneck(write_run: Write, ranks: int, seed: int) -> None:
    verdict = _judge(write_run(_noise(ranks, 0.0005, 0.3, seed), _noise(ranks, 0.05, 0.03, seed + 9)))
    assert verdict.bottleneck == "none"
    assert verdict.gain is None
    assert verdict.headline.startswith("Nothing holds the run back: ranks compute for 9")


@pytest.mark.parametrize(("ranks", "slow"), [(2, (1,)), (3, (2,)), (8, (0,)), (8, (4, 5, 6, 7))])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_rank_is_named(write_run: Write, ranks: int, slow: tuple[int, ...], seed: int) -> None:
    gradients = _noise(ranks, 0.05, 0.1, seed)
    gradients[list(slow)] += 0.02
    verdict = _judge(write_run(_noise(ranks, 0.0005, 0.3, seed), gradients))
    assert (verdict.bottleneck, verdict.stragglers, verdict.cause) == ("straggler", slow, "compute")
    names = ", ".join(map(str, slow))
    assert verdict.advice.startswith(f"rank{'s' * (len(slow) > 1)} {names} on node: ")
    assert "look for other programs on its host" in verdict.advice


def test_the_predicted_gain_is_what_a_run_without_the_straggler_has(write_run: Write) -> None:
    gradients = np.full((3, STEPS), 0.05)
    gradients[1] = 0.08
    slow = profile_records(read_run(write_run(np.zeros((3, STEPS)), gradients)))
    fast = profile_records(read_run(write_run(np.zeros((3, STEPS)), np.full((3, STEPS), 0.05))))
    assert slow.verdict.gain == pytest.approx(fast.samples_per_second / slow.samples_per_second, rel=0.01)


def test_a_rank_whose_input_is_slow_is_a_straggler_by_its_input(write_run: Write) -> None:
    inputs = np.full((4, STEPS), 0.001)
    inputs[3] = 0.03
    verdict = _judge(write_run(inputs, np.full((4, STEPS), 0.05), hosts=["a", "a", "b", "b"]))
    assert (verdict.bottleneck, verdict.stragglers, verdict.cause) == ("straggler", (3,), "input")
    assert "rank 3 on b: 29.0 ms a step later" in verdict.advice
    assert "its link to the store" in verdict.advice


@pytest.mark.parametrize("seed", range(3))
def test_waits_that_move_from_rank_to_rank_are_those_of_a_slow_loader(write_run: Write, seed: int) -> None:
    inputs = np.full((4, STEPS), 0.001)
    inputs[np.random.default_rng(seed).integers(0, 4, STEPS), range(STEPS)] = 0.02
    verdict = _judge(write_run(inputs, _noise(4, 0.05, 0.02, seed)))
    assert (verdict.bottleneck, verdict.stragglers, verdict.cause) == ("moving_straggler", (), "input")
    assert "loading is too slow" in verdict.advice


@pytest.mark.parametrize(
    ("stages", "stage", "said"),
    [
        ({}, None, "for each dataset)"),
        ({"gather": {"wait_seconds": 3.0}, "fetch": {"busy_seconds": 4.0, "wait_seconds": 4.0},
          "open": {"busy_seconds": 1.0, "cpu_seconds": 1.0}}, "fetch", "is fetch: reading shards from the store, 0.6"),
        ({"gather": {"wait_seconds": 3.0}, "fetch": {"busy_seconds": 9.0},  # all of it a wait for the lock
          "open": {"busy_seconds": 2.0, "cpu_seconds": 1.0}}, "open", "is open: decompressing and decoding records, "),
        # All of this wait of deliver is in the time in which the step computes, when nobody waits for the loader.
        ({"gather": {"wait_seconds": 1.0}, "deliver": {"wait_seconds": 2.9},
          "open": {"busy_seconds": 2.0, "cpu_seconds": 2.0}}, "open", "is open"),
        ({"gather": {"wait_seconds": 0.5}, "deliver": {"wait_seconds": 5.9}}, "deliver", "follows, handing over and"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("slow", [None, 1])
def test_the_stage_of_the_loader_that_is_waited_for_is_named(
    write_run: Write, stages: dict[str, dict[str, float]], stage: str | None, said: str, slow: int | None
) -> None:
    inputs, gradients = np.full((2, STEPS), 0.03), np.full((2, STEPS), 0.028)
    if slow is not None:
        inputs[1 - slow] = 0.0001
    verdict = _judge(write_run(inputs, gradients, stages=stages))
    assert (verdict.bottleneck, verdict.stage) == ("input" if slow is None else "straggler", stage)
    assert said in verdict.advice or slow is not None


@pytest.mark.parametrize(("elsewhere", "expected"), [(0.0, "epoch_start"), (0.004, "input")])
def test_the_first_batches_of_epochs_are_named(write_run: Write, elsewhere: float, expected: str) -> None:
    inputs = np.full((2, STEPS), elsewhere)
    inputs[:, ::20] = 0.06
    verdict = _judge(write_run(inputs, np.full((2, STEPS), 0.01), epoch_steps=20))
    assert verdict.bottleneck == expected
    assert verdict.shares is not None
    assert verdict.shares.epoch_start > 0.15
    assert ("ranks wait for the first batches of epochs" in verdict.headline) == (expected == "epoch_start")


def test_one_long_pause_makes_no_rank_a_slow_one(write_run: Write) -> None:
    gradients = np.full((3, STEPS), 0.01)
    gradients[1, 77] = 30.0
    assert _judge(write_run(np.zeros((3, STEPS)), gradients)).bottleneck == "moving_straggler"


def test_input_collective_and_loop_are_told_apart(write_run: Write) -> None:
    computing = np.full((2, STEPS), 0.02)
    fed = _judge(write_run(np.full((2, STEPS), 0.03), computing))
    assert (fed.bottleneck, fed.cause) == ("input", None)
    assert fed.headline.startswith("The run is highly input-bound: ranks wait for input for 59% of the time; 39% comp")
    assert fed.gain == pytest.approx(0.0511 / 0.0211)
    reducing = _judge(write_run(np.zeros((2, STEPS)), computing, reduce_seconds=0.01))
    assert (reducing.bottleneck, reducing.gain) == ("collective", pytest.approx(1.5, rel=0.01))
    assert _judge(write_run(np.zeros((2, STEPS)), computing, host_seconds=0.01)).bottleneck == "framework_overhead"


def test_the_parts_add_up(write_run: Write) -> None:
    records = read_run(write_run(_noise(3, 0.01, 0.5, 1), _noise(3, 0.05, 0.3, 2), reduce_seconds=0.005))
    shares = judge_run(records).shares
    assert shares is not None
    total = shares.input + shares.compute + shares.straggler + shares.collective + shares.overhead
    assert total == pytest.approx(1)
    times = rank_times(records)
    assert [each.collective_seconds for each in times] == pytest.approx([0.005] * 3, rel=1e-3)
    assert sum(each.last_share for each in times) == pytest.approx(1)
    means = records.step_seconds.mean(axis=1)
    assert [each.own_seconds + each.wait_seconds + each.collective_seconds for each in times] == pytest.approx(means)


def test_a_short_run_is_not_judged(write_run: Write) -> None:
    verdict = _judge(write_run(np.zeros((2, 15)), np.full((2, 15), 0.5)))
    assert (verdict.bottleneck, verdict.headline) == (
        "unknown", "Too little to judge: 14 steps in 7.0 s after the first."
    )  # fmt: skip


def test_the_largest_loss_is_named(write_run: Write) -> None:
    inputs, computing = np.full((2, STEPS), 0.002), np.full((2, STEPS), 0.0287)
    verdict = _judge(write_run(inputs, computing, reduce_seconds=0.0045))
    assert verdict.shares is not None
    assert (round(verdict.shares.input, 2), round(verdict.shares.collective, 2)) == (0.06, 0.13)
    assert verdict.bottleneck == "collective"


def test_the_plot_of_the_parts_agrees_with_the_headline(write_run: Write) -> None:
    gradients = np.full((2, STEPS), 0.004)
    gradients[1] = 0.031
    records = read_run(write_run(np.full((2, STEPS), 0.003), gradients, reduce_seconds=0.007))
    verdict = judge_run(records)
    assert verdict.headline.startswith("The ranks wait for rank 1 for 66% of the time")
    assert plot_step_parts(records).title == "The longest part of a step is 'slowest rank': 66%"
