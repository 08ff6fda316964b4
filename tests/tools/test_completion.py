"""Completion in shells: the script that a shell evaluates, and the answers to what it asks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ringfeed.tools import cli
from ringfeed.tools.completion import words_so_far
from ringfeed.tools.shard_dataset.program import main

ASK = """
eval "$({program} --print-completion bash)"
COMP_LINE="{line}" COMP_POINT={point} COMP_TYPE=9 COMP_WORDS=({line})
_python_argcomplete {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_program(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    for program, run in (("shard-dataset", main), ("ringfeed", cli.main)):
        with pytest.raises(SystemExit) as ended:
            run(["--print-completion", shell])
        assert ended.value.code == 0
        script = capsys.readouterr().out
        assert program in script
        assert "_ARGCOMPLETE" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("shard-dataset export a b --to w", ["webdataset "]),
        ("ringfeed train --q", ["--quiet "]),
    ],
)
def test_bash_completes_commands_flags_and_values(line: str, expected: list[str]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = ASK.format(program=line.split()[0], line=line, point=len(line))
    asked = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert asked.stdout.splitlines() == expected, asked.stderr


def test_an_open_quote_hides_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words_so_far() is None
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setenv("COMP_LINE", "ringfeed profile 'my da")
    assert words_so_far() == ["profile", "'my", "da"]
