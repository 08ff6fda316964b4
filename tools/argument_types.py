"""Parsers of the command line: how they report a mistake, and how they turn an argument's text into a value.

An error names the rule and the value.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Any, NoReturn, TypeVar

from ringfeed.sharding.common.split_shares import exact_shares

_USAGE = 2  # exit status
_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {_letter: 1024**_power, f"{_letter}IB": 1024**_power, f"{_letter}B": 1000**_power}


T = TypeVar("T")
_Subcommands = argparse._SubParsersAction


_ENTRY = re.compile(r"( {2,})\S+(?: \S+)* {2,}(?=[^ #])")  # an indented name, and the spaces before its text


class HelpFormatter(argparse.HelpFormatter):
    """Wraps prose and the texts of lists to the terminal; other indented lines (examples) stay as written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        def fill(paragraph: str) -> str:
            if "\n  " not in f"\n{paragraph}":
                return _filled(paragraph, width)
            return "\n".join(_filled_entry(line, width) for line in paragraph.split("\n"))

        return textwrap.indent("\n\n".join(fill(part) for part in text.split("\n\n")), indent)


def _filled_entry(line: str, width: int) -> str:
    """Wrap the text of an entry in a list, which spaces separate from the entry's name, or a comment; others stay."""
    name = _ENTRY.match(line)
    if line.startswith("  # "):
        return _filled(line, width, "  # ")
    if name is None or len(line) <= width:
        return line
    hang = len(name[0]) if 2 * len(name[0]) < width else len(name[1]) + 4
    return _filled(line, width, " " * hang)


def _filled(paragraph: str, width: int, indent: str = "") -> str:
    """Wrap between words only: a flag such as ``--cache-bytes`` stays whole, so that it can be found and copied."""
    options: dict[str, Any] = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(paragraph, width, **options)


_REQUIRED = "the following arguments are required"  # argparse's words


class CommandParser(argparse.ArgumentParser):
    """Reports a mistake in one line, with the command that prints the help, and begins the help with its examples."""

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse what this parser knows of a command line."""
        self._words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the command with exit code 2. A flag that is not known may be a required one: it is named first."""
        if message.startswith(_REQUIRED):
            unknown = [word for word in self._words if word.startswith("--") and not self._knows(word)]
            if unknown:
                refuse_unknown(self, None, unknown)
        self._report(f"{_without_secrets(message)}; see: {self.prog} --help")

    def _report(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"{self.prog}: error: {message}\n")

    def _knows(self, word: str) -> bool:
        """Whether a word is a flag, or the beginning of one."""
        return any(flag.startswith(word.partition("=")[0]) for flag in self._option_string_actions)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; a mistake ends the command."""
        parsed, more = self.parse_known_args(args, namespace)
        if more:
            refuse_unknown(self, getattr(parsed, "command", None), more)
        return parsed

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, _Subcommands) and value not in action.choices:
            from ringfeed.sharding.messages import did_you_mean

            known = f"the commands are: {', '.join(action.choices)}"
            self.error(f"there is no command {value!r}; {did_you_mean(value, action.choices, known)}")
        super()._check_value(action, value)

    def format_help(self) -> str:
        """The help: description and examples, then usage, arguments, and the rest of the epilog."""
        parts = (self.epilog or "").split("\n\n")
        start = next((i for i, part in enumerate(parts) if part.startswith("example")), len(parts))
        indented = itertools.takewhile(lambda part: part.startswith("  "), parts[start + 1 :])
        end = start + 1 + len(list(indented))
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        formatter.add_text("\n\n".join(parts[start:end]))
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        for group in self._action_groups:
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(group._group_actions)
            formatter.end_section()
        formatter.add_text("\n\n".join(parts[:start] + parts[end:]))
        return formatter.format_help()


def refuse_unknown(program: argparse.ArgumentParser, command: str | None, words: Sequence[str]) -> NoReturn:
    """End a program, because a subcommand does not know some arguments; names the flag that may be meant."""
    from ringfeed.sharding.messages import closest

    subcommands = (action.choices for action in program._actions if isinstance(action, _Subcommands))
    parser: argparse.ArgumentParser = next((choices[command] for choices in subcommands if command), program)
    typed = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
    flags = parser._option_string_actions
    longer = " or ".join(flag for flag in flags if flag.startswith(f"{typed}-")) if typed else ""
    is_config = not typed and "--config" in flags and words[0].endswith((".yaml", ".yml"))
    close = f"--config {words[0]}" if is_config else longer or _overrides(typed, flags) or closest(typed, flags)
    parser.error(f"unrecognized arguments: {' '.join(words)}" + (f" (did you mean {close}?)" if close else ""))


def _overrides(typed: str, flags: Collection[str]) -> str:
    """How to set the keys of a configuration that a flag is named like, if the command has `--set`."""
    if not typed or "--set" not in flags:
        return ""
    from ringfeed.training.config.keys import all_keys

    wanted = typed.removeprefix("--").replace("-", "_")
    return " or ".join(f"--set {name}=VALUE" for name, _ in all_keys() if wanted in (name, name.rpartition(".")[2]))


class EventParser(CommandParser):
    """Reports a mistake as an event: a line of JSON."""

    def _report(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"{json.dumps({'event': 'error', 'message': message, 'status': _USAGE})}\n")


def _without_secrets(text: str) -> str:
    from ringfeed.sharding.messages import printable  # its package takes half a second to import
    from ringfeed.sharding.url_secrets import without_secrets

    return printable(without_secrets(text))


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet` and `--verbose`; only one may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="print no progress and no notes; warnings remain")
    group.add_argument("-v", "--verbose", action="store_true", help="print details, such as each request tried again")


def checked_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Turn a parser into a `type` for argparse, which shows the message of an ArgumentTypeError only."""

    def checked(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def checked_text(parse: Callable[[str], object]) -> Callable[[str], str]:
    """Turn a parser into a `type` that checks the text and returns it unchanged."""

    def checked(text: str) -> str:
        checked_type(parse)(text)
        return text

    return checked


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers; it raises a ValueError for anything else, and for numbers below `least`."""

    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise ValueError(f"must be an integer of at least {least}, got {text!r}")
        return int(text)

    return parse


def check_persistent(url: str) -> None:
    """Refuse a URL whose files vanish when the command ends.

    Raises:
        ValueError: the URL is of memory://.
    """
    if url.lower().startswith("memory:"):
        raise ValueError(f"memory:// vanishes when the command ends; name a folder on a disk or a store, got {url!r}")


def parse_bytes(text: str) -> int:
    """Parse a size in bytes; ``KiB``, ``MiB``, ``GiB``, K, M, G are powers of 1024, ``KB``, ``MB``, ``GB`` of 1000.

    Raises:
        ValueError: the text is not a size, or the size is below one byte.

    >>> parse_bytes("256MiB"), parse_bytes("1GB"), parse_bytes("1.5 KiB"), parse_bytes("4096")
    (268435456, 1000000000, 1536, 4096)
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match.group(2).upper() not in _UNITS:
        raise ValueError(f"a size is a number with a unit, such as 256MiB or 1GB, got {text!r}")
    size = int(Fraction(match.group(1)) * _UNITS[match.group(2).upper()])
    if size < 1:
        raise ValueError(f"a size must be at least one byte, got {text!r}")
    return size


def parse_split_file(text: str) -> tuple[str, str]:
    """Parse the name of a split, and the pattern of its files.

    Raises:
        ValueError: the text is not NAME=PATTERN.

    >>> parse_split_file("test=t10k-*")
    ('test', 't10k-*')
    """
    name, _, pattern = text.partition("=")
    if not name or not pattern:
        raise ValueError(f"the files of a split are NAME=PATTERN, such as train='train-*', got {text!r}")
    return name, pattern


def parse_splits(text: str) -> dict[str, Fraction]:
    """Parse the shares of splits into exact fractions.

    Raises:
        ValueError: a part is not NAME=SHARE, a name is repeated, or the shares are not positive or do not add up to 1.

    >>> parse_splits("train=0.9,test=0.1")
    {'train': Fraction(9, 10), 'test': Fraction(1, 10)}
    >>> parse_splits("a=1/3,b=2/3")["b"]
    Fraction(2, 3)
    """
    splits: dict[str, Fraction] = {}
    for part in text.split(","):
        name, equals, share = (word.strip() for word in part.partition("="))
        if not name or not equals:
            raise ValueError(f"splits are NAME=SHARE,..., such as train=0.9,test=0.1, got {part!r}")
        if not re.fullmatch(r"[0-9]+/[0-9]*[1-9][0-9]*|[0-9]*\.?[0-9]+", share):
            raise ValueError(f"the share of split {name!r} must be a decimal such as 0.9, got {share!r}")
        if name in splits:
            raise ValueError(f"each split must be named once, got {name!r} twice in {text!r}")
        splits[name] = Fraction(share)
        if splits[name] <= 0:
            raise ValueError(f"the share of split {name!r} must be more than 0, got {share}")
    return exact_shares(splits)
