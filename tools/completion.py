"""Completion of commands and flags in a shell, by argcomplete: the shell asks the program itself what may follow."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import Any

__all__ = ["add_print_completion", "answer_shell", "words_so_far"]

_SHELLS = ("bash", "zsh", "fish")


def add_print_completion(parser: argparse.ArgumentParser) -> None:
    """Add `--print-completion`."""
    parser.add_argument(
        "--print-completion", action=_PrintCompletion, choices=_SHELLS,
        help=f'print what makes a shell complete the command; in bash: eval "$({parser.prog} --print-completion bash)"',
    )  # fmt: skip


class _PrintCompletion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        from argcomplete.shell_integration import shellcode

        print(shellcode([parser.prog], shell=values))
        parser.exit()


def words_so_far() -> list[str] | None:
    """The words after the command that a shell wants to complete; None if no shell asks."""
    if "_ARGCOMPLETE" not in os.environ:
        return None
    try:
        return shlex.split(os.environ["COMP_LINE"])[1:]
    except ValueError:  # an open quote
        return os.environ["COMP_LINE"].split()[1:]


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Tell a shell that asks what may follow, and end the process; return if no shell asks."""
    if words_so_far() is not None:
        import argcomplete

        argcomplete.autocomplete(parser)
