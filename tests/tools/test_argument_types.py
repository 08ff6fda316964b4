"""The parsers of arguments, and the layout of help."""

import argparse
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from ringfeed.tools import cli
from ringfeed.tools.argument_types import HelpFormatter, check_persistent, parse_bytes, parse_splits
from ringfeed.tools.shard_dataset.commands import parse
from ringfeed.tools.shard_dataset.parser import build_parser

ROOT = Path(__file__).resolve().parents[2]


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
    entries = f"  a key      {'text ' * 50}\n  {'word ' * 50}\n  b          # {'note ' * 50}"
    text = f"{'word ' * 99}\nend.\n\n{example}\n\n{entries}"
    parser = argparse.ArgumentParser(epilog=text, formatter_class=HelpFormatter)
    prose, examples, table = parser.format_help().split("options:")[1].split("\n\n")[1:4]
    *wrapped, words, note = table.rstrip().split("\n")
    assert (words.split(), note.split()[2:]) == (["word"] * 50, ["note"] * 50)
    assert max(map(len, wrapped)) < columns
    assert all(re.match(" {13}text", line) for line in wrapped[1:])
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


def test_the_help_of_each_command_begins_with_its_examples_and_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    parsers = [build_parser(), *map(cli.build_parser, cli.COMMANDS)]
    whole = [(parser.prog, parser.format_help()) for parser in parsers]
    for parser, name in [(parsers[0], None), *zip(parsers[1:], cli.COMMANDS, strict=True)]:
        (chosen,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        whole += [(sub.prog, sub.format_help()) for key, sub in chosen.choices.items() if name in (None, key)]
    assert len(whole) == 1 + 9 + 2 * len(cli.COMMANDS)
    for program, text in whole:
        description, examples, usage = re.split(r"^examples?:\n|^usage: ", text, maxsplit=2, flags=re.MULTILINE)
        assert description.strip().endswith("."), program
        assert program in examples, program
        assert usage.startswith(program), program
        whole_lines = re.compile(
            r" +(\[|ringfeed |shard-dataset )"
        )  # groups of flags that exclude each other; examples
        assert not [line for line in text.splitlines() if len(line) > 100 and not whole_lines.match(line)], program


@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        (
            "ringfeed",
            ["profle", "d"],
            "there is no command 'profle'; did you mean 'profile'? The commands are: train, ",
        ),
        ("ringfeed", ["x"], "there is no command 'x'; the commands are: train, launch, export, predict, "),
        ("ringfeed", ["profile", "d", "--batchsize", "3"], "arguments: --batchsize 3 (did you mean --batch-size?)"),
        ("ringfeed", ["train", "--batch-size", "3"], "--batch-size 3 (did you mean --set data.batch_size=VALUE?)"),
        ("ringfeed", ["train", "run.yaml"], "unrecognized arguments: run.yaml (did you mean --config run.yaml?)"),
        ("ringfeed", ["train", "--confg", "run.yaml"], "arguments: --confg run.yaml (did you mean --config?)"),
        ("ringfeed", ["train", "--conf", "run.yaml", "--sett=a"], "arguments: --sett=a (did you mean --set?)"),
        ("shard-dataset", ["build", "a", "--shards", "3"], "arguments are required: DST"),
        ("shard-dataset", ["biuld", "a", "b"], "there is no command 'biuld'; did you mean 'build'?"),
        ("shard-dataset", ["build", "a", "b", "--drop=x"], "--drop=x (did you mean --drop-columns or --drop-nulls?)"),
        ("shard-dataset", ["build", "a", "b", "--lable=x"], "arguments: --lable=x (did you mean --label?)"),
        ("shard-dataset", ["build", "a", "b", "-z"], "unrecognized arguments: -z;"),
    ],
)
def test_a_wrong_name_gets_a_suggestion(
    program: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ([], ["--json"]) if words[-1] not in ("d", "x") else ([],):
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, *flags]) if program == "ringfeed" else parse([*words, *flags])
        line = capsys.readouterr().err
        assert stop.value.code == 2
        assert line.count("\n") == 1
        assert message.rstrip(";") in (json.loads(line)["message"] if flags else line)


def test_every_variable_of_the_environment_is_on_its_page() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    texts = [
        path.read_text()
        for room in ("sharding", "pipeline", "training", "tools")
        for path in (ROOT / room).rglob("*.py")
    ]
    read = {name for text in texts for name in re.findall(r"environ\w*(?:\.get\(|\.setdefault\(|\[)\"(\w+)\"", text)}
    read |= {
        name for text in texts for name in re.findall(r"\"(RINGFEED_[A-Z]\w+|HOROVOD_RANK|\w+_LOCAL_SIZE)\"", text)
    }
    assert len(read) > 8
    families = {"OMPI_COMM_WORLD_LOCAL_SIZE": "OMPI_COMM_WORLD_*", "MV2_COMM_WORLD_LOCAL_SIZE": "MV2_COMM_WORLD_*"}
    assert {name for name in read if families.get(name, name) not in page} == set()
