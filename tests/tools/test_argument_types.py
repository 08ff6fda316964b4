"""The parsers of arguments, and the layout of help."""

import argparse
from fractions import Fraction

import pytest

from ringfeed.tools.argument_types import HelpFormatter, check_persistent, parse_bytes, parse_splits


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1B", 1), ("2k", 2048), ("256MiB", 2**28), ("1.5GiB", 3 * 2**29), ("1GB", 10**9), ("1 tb", 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1XB", "1e6", "0", "0.1", "nan", "1MiB2"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"got {text!r}"):
        parse_bytes(text)


def test_shares_are_exact() -> None:
    assert parse_splits("a=0.1,b=0.2,c=0.7") == {"a": Fraction(1, 10), "b": Fraction(1, 5), "c": Fraction(7, 10)}
    assert list(parse_splits(" test = 1/3 , train=2/3")) == ["test", "train"]


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=", "=1", "a=1,", "a=0.5,a=0.5", "a=1.5,b=-0.5", "a=1,b=0", "a=0.33,b=0.66", "a=1/0", "a=nan", "a=1e0"],
)
def test_invalid_splits_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="split"):
        parse_splits(text)


def test_memory_urls_are_refused() -> None:
    for url in ("memory://x", "MEMORY://"):
        with pytest.raises(ValueError, match=f"vanishes when the command ends; name a folder .* got '{url}'"):
            check_persistent(url)
    check_persistent("memory")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_wraps_prose_to_the_terminal_and_keeps_examples(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    example = "examples:\n  command  --with two  spaces\n  another"
    parser = argparse.ArgumentParser(epilog=f"{'word ' * 99}\nend.\n\n{example}", formatter_class=HelpFormatter)
    prose, examples = parser.format_help().split("options:")[1].split("\n\n")[1:3]
    assert columns - 8 < max(map(len, prose.splitlines())) < columns
    assert prose.split() == ["word"] * 99 + ["end."]
    assert examples.rstrip() == example


def test_help_does_not_break_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in range(40, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        parser = argparse.ArgumentParser(
            epilog=f"{'word ' * 9}--cache-bytes {'word ' * 9}", formatter_class=HelpFormatter
        )
        assert "--cache-bytes" in parser.format_help()
