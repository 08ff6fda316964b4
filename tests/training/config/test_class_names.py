"""Class names in a configuration are texts as they are written, wherever they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tensorflow as tf

from ringfeed.sharding import build, open_dataset
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.class_names import class_name, class_number
from ringfeed.training.config.config_file import changed_keys, load_config, parse_config, to_tree
from ringfeed.training.config.printed import print_config
from ringfeed.training.models.losses import build_loss
from ringfeed.training.models.target import plan_target
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.inputs import open_loader

TEXTS = ("1", "01", "1.0", "yes", "no", "on", "null", "~", "2024-01-02", "1e3", "12:30:45", "True", "a b")


def _dataset(folder: Path, values: Any) -> str:
    label = pa.array(values)
    table = pa.table({"x": pa.array(range(40 * len(label)), pa.float32()), "label": pa.concat_arrays([label] * 40)})
    build(source=table, destination=str(folder / "d"), label="label", shards=1, workers=1, split={"train": 1.0})
    return str(folder / "d")


def _write(folder: Path, text: str) -> str:
    path = folder / "run.yaml"
    path.write_text(text)
    return str(path)


def test_texts_that_yaml_reads_as_something_else_name_classes(tmp_path: Path) -> None:
    _dataset(tmp_path, TEXTS)
    shares = ", ".join(f"{name}: {number + 1}" for number, name in enumerate(TEXTS))
    data = f"{{url: d, batch_size: 91, balance: {{{shares}}}, eval_split: null}}"
    path = _write(tmp_path, f"data: {data}\nloss: {{class_weights: {{{shares}}}}}")
    for config in (load_config(path), load_config(_write(tmp_path, print_config(load_config(path))))):
        assert config.data.balance == config.loss.class_weights == dict(zip(TEXTS, range(1, 14), strict=True))
        plan = open_loader(config, SoloRing()).plan()
        for number, name in enumerate(TEXTS):
            assert plan.class_mix[name].per_batch == (number + 1, number + 1)
        manifest = open_dataset(str(tmp_path / "d")).manifest
        loss = build_loss(config.loss, plan_target(manifest, config))
        classes = [str(value) for value in manifest.classes]
        losses = loss(tf.zeros([len(classes)] * 2), tf.range(len(classes))).numpy()
        ratio = losses / losses[classes.index("1")]
        assert ratio.round(4).tolist() == [TEXTS.index(name) + 1 for name in classes]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["1", "01"], ("1", "01")),
        (["yes", "no"], ("yes", "no")),
        (["2024-01-02", "2024-01-03"], ("2024-01-02", "2024-01-03")),
        ([7, -1], ("7", "-1")),
        ([True, False], ("true", "True", "false", "FALSE")),
    ],
)
def test_a_positive_class_and_a_balance_are_of_the_class_as_written(
    tmp_path: Path, values: list[Any], names: tuple[str, ...]
) -> None:
    url = _dataset(tmp_path, values)
    manifest = open_dataset(url).manifest
    path = _write(tmp_path, f"data: {{url: {url}, batch_size: 20, eval_split: null}}\ntask: binary")
    for name in names:
        overrides = [f"data.positive={name}", f"data.balance={{{name}: 1}}"]
        inside = _write(tmp_path, f"data: {{url: {url}, batch_size: 20, eval_split: null, positive: {name}, "
                                  f"balance: {{{name}: 1}}}}\ntask: binary")  # fmt: skip
        for config in (load_config(path, overrides), load_config(inside)):
            assert config.data.positive == name
            target = plan_target(manifest, config)
            wanted = [value for value in manifest.classes if class_name(value).lower() == name.lower()]
            assert [manifest.classes[target.positive]] == wanted
            plan = open_loader(config, SoloRing()).plan()
            assert plan.class_mix[wanted[0]].per_batch == (20, 20)


def test_another_spelling_is_another_class(tmp_path: Path) -> None:
    url = _dataset(tmp_path, [1, 2])
    for name in ("01", "1.0", "yes", "true"):
        config = load_config(_write(tmp_path, f"data: {{url: {url}, batch_size: 20, balance: {{{name}: 1}}}}"))
        with pytest.raises(ConfigError, match=rf"data.balance: there is no class '{name}'; .*1"):
            open_loader(config, SoloRing())
    with pytest.raises(ConfigError, match="the key '1' appears twice"):
        load_config(_write(tmp_path, "data: {url: d, balance: {1: 2, '1': 3}}"))


def test_datasets_of_a_mixture_and_their_classes_have_names_as_written(tmp_path: Path) -> None:
    text = (
        "data: {mixture: {01: {url: a, balance: {no: 1}}, 1: {url: b}, yes: {url: c}}, weights: {01: 1, 1: 2, yes: 3}}"
    )
    config = load_config(_write(tmp_path, text))
    assert config.data.mixture is not None
    assert list(config.data.mixture) == ["01", "1", "yes"]
    assert config.data.mixture["01"].balance == {"no": 1}
    assert config.data.weights == {"01": 1, "1": 2, "yes": 3}


def test_a_run_of_an_earlier_version_is_the_same_run() -> None:
    """Its checkpoint holds values as YAML read them, and keys as JSON wrote them."""
    for value in (1, True, "late"):
        now = parse_config({"data": {"url": "x", "positive": value, "balance": {1: 2.0}}, "task": "binary"}, "x")
        before = to_tree(now)
        before["data"] |= {"positive": value, "balance": {"1": 2.0}}
        assert changed_keys(now, before) == []
    assert class_number("x", "1", (0, 1)) == 1


def test_texts_that_yaml_reads_as_something_else_name_columns_and_splits(tmp_path: Path) -> None:
    columns = ", ".join(TEXTS)
    written = f"{{url: d, include: [{columns}], exclude: [{columns}], categorical: [{columns}], bucket_by: no}}"
    path = _write(tmp_path, f"data: {written}\nmodel: {{name: wide_deep, crosses: [[1, yes], [01, 1.0]]}}")
    for config in (load_config(path), load_config(_write(tmp_path, print_config(load_config(path))))):
        data = config.data
        assert data.include == data.exclude == data.categorical == TEXTS
        assert data.bucket_by == "no"
        assert config.model.crosses == (("1", "yes"), ("01", "1.0"))
    keys = [
        "data.train_split=2024",
        "data.eval_split=null",
        "data.target=1.0",
        "task=regression",
        "data.exclude=[yes, 1]",
    ]
    data = load_config(path, keys).data
    assert (data.train_split, data.eval_split, data.target, data.exclude) == ("2024", None, "1.0", ("yes", "1"))
