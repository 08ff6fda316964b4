"""Completion in shells: the script that a shell evaluates, and the answers to what it asks."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringfeed.tools import cli
from ringfeed.tools.completion import words_so_far
from tests.test_packaging import loaded_by

ASK = """
eval "$(ringfeed completion bash)"
COMP_LINE="{line}" COMP_POINT={point} COMP_TYPE=9 COMP_WORDS=({line})
_python_argcomplete {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_both_programs(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert {"ringfeed", "shard-dataset", "_ARGCOMPLETE"} <= set(re.findall(r"[\w-]+", script))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_runs_in_its_shell(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    cli.main(["completion", shell])
    script = capsys.readouterr().out
    before = "autoload -U compinit; compinit -u -D\n" if shell == "zsh" else ""
    done = subprocess.run([shell, "-c", f"{before}{script}"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shard-dataset export a b --to w", ["webdataset "]),
        ("ringfeed train --q", ["--quiet "]),
        ("ringfeed comp", ["completion "]),
        ("ringfeed train --set early_stopping.mi", ["early_stopping.min_delta="]),
        ("ringfeed tune d --set backend=mu", ["multi_worker "]),  # bash takes what stands before = for another word
    ],
)
def test_bash_completes_commands_flags_and_values(line: str, expected: list[str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = ASK.format(program=line.split()[0], line=line, point=len(line))
    asked = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert asked.stdout.splitlines() == expected, asked.stderr


def test_what_answers_a_shell_does_not_import_tensorflow() -> None:
    code = "from ringfeed.tools import cli; [cli.build_parser(name) for name in cli.COMMANDS]"
    assert not loaded_by(code) & {"tensorflow", "keras", "horovod", "matplotlib"}


def test_an_open_quote_hides_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words_so_far() is None
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setenv("COMP_LINE", "ringfeed profile 'my da")
    assert words_so_far() == ["profile", "'my", "da"]
