"""Completion of commands, flags and keys in a shell, by argcomplete: the shell asks the program what may follow."""

from __future__ import annotations

import argparse
import os
import re
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

        (commands,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        for action in (action for command in commands.values() for action in command._actions):
            if action.dest == "overrides":
                action.completer = complete_override
        argcomplete.autocomplete(parser)


def complete_override(prefix: str, **_: object) -> list[str]:
    """What may follow `--set`: the keys of a configuration, and after ``=`` the words that a key may be.

    >>> complete_override("data.on_bad_shard=")
    ['data.on_bad_shard=raise', 'data.on_bad_shard=quarantine']
    """
    from ringfeed.training.config.keys import all_keys

    key, *value = prefix.split("=", 1)
    if not value:
        return [f"{name}=" for name, _ in all_keys()]
    words = next((field.metadata.get("choices") or () for name, field in all_keys() if name == key), ())
    return [f"{key}={word}" for word in words if re.fullmatch(r"[\w.-]+", word)]
