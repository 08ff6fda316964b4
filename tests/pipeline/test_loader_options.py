"""Arguments of the wrong type are refused when they are given, in one line.

Covers `LoaderOptions` and `MixtureOptions`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringfeed.pipeline import (
    Cache,
    CentreCrop,
    ColourJitter,
    ImageTransform,
    Loader,
    MemoryCache,
    Mixture,
    Mixup,
    Normalisation,
    Pad,
    Ramp,
    RandomCrop,
    plan_columns,
)
from ringfeed.sharding import ConfigError

Make = Callable[..., str]
NAN = float("nan")
SHARES = "'natural', 'uniform', 'power:A', 'X->Y:EPOCHS' or a share by class"


@pytest.mark.parametrize("kind", [Loader, Mixture])
def test_the_signature_shows_each_argument_and_the_docstring_describes_it(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters
    assert "options" not in parameters
    assert len(parameters) >= 9
    for name in parameters:
        assert f"        {name}: " in kind.__doc__
    with pytest.raises(TypeError, match="unexpected keyword argument 'bacth_size'"):
        kind("x", bacth_size=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": 5}, "a folder must be a URL or a path, got 5"),
        ({"columns": [1]}, "columns must be a list of at least one name, got [1]"),
        ({"columns": 5}, "columns must be a list of at least one name, got 5"),
        ({"columns": iter([])}, "columns must be a list of at least one name, got ()"),
        ({"cache": 3}, "cache must be 'none', 'memory', the path of a folder, or a cache, got 3"),
        ({"cache": ""}, "cache must be the path of a folder on a local disk, got ''"),
        ({"balance": {"rare": "x"}}, "the share of 'rare' in balance must be a number, got 'x'"),
        ({"balance": {"rare": None}}, "the share of 'rare' in balance must be a number, got None"),
        ({"balance": {"rare": NAN, "common": 1.0}}, "the shares of balance must be numbers from 0 up"),
        ({"balance": lambda epoch: 5}, f"balance must be {SHARES}, got 5"),
        ({"balance": np.array([0.2, 0.3, 0.5])}, f"balance must be {SHARES}, got array([0.2, 0.3, 0.5])"),
        ({"balance": np.eye(3)}, f"balance must be {SHARES}, got array([[1., 0., 0.], [0., 1., 0.], [0., 0., 1.]])"),
        ({"balance": Ramp(start="natural", end=np.ones(2), epochs=2)}, f"balance must be {SHARES}, got array("),  # type: ignore[arg-type]
        ({"balance": Ramp(start="natural", end="natural->uniform:5", epochs=2)}, f"balance must be {SHARES}, got 'na"),
        (
            {"balance": Ramp(start=Ramp(start="uniform", end="natural", epochs=2), end="uniform", epochs=3)},  # type: ignore[arg-type]
            f"balance must be {SHARES}, got Ramp(start='uniform'",
        ),
        ({"balance": Ramp(start="natural", end=lambda epoch: "uniform", epochs=2)}, f"balance must be {SHARES}, got <"),  # type: ignore[arg-type]
        ({"split": ["train"]}, "split must be text, got ['train']"),
        ({"fill": 5}, "fill must be a dict of values by feature, got 5"),
        ({"fill": ["id"]}, "fill must be a dict of values by feature, got ['id']"),
        ({"shuffle": "no"}, "shuffle must be True or False, got 'no'"),
        ({"shuffle": None}, "shuffle must be True or False, got None"),
        ({"sample_keys": "no"}, "sample_keys must be True or False, got 'no'"),
        ({"hedging": "no"}, "hedging must be True or False, got 'no'"),
        ({"batch_size": True}, "batch_size must be an integer, got True"),
        ({"batch_size": 0, "balance": "uniform", "epoch_length": "oversample"}, "batch_size must be at least 1, got 0"),
        ({"batch_size": NAN}, "batch_size must be an integer, got nan"),
        ({"epoch_length": True}, "epoch_length must be an integer, got True"),
        ({"fetch_threads": -1}, "fetch_threads must be at least 1, got -1"),
        ({"prefetch_bytes": 1e6}, "prefetch_bytes must be an integer, got 1000000.0"),
        ({"bucket_by": "label", "bucket_steps": "x"}, "bucket_steps must be an integer, got 'x'"),
        ({"bucket_by": "label", "bucket_steps": NAN}, "bucket_steps must be an integer, got nan"),
        ({"quarantined": "train-00001-of-00007.tfrecord"}, "quarantined must be a list of paths, got 'train-00001"),
        ({"balance": "uniform", "epoch_length": 2**63}, "an epoch must have fewer than 2**63 samples"),
        (
            {"balance": {"common": 1, "rare": 1e-30}, "epoch_length": "oversample"},
            "an epoch must have fewer than 2**63 samples; give epoch_length a number",
        ),
        ({"quarantined": 5}, "quarantined must be a list of paths, got 5"),
        ({"columns": np.array(3)}, "columns must be a list of at least one name, got array(3)"),
        ({"remainder": np.array([1, 2])}, "remainder must be 'drop', 'pad' or 'wrap', got array([1, 2])"),
        ({"on_bad_shard": np.array([1, 2])}, "on_bad_shard must be 'raise' or 'quarantine', got array([1, 2])"),
        ({"epoch_length": np.array([1, 2])}, "epoch_length must be an integer, 'oversample' or 'undersample'"),
        ({"shuffle": np.array([1, 2])}, "shuffle must be True or False, got array([1, 2])"),
        ({"bucket_by": np.array([1, 2])}, "bucket_by must be text, got array([1, 2])"),
        ({"bucket_steps": 2.0}, "bucket_steps must be an integer, got 2.0"),
        ({"cache": {"path": "/tmp"}}, "cache must be 'none', 'memory', the path of a folder, or a cache, got {'path'"),
        ({"cache": MemoryCache}, "cache must be 'none', 'memory', the path of a folder, or a cache, got <class"),
        ({"cache": "/tmp/a\0b"}, "cannot use '/tmp/a\\x00b' as a cache: embedded null byte"),
        ({"cache": np.array([1, 2])}, "cache must be 'none', 'memory', the path of a folder, or a cache, got array("),
        ({"fill": {"label": "\ud800"}}, "fill of feature 'label' must be one string value, got '\\ud800'"),
    ],
)
def test_a_loader_reports_what_it_expected(make_dataset: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Loader(**{"url": make_dataset(1000, fixed=False), "batch_size": 60, **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equivalent_arguments_are_accepted(make_dataset: Make) -> None:
    url = make_dataset(1000)
    plain = Loader(url, batch_size=60, columns=["id"], shuffle=False)
    given = Loader(url, batch_size=60, columns=iter(["id"]), shuffle=np.bool_(False), window_shards=10**400)  # type: ignore[arg-type]
    assert [b["id"].tolist() for b in given.numpy_epoch(0)] == [b["id"].tolist() for b in plain.numpy_epoch(0)]
    by_text = Loader(url, batch_size=60, balance=lambda epoch: "uniform->natural:2")
    ramp = Loader(url, batch_size=60, balance="uniform->natural:2")
    assert by_text.plan(1).class_mix == ramp.plan(1).class_mix


def test_methods_of_a_loader_report_what_they_expected(make_dataset: Make) -> None:
    loader = Loader(make_dataset(1000), batch_size=60)
    assert loader.epoch(2**63 - 1).cardinality() == 16
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: loader.sample(1.5), "index must be an integer, got 1.5"),  # type: ignore[arg-type]
        (lambda: loader.numpy_epoch(0, prefetch_bytes=-1), "prefetch_bytes must be at least 0, got -1"),
        (lambda: loader.resume("0"), "a state must be a dict of what `state` returned, got '0'"),  # type: ignore[arg-type]
        (lambda: loader.resume({**loader.state(0, 1), "quarantined": None}), "the state is of quarantined=null"),
        (lambda: loader.epoch(2**63), "epoch must be less than 2**63 for TensorFlow, got 9223372036854775808"),
        (lambda: loader.epoch(0, as_supervised="no"), "as_supervised must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: loader.epoch(0, transform=5), "transform must be a function of one element, or several, got 5"),  # type: ignore[arg-type]
        (lambda: loader.epoch(0, transform=dict, num_parallel_calls=1.5), "must be an integer, got 1.5"),  # type: ignore[arg-type]
        (lambda: plan_columns(loader.manifest, ["id"]), "columns must be features, such as manifest.schema['name']"),  # type: ignore[list-item]
        (lambda: plan_columns(loader.manifest, vocabularies={0: ["a"]}), "vocabularies: there is no column 0; the"),  # type: ignore[dict-item]
        (lambda: plan_columns(loader.manifest, categorical="id"), "categorical must be a list of names, got 'id'"),
    ]
    for call, message in refused:
        with pytest.raises(ConfigError) as caught:
            call()
        assert message in str(caught.value)


@pytest.mark.parametrize("result", [None, {}, {"id": None}, {"id": object()}, ()])
@pytest.mark.parametrize("calls", [1, 2])
def test_a_transform_that_returns_no_element_is_named(make_dataset: Make, result: Any, calls: int) -> None:
    def forgetful(element: Any) -> Any:
        return result

    loader = Loader(make_dataset(1000), batch_size=60)
    with pytest.raises(ConfigError, match="transform 'forgetful' must return the element changed: tensors"):
        loader.epoch(0, transform=[dict, forgetful], num_parallel_calls=calls)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pad(feature="x", length=2.5), "length must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: Pad(feature="x", length=3, truncate="no"), "truncate must be True or False"),  # type: ignore[arg-type]
        (lambda: Mixup(features="image", classes=2), "features must be a list of names, got 'image'"),  # type: ignore[arg-type]
        (lambda: Mixup(features=("x",), classes=2.5), "classes must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: Mixup(features=("x",), classes=2, alpha="x"), "alpha must be a number, got 'x'"),  # type: ignore[arg-type]
        (lambda: ImageTransform(feature="x", size=224), "size must be 2 numbers, got 224"),  # type: ignore[arg-type]
        (lambda: ImageTransform(feature="x", size=(2.5, 2)), "size must be an integer, got 2.5"),  # type: ignore[arg-type]
        (lambda: ImageTransform(feature="x", size=(2, 2), crop=RandomCrop), "crop must be a RandomCrop, a Cen"),  # type: ignore[arg-type]
        (lambda: ImageTransform(feature="x", size=(2, 2), jitter=0.3), "jitter must be a ColourJitter or None"),  # type: ignore[arg-type]
        (lambda: ImageTransform(feature="x", size=(2, 2), flip_up_down="no"), "flip_up_down must be True or"),  # type: ignore[arg-type]
        (lambda: RandomCrop(area=0.5), "area must be 2 numbers, got 0.5"),  # type: ignore[arg-type]
        (lambda: CentreCrop(fraction="x"), "fraction must be a number, got 'x'"),  # type: ignore[arg-type]
        (lambda: ColourJitter(hue=None), "hue must be a number, got None"),  # type: ignore[arg-type]
        (lambda: Normalisation(mean=0.5, std=1), "mean must be several numbers, got 0.5"),  # type: ignore[arg-type]
        (lambda: Ramp(start="uniform", end="natural", epochs=1.5), "epochs must be an integer"),  # type: ignore[arg-type]
        (lambda: MemoryCache(NAN), "limit_bytes of a cache must be an integer, got nan"),  # type: ignore[arg-type]
        (lambda: Cache(5), "cache must be the path of a folder on a local disk, got 5"),  # type: ignore[arg-type]
        (lambda: Mixture(5, batch_size=4), "sources must be a dict of Loaders' arguments by dataset, got 5"),  # type: ignore[arg-type]
        (lambda: Mixture({0: {"url": "x"}}, batch_size=4), "the name of a dataset in sources must be text, got 0"),  # type: ignore[dict-item]
        (lambda: Mixture({"a": "x"}, batch_size=4), "dataset 'a' of the mixture must be a dict of its"),  # type: ignore[dict-item]
        (lambda: Mixture({"a": {"url": "x", "blance": 1}}, batch_size=4), "a Loader has no argument 'blance'"),
        (lambda: Mixture({"a": {}}, batch_size=4), "dataset 'a' of the mixture: it has no url"),
        (lambda: Mixture({"a": {}}, batch_size=4, streams=0), "streams must be at least 1, got 0"),
    ],
)
def test_other_classes_report_what_they_expected(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


def test_an_empty_path_makes_no_cache_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="on a local disk, got ''"):
        Cache("")
    assert list(tmp_path.iterdir()) == []
