"""Parts of unequal sizes: each sample once an epoch, rests spread evenly, from whichever step an epoch goes on."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.sharding import ConfigError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.clients import batches_of_steps
from ringfeed.training.run.inputs import open_loader
from ringfeed.training.sync.epoch_plan import EpochPlan


@st.composite
def _epochs(draw: st.DrawFn) -> EpochPlan:
    steps = draw(st.integers(1, 60))
    batches, batch_size = draw(st.integers(1, steps)), draw(st.integers(1, 9))
    samples = (batches - 1) * batch_size + draw(st.integers(1, batch_size))
    return EpochPlan(batches=batches, steps=steps, samples=samples, batch_size=batch_size, step_samples=9.0)


@settings(max_examples=60, deadline=None)
@given(_epochs(), st.integers(1, 60))
def test_a_rank_trains_on_each_of_its_samples_once_an_epoch_evenly_spread(
    epoch_plan: EpochPlan, round_steps: int
) -> None:
    trained = [epoch_plan.trains(step) for step in range(epoch_plan.steps)]
    assert sum(trained) == epoch_plan.batches
    assert [epoch_plan.batch_at(step)[1] for step in range(epoch_plan.steps) if trained[step]] == list(
        range(epoch_plan.batches)
    )
    seen = [epoch_plan.samples_before(step) for step in range(2 * epoch_plan.steps + 1)]
    assert seen[epoch_plan.steps] == epoch_plan.samples
    assert seen[-1] == 2 * epoch_plan.samples
    assert [b > a for a, b in itertools.pairwise(seen)] == 2 * trained
    in_rounds = [sum(trained[i : i + round_steps]) for i in range(epoch_plan.steps - round_steps + 1)]
    assert all(abs(count - round_steps * epoch_plan.batches / epoch_plan.steps) < 1 for count in in_rounds)


@pytest.mark.parametrize("batches", [1, 3, 5, 7])
def test_an_epoch_goes_on_from_any_step_as_it_would_have(batches: int) -> None:
    epoch_plan = EpochPlan(batches=batches, steps=7, samples=batches, batch_size=1, step_samples=1.0)

    def read(first: int) -> list[tuple[int, int, tf.Tensor]]:
        return [(i, i, tf.ones(1)) for i in range(first, batches)]

    def of(start: int) -> list[tuple[int, float]]:
        return [(inputs, float(weight[0])) for inputs, _, weight in batches_of_steps(read, epoch_plan, start)]

    whole = of(0)
    assert [inputs for inputs, weight in whole if weight] == list(range(batches))
    assert len(whole) == 7
    for start in range(7):
        assert of(start) == whole[start:]


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (["train", "test"], "sync.clients names 2 parts for 1 ranks; name one for each rank, or start 2 ranks"),
        (["nroth"], r"sync.clients: 'nroth' is no split \(train, test\) and no condition: .* no column 'nroth'"),
        (["hour > 99"], "none of the 3000 records passes where 'hour > 99'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(clients: list[str], message: str, flights: str) -> None:
    config = parse_config({"data": {"url": flights}, "sync": {"method": "fedavg", "clients": clients}}, "test")
    with pytest.raises(ConfigError, match=message):
        open_loader(config, SoloRing())


@pytest.mark.parametrize("part", ["test", "carrier == 'AA'"])
def test_a_part_is_a_split_or_what_passes_a_condition(part: str, flights: str) -> None:
    tree = {"data": {"url": flights, "batch_size": 64}, "sync": {"method": "fedavg", "clients": [part]}}
    loader = open_loader(parse_config(tree, "test"), SoloRing())
    carriers = [
        name
        for batch in loader.numpy_epoch(0)
        for name, weight in zip(batch["carrier"], batch["sample_weight"], strict=True)
        if weight
    ]
    assert len(carriers) == loader.records
    assert loader.records == 1000 if part == "test" else set(carriers) == {b"AA"}
