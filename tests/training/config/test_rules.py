"""Settings that do not go together: each pair of the table is refused, and each names keys that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.config.keys import all_keys
from ringfeed.training.config.rules import PAIRS, Pair, check_pairs, setting_value

PROPERTIES = {
    "augment.random", "augment.mixes", "model.takes_images", "schedule.has_warmup", "schedule.has_boundaries",
    "parameter_server.is_set",
}  # fmt: skip
FLAGS = {"--elastic", "--host-discovery-script", "--ray", "--dry-run", "--lr-find"}
KEYS = dict(all_keys())


def _names(setting: str) -> list[str]:
    return [re.split("!?=", term)[0] for term in setting.split(" and ")]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.first} and {pair.second}")
def test_a_pair_names_keys_and_words_that_exist(pair: Pair) -> None:
    config = parse_config({"data": {"url": "x"}}, "test")
    for term in re.split(" and |, ", f"{pair.first}, {pair.second}"):
        (name,) = _names(term)
        assert name in KEYS or name in PROPERTIES or name in FLAGS
        if name in PROPERTIES:
            assert setting_value(config, name) is not None
        words = term.partition("=")[2].split("|") if "=" in term else []
        choices = KEYS[name].metadata.get("choices") if name in KEYS else None
        assert not choices or set(words) <= {*choices, "null"}, term
    assert not pair.reason.endswith(".")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (
            {"task": "regression", "data": {"target": "y"}, "loss": {"focal_gamma": 2.0}},
            "loss.focal_gamma=2.0 does not go with task=regression: it has no classes; use loss.focal_gamma=0.0",
        ),
        (
            {"optimizer": {"accumulate": 2}, "model": {"name": "text"}},
            "optimizer.accumulate=2 does not go with model.name=text and model.packing=true: a row holds several "
            "records; use optimizer.accumulate=1",
        ),
        (
            {"sync": {"method": "diloco"}, "backend": "mirrored"},
            "sync.method=diloco does not go with backend=mirrored: TensorFlow reduces the gradients of every step; use "
            "sync.method=every_step",
        ),
        (
            {"model": {"name": "wide_deep", "crosses": [["a", "b"]]}, "parameter_server": {"mode": "sync"}},
            "parameter_server does not go with backend=horovod: they are options of its servers; use its defaults",
        ),
        (
            {"model": {"crosses": [["a", "b"]]}},
            "model.crosses=[['a', 'b']] does not go with model.name=tabular: wide_deep alone has columns of ids; use "
            "model.crosses=[]",
        ),
    ],
)
def test_an_error_names_both_settings_the_reason_and_a_remedy(tree: dict[str, Any], message: str) -> None:
    tree = {**tree, "data": {"url": "x", **tree.get("data", {})}}
    with pytest.raises(ConfigError) as caught:
        parse_config(tree, "test")
    assert str(caught.value) == f"test: {message}"


def test_flags_of_the_command_line_are_checked_where_they_are_given() -> None:
    config = parse_config({"data": {"url": "x"}, "backend": "parameter_server"}, "test")
    check_pairs(config)
    check_pairs(config, {"--dry-run": False})
    with pytest.raises(ConfigError) as caught:
        check_pairs(config, {"--dry-run": True})
    assert str(caught.value) == (
        "--dry-run does not go with backend=parameter_server: it plans a ring; use backend=horovod"
    )
