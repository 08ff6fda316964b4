"""Names from data may hold anything; no message or report brings a control character of theirs to the terminal."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.table import Table

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, RingfeedError, build
from ringfeed.sharding.messages import listed, printable
from ringfeed.tools.cli import main as ringfeed
from ringfeed.tools.console import SafeConsole, align, print_stderr
from ringfeed.tools.demo.run import Demo
from ringfeed.tools.environment import doctor
from ringfeed.tools.probe import Runtime
from ringfeed.tools.shard_dataset import main

NAMES = (
    "a\x1b[31mb", "a\nb", "a\r\nb", "a\x07", "a\x9b2J", "a\u202eb", "a\u2028b", "a\x00b", "\x1b]0;title\x07", "a\x7f",
    "a\tb", "a\x85b",
)  # fmt: skip
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_printable(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_stderr(f"column {name} is odd")
    texts = [str(RingfeedError(name)), listed([name]), printable(name), capsys.readouterr().err[:-1]]
    texts += align(["x"], [[name]])[1:]
    assert all(text.isprintable() for text in texts), texts
    assert printable(printable(name)) == printable(name)


@pytest.mark.parametrize("name", NAMES)
def test_consoles_are_printable(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = doctor.Facts(
        versions={"s3fs": name, "hdfs-native": None}, kernels=True, runtime=Runtime(tensorflow=None, horovod=None),
        horovod_built_for=name, gpus=(name, name), cpu_cores=1, memory_bytes=1, interfaces=(name,),
    )  # fmt: skip
    doctor._show(facts, (doctor.Finding(what=name, command=name, broken=True),), SafeConsole())
    demo = Demo(tmp_path, tmp_path, True, SafeConsole(), [])
    demo.say(name)
    with contextlib.suppress(RingfeedError, OSError, ValueError):
        demo.run("look", ["false", name])
    demo.console.print(Table(name))
    printed = capsys.readouterr().out
    assert not CONTROL.search(printed), printed
    assert printed.count(printable(name)) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_commands_print_no_control_characters(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = str(tmp_path / "x.parquet"), str(tmp_path / "out")
    column = pa.array([f"{name}{row % 3}" for row in range(60)])
    pq.write_table(pa.table({"x": range(60), name: column}), source)
    build = ["build", source, out, "--label", name, "--workers", "1"]
    commands = [
        [*build[:3], "--label", "absent"],
        [*build, "--filter", f"`{name}` > 1"],
        [*build, "--exclude", "y"],
        [*build, "--dry-run"],
        build,
        build,
        ["inspect", out],
        ["verify", out],
        ["head", out, "--split", "nothing"],
    ]
    for words in commands:
        with contextlib.suppress(SystemExit):
            main(words)
        printed = capsys.readouterr()
        for text in (printed.out, printed.err):
            assert not CONTROL.search(text), (words, text)
        assert len(printed.err.splitlines()) <= 5, (words, printed.err)


SHARD_DATASET = (
    "build SOURCE OUT/new --label absent", "build SOURCE DATA", "build SOURCE/none OUT/new", "append SOURCE DATA",
    "append OTHER DATA", "reshard DATA OUT/new --split a=0.5", "inspect DATA", "inspect OUT/none", "verify DATA",
    "verify DATA --deep", "cat DATA --split none", "cat DATA --columns none", "cat DATA", "repair DATA --dry-run",
    "repair DATA --dry-run --source OTHER", "clean OUT --dry-run", "clean DATA --spill OUT/none",
    "export DATA OUT/web --to webdataset", "export DATA OUT/hf --to hf --columns none",
)  # fmt: skip
RINGFEED = (
    "cache OUT", "cache CACHE", "cache CACHE --dataset DATA", "cache CACHE --clear", "train --config OUT/none.yaml",
    "train --config RUN --dry-run", "profile OUT/none", "profile DATA --split none", "simulate OUT/none",
    "tune DATA --split none", "predict OUT/none.keras DATA --out OUT/p", "export OUT/none.keras --out OUT/m.keras",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in NAMES if not set(name) & {"\0", "\r"}])
def test_no_command_prints_control_characters_of_paths_columns_and_classes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders, files, columns, classes and splits have the name; a shard is damaged, so that commands speak of it."""
    folder = tmp_path / name
    places = {
        "SOURCE": f"{folder}.parquet",
        "OTHER": f"{folder}.2.parquet",
        "DATA": f"{folder}/data",
        "OUT": f"{folder}",
    }
    table = pa.table({"x": range(60), f"c{name}": [f"{name}{row % 3}" for row in range(60)]})
    pq.write_table(table, places["SOURCE"])
    pq.write_table(table.rename_columns(["x", f"{name}d"]), places["OTHER"])
    options = BuildOptions(source=places["SOURCE"], destination=places["DATA"], label=f"c{name}", workers=1, shards=2)
    build(replace(options, splits={"train": Fraction(1)}))
    for _ in Loader(places["DATA"], batch_size=20, cache=f"{folder}/cache").numpy_epoch(0):
        pass
    shard = next(iter(sorted(Path(places["DATA"]).glob("train-*"))))
    shard.write_bytes(shard.read_bytes()[:-20])
    data = {"url": places["DATA"], "batch_size": 20, "eval_split": None, "exclude": [f"{name}e"]}
    (folder / "run.yaml").write_text(yaml.safe_dump({"data": data, "model": {"hidden": [4]}}))
    places |= {"CACHE": f"{folder}/cache", "RUN": f"{folder}/run.yaml"}
    for program, lines in ((main, SHARD_DATASET), (ringfeed, RINGFEED)):
        for words in map(str.split, lines):
            given = [re.sub("|".join(places), lambda place: places[place[0]], word) for word in words]
            with contextlib.suppress(SystemExit):
                program(given)
            printed = capsys.readouterr()
            assert printed.out or printed.err or words[0] == "clean", words
            for text in (printed.out, printed.err):
                assert not CONTROL.search(text), (words, text)
            assert len(printed.err.splitlines()) <= 5, (words, printed.err)
