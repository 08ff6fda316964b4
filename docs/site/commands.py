"""The command-line reference: a page for each program, from its parsers."""

import argparse
import re
from collections.abc import Iterator

from ringfeed.tools import cli
from ringfeed.tools.shard_dataset.parser import build_parser

_COMMAND_LINE = re.compile(r"^ {2,}", re.MULTILINE)
_KEYS = "keys of the configuration"


def command_pages() -> dict[str, str]:
    """The pages by name."""
    return {
        "reference/shard-dataset.md": program_page(build_parser(), subparsers(build_parser())),
        "reference/ringfeed.md": program_page(
            cli.build_parser(None), {name: subparsers(cli.build_parser(name))[name] for name in cli.COMMANDS}
        ),
    }


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a program's commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def program_page(program: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser]) -> str:
    """A page on a program and its commands."""
    lines = [f"# `{program.prog}`", *described(program)]
    lines += [f"## Commands\n\n| command | what it does |\n| --- | --- |\n{command_rows(program)}"]
    for name, command in commands.items():
        lines += [f"## `{command.prog}` {{ #{name} }}", *described(command)]
        for below in subparsers(command).values():
            lines += [f"### `{below.prog}`", *described(below)]
    return "\n\n".join(lines) + "\n"


def command_rows(program: argparse.ArgumentParser) -> str:
    (chosen,) = (action for action in program._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join(f"| [`{row.dest}`](#{row.dest}) | {cell(row.help)} |" for row in chosen._choices_actions)


def described(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Description, usage, options and examples of a parser."""
    yield from paragraphs(parser.description)
    formatter = argparse.HelpFormatter(parser.prog, width=80)
    formatter.add_usage(None, parser._actions, parser._mutually_exclusive_groups, prefix="")
    yield f"```text\n{formatter.format_help().strip()}\n```"
    for group in parser._action_groups:
        items = "\n\n".join(options(parser, group._group_actions))
        if items:
            title = {"positional arguments": "arguments"}.get(str(group.title), str(group.title))
            yield f"**{title[0].upper()}{title[1:]}**\n\n{items}"
    yield from paragraphs(parser.epilog)


def options(parser: argparse.ArgumentParser, actions: list[argparse.Action]) -> Iterator[str]:
    """The items of a list of options: how each is written, and its help."""
    formatter = argparse.HelpFormatter(parser.prog, width=1000)
    for action in actions:
        if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
            continue
        help_text = formatter._expand_help(action) if action.help else ""
        yield f"`{formatter._format_action_invocation(action)}`\n:   {cell(help_text)}"


def cell(text: str | None) -> str:
    """Text as a cell of a table."""
    words = " ".join((text or "").split()).replace("%%", "%")
    return re.sub(r"[|*<]", r"\\\g<0>", words)


def paragraphs(text: str | None) -> Iterator[str]:
    """The paragraphs of a help text; commands and lists in them keep their lines."""
    for paragraph in re.split(r"\n\s*\n", (text or "").strip("\n")):
        first, _, rest = paragraph.partition("\n")
        if paragraph.startswith(_KEYS):
            yield "The keys are in the [configuration reference](configuration.md)."
        elif first.endswith(":") and _COMMAND_LINE.match(rest):
            body = _COMMAND_LINE.sub("", rest) if "\n   " not in rest else rest
            yield f"{first[0].upper()}{first[1:]}\n\n```text\n{body.rstrip()}\n```"
        elif _COMMAND_LINE.match(paragraph):
            yield f"```text\n{paragraph.rstrip()}\n```"
        elif paragraph:
            yield re.sub(r"[*<_\[]", r"\\\g<0>", paragraph)
