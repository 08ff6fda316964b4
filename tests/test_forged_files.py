"""Commands on forged and damaged files of each kind, and on what is no file: one line, soon, within bounded memory.

A file that a command can still use may do so. Figures of the campaign: docs/reliability.md.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.forging.forgeries import FORGERS, SPECIAL, archive_of, hashed_name, members, plant, with_dataset
from tests.helpers.forging.process import CommandProcess, Outcome

CAMPAIGN, SHORT = 100, 3  # cases of each kind
MOST_MIB = 1024


@dataclass(frozen=True)
class Kind:
    """A kind of file: where an intact one is, what reads it, and where the command finds the forged one.

    Attributes:
        original: the intact file.
        command: words, in which CASE is the folder of the case.
        place: path of the forged file in that folder.
        beside: folder that is copied into the folder of the case first.
    """

    original: str
    command: str
    place: str
    beside: str = ""


KINDS = {
    "model": Kind("m.keras", "ringfeed export CASE/m.keras --out CASE/out.keras -q", "m.keras"),
    "weights": Kind("w.weights.h5", "ringfeed train --config fine.json --set model.weights=CASE/w.weights.h5 --set "
                    "max_steps=1 -q", "w.weights.h5"),
    "records": Kind("rec/rank-00000.from-00000000.arrow", "ringfeed profile CASE",
                    "rank-00000.from-00000000.arrow"),
    "costs": Kind("costs.json", "ringfeed simulate d --costs CASE/c.json --ranks 1,4 --batch-size 64 --json", "c.json"),
    "arrow": Kind("x.arrow", "shard-dataset build CASE/x.arrow CASE/out --workers 1 --label label -q", "x.arrow"),
    "manifest": Kind("d/_ringfeed/dataset.json", "shard-dataset inspect CASE/d", "d/_ringfeed/dataset.json", "d"),
    "shard table": Kind("TABLE", "shard-dataset inspect CASE/d", "TABLE", "d"),
    "checkpoint": Kind("CHECKPOINT", "ringfeed export CASE --out CASE/out.keras -q", "CHECKPOINT"),
    "configuration": Kind("fine.json", "ringfeed train --config CASE/run.yaml --dry-run", "run.yaml"),
}  # fmt: skip

RUN = {
    "data": {"url": "d", "batch_size": 64, "exclude": ["id"], "categorical": ["hour"]},
    "model": {"name": "tabular", "hidden": [8]},
    "optimizer": {"name": "sgd", "learning_rate": 0.1},
}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandProcess]:
    process = CommandProcess(tmp_path_factory.mktemp("forged"))
    yield process
    process.close()


@pytest.fixture(scope="module")
def made(commands: CommandProcess) -> Path:
    """The folder of the commands, with an intact file of each kind."""
    folder = commands.folder
    rows = 1000
    columns = {"id": range(rows), "hour": [row % 24 for row in range(rows)], "x": [row / rows for row in range(rows)]}
    table = pa.table({**columns, "label": ["a", "b"] * (rows // 2)})
    pq.write_table(table, folder / "x.parquet")
    with (
        pa.OSFile(str(folder / "x.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer,
    ):
        writer.write_table(table, max_chunksize=300)
    output = {"model": "m.keras", "records": "rec"}
    (folder / "made.json").write_text(json.dumps({**RUN, "output": output, "checkpoint": {"url": "ck"}}))
    (folder / "fine.json").write_text(json.dumps({**RUN, "data": {**RUN["data"], "url": str(folder / "d")}}))
    for words in (
        "shard-dataset build x.parquet d --label label --split train=0.8,test=0.2 --shards 2 --workers 1 -q",
        "ringfeed train --config made.json -q",
        "ringfeed simulate d --seconds 0.5 --save-costs costs.json --batch-size 64 -q",
    ):
        outcome = commands.run(words.split())
        assert outcome.status == 0, outcome.lines
    (folder / "w.weights.h5").write_bytes(members((folder / "m.keras").read_bytes())["model.weights.h5"])
    return folder


def case_of(made: Path, kind: Kind, write: Callable[[Path], None]) -> list[str]:
    """Make the folder of a case, in which `write` puts the file; return the command."""
    folder = made / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    if kind.beside:
        shutil.copytree(made / kind.beside, folder / kind.beside)
    path = folder / placed(made, kind)
    path.unlink(missing_ok=True)
    write(path)
    return kind.command.replace("CASE", "case").split()


def placed(made: Path, kind: Kind) -> str:
    """The path of a kind's file in a case: some names are known only now."""
    if kind.place == "CHECKPOINT":
        return next((made / "ck").glob("step-*")).name
    if kind.place == "TABLE":
        return str(next((made / "d").rglob("shards*")).relative_to(made))
    return kind.place


def original(made: Path, kind: Kind) -> bytes:
    """The intact file of a kind."""
    names = {"CHECKPOINT": Path("ck", placed(made, KINDS["checkpoint"])), "TABLE": placed(made, KINDS["shard table"])}
    return (made / names.get(kind.original, kind.original)).read_bytes()


def problem(outcome: Outcome, *, refused: bool = False) -> str:
    """What is wrong with an outcome; empty if nothing is."""
    if outcome.status not in (0, 1) or (refused and outcome.status == 0):
        return f"ended with {outcome.status}"
    if outcome.status == 1 and len(outcome.lines) != 1:
        return f"{len(outcome.lines)} lines: {outcome.lines[:3]}"
    if any(re.search(r"[\x00-\x08\x0b-\x1f\x7f]", line) for line in outcome.lines):
        return f"control characters: {outcome.lines}"
    return f"took {outcome.mib:.0f} MiB" if outcome.mib > MOST_MIB else ""


def tried(made: Path, commands: CommandProcess, name: str, seeds: range) -> list[str]:
    """Run a kind's command on forgeries; return what is wrong, and print figures."""
    kind, wrong, outcomes = KINDS[name], [], []
    data = original(made, kind)
    for seed in seeds:
        forged = FORGERS[name](Random(f"{name} {seed}"), data)

        def write(path: Path, forged: bytes = forged) -> None:
            (path.with_name(hashed_name(path.name, forged)) if name == "checkpoint" else path).write_bytes(forged)

        outcome = commands.run(case_of(made, kind, write))
        outcomes.append(outcome)
        if text := problem(outcome):
            wrong.append(f"{name} {seed}: {text}")
            print(wrong[-1])
    refused = sum(outcome.status == 1 for outcome in outcomes)
    print(
        f"{name}: {len(outcomes)} cases, {refused} refused, {len(wrong)} wrong; at most "
        f"{max(outcome.seconds for outcome in outcomes):.1f} s, {max(outcome.mib for outcome in outcomes):.0f} MiB"
    )
    return wrong


@pytest.mark.parametrize("name", KINDS)
def test_intact_files_are_taken(made: Path, commands: CommandProcess, name: str) -> None:
    data = original(made, KINDS[name])
    outcome = commands.run(case_of(made, KINDS[name], lambda path: path.write_bytes(data) and None))
    assert (outcome.status, outcome.lines) == (0, [])


@pytest.mark.parametrize("name", KINDS)
def test_forged_files_are_refused_in_one_line(made: Path, commands: CommandProcess, name: str) -> None:
    assert tried(made, commands, name, range(SHORT)) == []


@pytest.mark.campaign
@pytest.mark.parametrize("name", KINDS)
def test_campaign_of_forged_files(made: Path, commands: CommandProcess, name: str) -> None:
    assert tried(made, commands, name, range(CAMPAIGN)) == []


def refused(made: Path, commands: CommandProcess, name: str, cases: dict[str, bytes]) -> dict[str, str]:
    """Run a kind's command on named forgeries, none of which it may take; return what is wrong."""
    wrong = {}
    for case, data in cases.items():
        outcome = commands.run(case_of(made, KINDS[name], lambda path, data=data: path.write_bytes(data) and None))
        if text := problem(outcome, refused=True):
            wrong[case] = text
    return wrong


def test_archives_that_lie_are_refused(made: Path, commands: CommandProcess) -> None:
    content = members((made / "m.keras").read_bytes())
    content = {"ringfeed.json": content.pop("ringfeed.json"), **content}  # the first, for the damage below
    run = json.loads(content["ringfeed.json"])

    def with_run(text: str) -> bytes:
        return archive_of({**content, "ringfeed.json": text.encode()})

    def with_model(**options: object) -> bytes:
        return with_run(
            json.dumps({**run, "config": {**run["config"], "model": {**run["config"]["model"], **options}}})
        )

    plain, packed = archive_of(content), archive_of(content, zipfile.ZIP_DEFLATED)
    lzma = archive_of(content, zipfile.ZIP_LZMA)

    def with_central(place: int, value: bytes) -> bytes:
        return re.sub(rb"(PK\x01\x02.{%d}).." % (place - 4), lambda found: found[1] + value, plain, flags=re.DOTALL)

    assert refused(made, commands, "model", {
        **{f"run is {text[:9]}": with_run(text) for text in ("[]", "{}", "null", "1", '"x"', "[" * 200_000, "\xff")},
        "format missing": with_run(json.dumps({key: value for key, value in run.items() if key != "format"})),
        "step is text": with_run(json.dumps({**run, "step": "x"})),
        "step below 0": with_run(json.dumps({**run, "step": -1})),
        "wide": with_model(hidden=[30000, 30000]), "deep": with_model(hidden=[8] * 100_000),
        "long": with_model(name="text", layers=2**31 - 1), "hashed": with_model(name="wide_deep", hash_buckets=2**30),
        "application": with_model(name="keras.applications:VGG16", options={"weights": "imagenet"}),
        "method 99": with_central(10, b"\x63\0"), "encrypted": with_central(8, b"\1\0"),
        "broken deflate": packed[:60] + b"\xff" * 40 + packed[100:],
        "broken lzma": lzma[:60] + b"\xff" * 40 + lzma[100:],
        "bomb": archive_of({**content, "model.weights.h5": bytes(64 << 20)}, zipfile.ZIP_DEFLATED),
        "bomb of text": archive_of({**content, "ringfeed.json": b" " * (64 << 20)}, zipfile.ZIP_DEFLATED),
        "no weights": archive_of({name: data for name, data in content.items() if "weights" not in name}),
        "no manifest": archive_of({name: data for name, data in content.items() if "dataset" not in name}),
        "many members": archive_of({**content, **{f"{number:080}": b"" for number in range(9000)}}),
    }) == {}  # fmt: skip
    hopeless = with_model(freeze=["(a|a)*$(.*.*.*.*.*)*x", "(([a-z/_0-9])+)+!"])
    outcome = commands.run(case_of(made, KINDS["model"], lambda path: path.write_bytes(hopeless) and None))
    assert (outcome.status, outcome.lines) == (0, [])  # only training matches them


def test_costs_that_end_no_simulation_are_refused(made: Path, commands: CommandProcess) -> None:
    costs = json.loads((made / "costs.json").read_text())
    odd = ("x", float("nan"), float("inf"), -1, None, 1e308, [], {}, True)
    cases = {
        f"{name} is {value!r}": json.dumps({**costs, name: value}).encode()
        for name in ("file_seconds", "start_seconds", "gather_seconds", "memory_per_byte", "plan_seconds")
        for value in odd
    }
    for group in ("store", "ring"):
        for name, before in costs[group].items():
            if isinstance(before, int | float) and not isinstance(before, bool):
                for value in odd if "bytes_per_second" not in name else odd[:2] + odd[3:4] + odd[6:]:
                    changed = {**costs, group: {**costs[group], name: value}}
                    cases[f"{group}.{name} is {value!r}"] = json.dumps(changed).encode()
    assert refused(made, commands, "costs", cases) == {}


def test_records_that_no_rank_writes_are_refused(made: Path, commands: CommandProcess) -> None:
    table = pa.ipc.open_stream(original(made, KINDS["records"])).read_all()
    metadata = table.schema.metadata

    def written(table: pa.Table, **changes: str) -> bytes:
        schema = table.schema.with_metadata({**metadata, **{key.encode(): value for key, value in changes.items()}})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(table.cast(schema))
        return sink.getvalue().to_pybytes()

    rows, bomb = 1 << 23, pa.BufferOutputStream()
    with pa.ipc.new_stream(bomb, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        arrays = [pa.array(np.zeros(rows), kind, safe=False) for kind in table.schema.types[1:]]
        writer.write_batch(pa.record_batch([pa.array(["step"] * rows), *arrays], schema=table.schema))
    assert refused(made, commands, "records", {
        **{f"{key}={value[:9]!r}": written(table, **{key: value})
           for key, value in (("rank", "x"), ("batch_size", ""), ("total_steps", "[]"), ("ranks", "9" * 21),
                              ("rank", "-1"), ("ranks", "0"), ("batch_size", "0"), ("ranks", "9" * 5000),
                              ("format", "x"), ("first_step", "7"))},
        "other columns": written(pa.table({"a": ["x"]})),
        "a bomb": bomb.getvalue().to_pybytes(),
    }) == {}  # fmt: skip


def test_buffers_that_no_machine_holds_are_refused(made: Path, commands: CommandProcess) -> None:
    data = original(made, KINDS["arrow"])
    length = (2400).to_bytes(8, "little")  # of a column of 300 numbers, before its compressed bytes
    assert data.count(length) > 0
    assert refused(made, commands, "arrow", {
        str(claim): data.replace(length, claim.to_bytes(8, "little"))
        for claim in (68679894317400064, 2**62, 2**40, 2**33)
    }) == {}  # fmt: skip


def test_checkpoints_contact_no_host_that_the_user_did_not_name(made: Path, commands: CommandProcess) -> None:
    contacts: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            contacts.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815  # the names that the server calls

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        place = f"http://127.0.0.1:{server.server_address[1]}/d"
        forged = with_dataset(original(made, KINDS["checkpoint"]), place)
        command = case_of(
            made,
            KINDS["checkpoint"],
            lambda path: path.with_name(hashed_name(path.name, forged)).write_bytes(forged) and None,
        )
        outcome = commands.run(command)
        assert problem(outcome, refused=True) == ""
        assert "which was not contacted" in outcome.lines[0]
        assert contacts == []
        assert commands.run([*command, "--trust-code"]).status == 1
        assert contacts != []
        server.shutdown()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_file_is_refused_in_one_line(made: Path, commands: CommandProcess, name: str) -> None:
    wrong = {}
    for special in SPECIAL:
        outcome = commands.run(case_of(made, KINDS[name], lambda path, special=special: plant(path, special)))
        # An empty configuration has defaults, and a run's records may be empty at its start.
        if text := problem(outcome, refused=special != "empty"):
            wrong[special] = text
    assert wrong == {}
