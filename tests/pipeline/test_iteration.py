"""Loaders as Python and Keras users handle them: iterated, measured, printed, saved, and fitted."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.sharding import ConfigError

Make = Callable[..., str]


@pytest.fixture(params=["loader", "mixture"])
def make(request: pytest.FixtureRequest, make_dataset: Make) -> Callable[[], Any]:
    url = make_dataset(1000)
    if request.param == "loader":
        return lambda: Loader(url, batch_size=200, seed=3)
    return lambda: Mixture({"web": {"url": url}, "books": {"url": url}}, batch_size=200, seed=3, steps_per_epoch=5)


def ids(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["id"]).tolist() for batch in batches]


def test_each_iteration_is_the_next_epoch(make: Callable[[], Any]) -> None:
    loader = make()
    assert len(loader) == loader.steps_per_epoch == 5
    for epoch in range(2):
        assert ids(loader) == ids(loader.numpy_epoch(epoch))
    next(iter(loader))  # an iteration that is given up
    assert ids(loader) == ids(loader.numpy_epoch(3))


def test_an_iteration_resumes_from_its_state(make: Callable[[], Any]) -> None:
    loader = make()
    ids(loader)
    running = iter(loader)
    next(running), next(running)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state == loader.state(1, 2)
    assert pickle.loads(pickle.dumps(loader)).state_dict() == state
    other = make()
    other.load_state_dict(state)
    assert ids(other) == ids(loader.numpy_epoch(1, 2))
    other.load_state_dict(json.loads(json.dumps(other.state_dict())))  # of a finished epoch
    assert ids(other) == ids(loader.numpy_epoch(2))
    with pytest.raises(ConfigError, match="seed"):
        other.load_state_dict(state | {"seed": 4})


def test_a_loader_says_what_it_is(make_dataset: Make) -> None:
    url = make_dataset(1000)
    loader = Loader(url, batch_size=60, rank=1, world_size=2)
    assert repr(loader) == (
        f"<Loader of {url}, split 'train': 16 steps an epoch, global batches of 60 samples, rank 1 of 2>"
    )
    mixture = Mixture({"web": {"url": url}, "books": {"url": url}}, batch_size=60)
    assert repr(mixture).startswith("<Mixture of web, books: 33 steps")


def test_a_plan_is_a_short_table(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=60, balance={0: 0.5, 1: 0.25, 2: 0.25})
    plan = loader.plan(2)
    head, read, borrowed, blank, names, *rows = str(plan).splitlines()
    assert head == "epoch 2: 16 steps of 60 samples, streams: 15"
    assert read == f"ranks: 1, bytes that each reads: {plan.bytes_per_rank[0]:,}"
    assert borrowed == f"times a window borrows a class: {len(plan.missing)}"
    assert (blank, names.split()) == ("", ["class", "records", "samples", "per", "batch", "repeats"])
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert rows[0].split()[2:4] == ["480", "30"]
    assert "<td>480</td><td>30</td>" in plan._repr_html_()
    assert "<svg" in plan._repr_html_()
    sources = {name: {"url": make_dataset(1000)} for name in ("a<b", "books")}
    assert "<td>a&lt;b</td><td>1,000</td>" in Mixture(sources, batch_size=60).plan()._repr_html_()


class Recorder(keras.Model):
    """Records the vectors that it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.dense = keras.layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        tf.py_function(lambda values: self.seen.append(values.numpy().tolist()), [data[0]], [])
        return super().train_step(data)


def compiled() -> Recorder:
    model = Recorder()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_one_fit_sees_each_epoch_in_its_own_order(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=200, columns=["vector"])
    model, steps = compiled(), len(loader)

    def halve(batch: dict[str, Any]) -> dict[str, Any]:
        return batch | {"vector": batch["vector"] / 2}

    batches = loader.keras(epochs=3, initial_epoch=1, transform=halve)
    model.fit(batches, epochs=3, initial_epoch=1, steps_per_epoch=steps, shuffle=False, verbose=0)
    wanted = [(batch["vector"] / 2).tolist() for epoch in (1, 2) for batch in loader.numpy_epoch(epoch)]
    assert len(wanted) == 2 * steps
    assert model.seen == wanted
    with pytest.raises(ConfigError, match="epochs must be more than initial_epoch"):
        loader.keras(epochs=1, initial_epoch=1)


def test_fit_of_a_loader_says_how(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=200, columns=["vector"])
    with pytest.raises(AttributeError, match=r"model\.fit\(loader\.keras\(epochs=N\)"):
        compiled().fit(loader)
    with pytest.raises(ConfigError, match="numpy_epoch"):
        np.asarray(loader)
