"""Completion of commands and flags in a shell, by argcomplete: the shell asks the program itself what may follow."""

from __future__ import annotations

import argparse
import os
import shlex

_PROGRAMS = ("ringfeed", "shard-dataset")
_EPILOG = """\
examples:
  eval "$(ringfeed completion bash)"     # for this shell; in ~/.bashrc for all later ones
  eval "$(ringfeed completion zsh)"      # in ~/.zshrc, after compinit
  ringfeed completion fish | source      # in ~/.config/fish/config.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ringfeed completion`."""
    parser.description = "Print what makes a shell complete commands, flags and values of ringfeed and shard-dataset."
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that is to read it")


def run(args: argparse.Namespace) -> int:
    """Print the script and return 0."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(_PROGRAMS, shell=args.shell))
    return 0


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
