"""Settings that do not go together: each pair of the table is refused, and each names keys that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config import rules
from ringfeed.training.config.checks import FUNCTION
from ringfeed.training.config.config_file import apply_overrides, parse_config
from ringfeed.training.config.keys import all_keys
from ringfeed.training.config.method import key_default
from ringfeed.training.config.rules import PAIRS, Pair, check_pairs, setting_value

PROPERTIES = {
    "augment.random", "augment.mixes", "model.takes_images", "schedule.has_warmup", "schedule.has_boundaries",
    "parameter_server.is_set",
}  # fmt: skip
FLAGS = {"--elastic", "--host-discovery-script", "--ray", "--dry-run", "--lr-find"}
KEYS = dict(all_keys())


def _names(setting: str) -> list[str]:
    return [re.split("!?=", term)[0] for term in setting.split(" and ")]


DEFAULTS = parse_config({"data": {"url": "x"}}, "test")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.first} and {pair.second}")
def test_a_pair_names_keys_and_words_that_exist(pair: Pair) -> None:
    for term in re.split(" and |, ", f"{pair.first}, {pair.second}"):
        (name,) = _names(term)
        assert name in KEYS or name in PROPERTIES or name in FLAGS
        if name in PROPERTIES:
            assert setting_value(DEFAULTS, name) is not None
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
            "parameter_server does not go with backend=horovod: they are options of its servers; use "
            "backend=parameter_server, or leave out parameter_server",
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


OVERRIDES = {
    "augment.mixes": "augment.mixup=0.2", "augment.random": "augment.hue=0.1", "callbacks": "callbacks=[a:b]",
    "data.mixture": "data.mixture={a: {url: x}}", "data.weights": "data.weights=uniform",
    "loss.class_weights": "loss.class_weights={a: 2}", "loss.options": "loss.options={a: 1}", "max_time": "max_time=1h",
    "early_stopping.metric": "early_stopping.metric=loss", "model.crosses": "model.crosses=[[a, b]]",
    "model.remat": "model.remat=[a]", "model.shared": "model.shared=[[a, b]]", "model.takes_images=false": "epochs=1",
    "parameter_server.is_set": "parameter_server.staleness=9", "schedule.boundaries": "schedule.boundaries=[1.0]",
    "schedule.boundary_steps": "schedule.boundary_steps=[4]", "schedule.has_boundaries=false": "epochs=1",
    "schedule.has_warmup=false": "epochs=1", "schedule.options": "schedule.options={a: 1}",
    "sync.clients": "sync.clients=[a, b]",
}  # fmt: skip
"""A way to set what has no word or number of its own."""
NEEDED = {
    "data.mixture": "data.url=null", "data.url": "data.mixture={a: {url: x}}", "loss.huber_delta": "task=regression",
    "sync.clients": "sync.method=fedavg",
    "sync.method=post_local_sgd": "sync.start_step=1",
}  # fmt: skip
"""What a setting needs to have a meaning, whichever other it meets."""


def _overrides(term: str) -> list[str]:
    """Each way to have a term: a word that it names, or for `!=`, one that it does not."""
    name, sign, words = re.fullmatch(r"([\w.-]+?)(?:(!?=)(.*))?", term).groups()  # type: ignore[union-attr]
    if term in OVERRIDES or name.startswith("--"):
        return [OVERRIDES.get(term, term)]
    choices = [re.sub(FUNCTION, "a:b", word) for word in KEYS[name].metadata.get("choices") or ()]
    if sign == "=":
        return [f"{name}={word}" for word in words.split("|")]
    default, bounds = key_default(KEYS[name]), KEYS[name].metadata.get("bounds")
    if choices:
        known = [str(default)] if sign is None else words.split("|")
        return [f"{name}={word}" for word in choices if word not in known]
    if isinstance(default, bool):
        return [f"{name}={str(not default).lower()}"]
    return [f"{name}={(0.5 if 'above' in bounds or str(default) == '0.0' else 2) if bounds else 'a'}"]


def _trees(setting: str, other: str) -> Iterator[list[str]]:
    """Overrides that have two settings, each in all its ways."""
    terms = f"{setting} and {other}".split(" and ")
    ways = [[[*filter(None, [NEEDED.get(term), NEEDED.get(one)]), one] for one in _overrides(term)] for term in terms]
    for number in range(max(map(len, ways))):
        chosen = [way[number % len(way)] for way in ways]
        yield ["data.url=x", *(one for way in chosen for one in way[:-1]), *(way[-1] for way in chosen)]


def _refusal(overrides: list[str]) -> str | None:
    try:
        config = parse_config(apply_overrides({}, [one for one in overrides if not one.startswith("--")]), "test")
        check_pairs(config, {one: True for one in overrides if one.startswith("--")})
    except ConfigError as error:
        return str(error)
    return None


def _after_remedies(message: str, overrides: list[str]) -> Iterator[list[str]]:
    """The overrides after each remedy that a message names."""
    if another := re.fullmatch(r"test: (\S+) is a key of .*: leave it out", message):
        message = f"; leave out {another[1]}"
    _, _, remedies = message.rpartition("; ")
    for remedy in remedies.removeprefix("use ").split(", or "):
        if name := remedy.partition("leave out ")[2]:
            yield [one for one in overrides if not one.startswith(name)]
            continue
        steps = (step.partition("=") for step in remedy.split(" and "))
        ways = ((key, [text] if text.startswith("[") else re.split(", | or ", text)) for key, _, text in steps)
        for chosen in product(*([f"{key}={word}" for word in words] for key, words in ways)):
            yield [*overrides, *chosen]


def _follow(overrides: list[str], told: frozenset[str]) -> None:
    """Do what each message says until the configuration is accepted."""
    message = _refusal(overrides)
    assert message not in told, (overrides, told)
    for after in _after_remedies(message, overrides) if message else ():
        _follow(after, told | {message})


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.first} and {pair.second}")
def test_the_remedy_of_a_pair_leads_to_a_configuration_that_is_accepted(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in pair.first.split(", "):
        for overrides in _trees(setting, pair.second):
            with monkeypatch.context() as alone:
                alone.setattr(rules, "PAIRS", (pair,))
                message = _refusal(overrides)
            assert message is not None, overrides
            assert f": {pair.reason}; " in message
            for after in _after_remedies(message, overrides):
                _follow(after, frozenset({message}))


def test_flags_of_the_command_line_are_checked_where_they_are_given() -> None:
    config = parse_config({"data": {"url": "x"}, "backend": "parameter_server"}, "test")
    check_pairs(config)
    check_pairs(config, {"--dry-run": False})
    with pytest.raises(ConfigError) as caught:
        check_pairs(config, {"--dry-run": True})
    assert str(caught.value) == (
        "--dry-run does not go with backend=parameter_server: it plans a ring; use backend=horovod"
    )
