"""Strict YAML: documents that would exhaust the stack or the memory."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ringfeed.sharding import ConfigError
from ringfeed.sharding.common.strict_yaml import load_yaml
from ringfeed.sharding.prepare import read_features
from ringfeed.training.config.config_file import load_config

LEVELS = "\n".join([f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 10)}]" for i in range(11)])


@pytest.mark.parametrize(
    ("read", "text", "problem"),
    [
        (read_features, "features: " + "[" * 20_000 + "]" * 20_000, "it is nested too deep"),
        (load_config, "{a: " * 200 + "}" * 200, "it is nested more than 100 deep"),
        (read_features, "features: &a {x: *a}", "it is nested more than 100 deep, or an alias"),
        (load_config, "data: &a [*a]", "it is nested more than 100 deep, or an alias"),
        (load_config, LEVELS, "its aliases .* stand for more than 100000 values"),
    ],
)
def test_deep_and_circular_documents_are_refused_in_one_line(
    tmp_path: Path, read: Callable[[str], object], text: str, problem: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"{path} is not (valid )?YAML: {problem}") as told:
        read(str(path))
    assert "\n" not in str(told.value)


def test_aliases_and_merges_are_allowed() -> None:
    tree = load_yaml("base: &b {x: 1}\none: *b\ntwo: {<<: *b, y: 2}")
    assert tree == {"base": {"x": 1}, "one": {"x": 1}, "two": {"x": 1, "y": 2}}


def test_names_stay_as_they_are_written_at_their_paths_alone() -> None:
    def are_names(path: tuple[str, ...]) -> bool:
        return path in (("a",), ("b", "c"))

    words = ["1", "01", "1.0", "1e3", "0x10", "0o7", "yes", "no", "on", "True", "null", "~", "2024-01-02", "12:30:45"]
    pairs = ", ".join(f"{word}: 1" for word in words)
    assert list(load_yaml(f"a: {{{pairs}}}", are_names)["a"]) == words
    for word in words:
        expected = None if word in ("null", "~") else word
        assert load_yaml(f"{{a: {word}, b: {{c: {word}, d: 01, yes: no}}}}", are_names) == {
            "a": expected,
            "b": {"c": expected, "d": 1, True: False},
        }
    assert load_yaml("a: {'1': x, null: 2}", are_names) == {"a": {"1": "x", "null": 2}}
    with pytest.raises(ValueError, match="the key '1' appears twice"):
        load_yaml("a: {1: 2, '1': 3}", are_names)
    aliased = load_yaml("b: &b {01: 1}\na: {<<: *b, 02: 2}\nx: *b", are_names)
    assert aliased == {"b": {1: 1}, "a": {"01": 1, "02": 2}, "x": {1: 1}}
