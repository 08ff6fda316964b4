"""What a refactoring must not change, as digests: datasets, epochs, plans, states, checkpoints, rates, and flags.

Only public names and the two commands are used, so modules can move without a change here. The expected values are in
`golden/digests.json` and `golden/flags.txt`; ``python -m tests.test_golden`` writes both anew.

Arrow encodes the same rows to other bytes in another version. So each dataset has two digests: `content` decodes what
Arrow wrote (Parquet shards, indexes, the shard table) and leaves out the sizes, checksums and fingerprints of such
files; `bytes` is of every file as it is, and is checked only under the versions that the digests were made with.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime, timezone
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from ringfeed.pipeline import Loader, Mixture, Ragged
from ringfeed.sharding import AppendOptions, BuildOptions, append, build, open_dataset, read_records, verify

GOLDEN = Path(__file__).parent / "golden"
SEED = 5
SPLITS = {"train": Fraction(4, 5), "test": Fraction(1, 5)}
BATCH = 12
MODIFIED = 1_790_000_000  # of every source, because the time of change is in a source's fingerprint
GUARDED = ("ringfeed", "pyarrow")

Digests = dict[str, dict[str, str]]


# --- sources: integer arithmetic and SHA-256 alone, so that they are the same everywhere -------------------------


def _number(*key: object, below: int) -> int:
    """An integer in ``[0, below)`` that follows from the key alone."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little") % below


def _kind(row: int) -> str:
    """One of three classes, 12 : 6 : 2."""
    return "aaaaaaaaaaaabbbbbbcc"[_number("kind", row, below=20)]


def _write(path: str, data: bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(data)
    os.utime(path, (MODIFIED, MODIFIED))


def _csv(start: int, stop: int, extra: str = "") -> bytes:
    """Flights: missing hours, a repeated row every 16, and perhaps records of another class."""
    lines = ["id,hours,carrier,fold,kind"]
    for row in range(start, stop):
        same = row - row % 16 if row % 16 == 1 else row
        hours = "" if same % 9 == 4 else str(_number("hours", same, below=160) / 8)
        kind = extra if extra and row % 10 == 0 else _kind(same)
        carrier, fold = ("AA", "BB", "é7")[same % 3], "train" if row % 4 else "test"
        lines.append(f"{same},{hours},{carrier},{fold},{kind}")
    return "\n".join([*lines, ""]).encode()


def _jsonl(records: int) -> bytes:
    """Texts of very different lengths, with tags of any number and a patient for each few."""
    lines = []
    for row in range(records):
        record: dict[str, Any] = {"id": row, "patient": f"p{_number('patient', row, below=40)}", "kind": _kind(row)}
        record["text"] = "naïve … " * _number("text", row, below=30)
        record["tags"] = [f"t{_number('tag', row, i, below=9)}" for i in range(row % 4)]
        record["score"] = None if row % 7 == 3 else _number("score", row, below=1000) / 16
        lines.append(json.dumps(record, ensure_ascii=False))
    return "\n".join([*lines, ""]).encode()


def _table(records: int) -> bytes:
    """Nulls, strings, bytes, lists and tensors of fixed size."""
    rows = range(records)
    columns: dict[str, pa.Array] = {
        "id": pa.array(list(rows), pa.int64()),
        "kind": pa.array(["abc".index(_kind(row)) for row in rows], pa.int32()),
        "wide": pa.array([None if row % 11 == 2 else row / 8 for row in rows], pa.float64()),
        "name": pa.array([None if row % 5 == 1 else f"näme {row}" for row in rows], pa.string()),
        "raw": pa.array([bytes([row % 256]) * (row % 6) for row in rows], pa.binary()),
        "tags": pa.array([list(range(row % 5)) for row in rows], pa.list_(pa.int16())),
        "vector": pa.array([[row, row / 2, -row] for row in rows], pa.list_(pa.float32(), 3)),
        "pixels": pa.array([[row % 256, 255 - row % 256] * 3 for row in rows], pa.list_(pa.uint8(), 6)),
        "on": pa.array([row % 3 == 0 for row in rows], pa.bool_()),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=50)
    return sink.getvalue()


def _png(number: int, width: int = 6, height: int = 5) -> bytes:
    """A picture in RGB, its pixels stored and not compressed: no version of zlib has a say in the bytes."""
    size = 3 * width
    pixels = b"".join(
        b"\0" + bytes(_number("pixel", number, y, x, below=256) for x in range(size)) for y in range(height)
    )
    stored = b"\x78\x01\x01" + struct.pack("<HH", len(pixels), 0xFFFF ^ len(pixels)) + pixels
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0),
        b"IDAT": stored + struct.pack(">I", zlib.adler32(pixels)),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


_MODULE = b"""\
import pyarrow.compute as pc


def add_minutes(batch):
    return batch.append_column("minutes", pc.multiply(batch["hours"], 60.0))
"""


def write_sources() -> None:
    """All sources, below the current folder."""
    _write("flights.csv", _csv(0, 400))
    _write("more.csv", _csv(400, 500, extra="d"))
    _write("texts.jsonl", _jsonl(240))
    _write("table.parquet", _table(200))
    _write("golden_minutes.py", _MODULE)
    for number in range(36):
        _write(f"images/{('cat', 'dog', 'eel')[number % 3]}/{number:02}.png", _png(number))


# --- datasets ---------------------------------------------------------------------------------------------------

COMMON: dict[str, Any] = {"label": "kind", "shards": 4, "splits": SPLITS}
BUILDS: dict[str, dict[str, Any]] = {
    "csv-tfrecord": {"source": "flights.csv", **COMMON, "shards": 8, "dali_index": True},
    "csv-parquet": {"source": "flights.csv", **COMMON, "shards": 8, "shard_format": "parquet"},
    "csv-split-column": {"source": "flights.csv", "label": "kind", "shards": 3, "split_column": "fold"},
    "csv-one-class": {"source": "flights.csv", "shard_bytes": 4096},
    "jsonl-groups": {"source": "texts.jsonl", **COMMON, "group_by": "patient"},
    "jsonl-bytes": {"source": "texts.jsonl", **COMMON, "balance": "bytes"},
    "jsonl-bytes-parquet": {"source": "texts.jsonl", **COMMON, "balance": "bytes", "shard_format": "parquet"},
    "table-tfrecord": {"source": "table.parquet", **COMMON},
    "table-parquet": {"source": "table.parquet", **COMMON, "shard_format": "parquet", "compression": "none"},
    "images-tfrecord": {"source": "images", "shards": 3},
    "images-parquet": {"source": "images", "shards": 3, "shard_format": "parquet"},
    "appended-tfrecord": {"source": "flights.csv", **COMMON},
    "appended-parquet": {"source": "flights.csv", **COMMON, "shard_format": "parquet"},
    "appended-groups": {"source": "flights.csv", **COMMON, "group_by": "carrier"},
}
COMMANDS = {
    "prepared": [
        "flights.csv", "--fill-nulls", "hours=0.5", "--map", "golden_minutes:add_minutes", "--filter",
        "minutes > 30 and carrier in ('AA', 'é7')", "--cast", "hours=float32", "--rename", "kind=class", "--dedup",
        "id,hours", "--drop-columns", "fold", "--label", "class", "--shards", "3",
    ],
    "prepared-parquet": [
        "texts.jsonl", "--select", "id,score,kind", "--drop-nulls", "score", "--filter", "id / 2 < 100", "--label",
        "kind", "--shards", "2", "--format", "parquet", "--split", "train=0.5,test=0.5", "--dedup",
    ],
}  # fmt: skip
RESHARDED = ["csv-tfrecord#train", "resharded", "--format", "parquet", "--shards", "5"]
DATASETS = [*BUILDS, *COMMANDS, "resharded"]


def _run(*command: str) -> str:
    """Standard output of a process in the current folder."""
    done = subprocess.run(command, env=_wide(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _wide() -> dict[str, str]:
    """An environment that wraps no line of a help text."""
    return {**os.environ, "COLUMNS": "1000"}


def shard_dataset(*arguments: str) -> None:
    """Run the installed command."""
    _run(str(Path(sys.executable).with_name("shard-dataset")), *arguments)


def make_datasets() -> None:
    """All datasets, below the current folder. Their URLs are relative, because `dataset.json` holds the source's."""
    with ThreadPoolExecutor(2) as pool:
        tail = ["--seed", str(SEED), "--workers", "1"]
        commands = [
            pool.submit(shard_dataset, "build", source, name, *rest, *tail)
            for name, (source, *rest) in COMMANDS.items()
        ]
        for name, options in BUILDS.items():
            build(BuildOptions(destination=name, seed=SEED, **options))
            if name.startswith("appended"):
                append(AppendOptions(source="more.csv", destination=name, shards=2))
        for command in commands:
            command.result()
    shard_dataset("reshard", *RESHARDED, *tail)


def _digest(parts: Iterator[bytes]) -> str:
    """XXH3-128 of the parts, each with its length."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(struct.pack("<q", len(part)))
        digest.update(part)
    return digest.hexdigest()


def _plain(value: Any, leave_out: frozenset[str] = frozenset()) -> Any:
    """A value as JSON can hold it, without some keys of mappings: floats stay exact, bytes become hexadecimal."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, leave_out) for key, entry in value.items() if key not in leave_out}
    if isinstance(value, list | tuple):
        return [_plain(entry, leave_out) for entry in value]
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist(), leave_out)
    return value.hex() if isinstance(value, bytes) else value


def _json(value: Any, leave_out: frozenset[str] = frozenset()) -> bytes:
    return json.dumps(_plain(value, leave_out)).encode()


def _files(folder: str) -> list[Path]:
    return sorted((path for path in Path(folder).rglob("*") if path.is_file()), key=lambda path: path.as_posix())


def _content(path: Path, *, source: str, shard_format: str) -> bytes:
    """What a file of a dataset says, whichever version of Arrow wrote it."""
    if path.suffix == ".index":
        with pa.ipc.open_file(path) as reader:  # its metadata has checksums of a Parquet shard's blocks
            return _json(reader.read_all().to_pylist())
    if path.suffix in (".parquet", ".table"):
        of_arrow = {"index_bytes", "index_checksum"} | ({"bytes", "checksum"} if shard_format == "parquet" else set())
        is_table = path.suffix == ".table"
        return _json(pq.ParquetFile(path).read().to_pylist(), frozenset(of_arrow if is_table else ()))
    if path.name == "dataset.json":
        value = json.loads(path.read_bytes())
        assert value.pop("checksum")
        assert value.pop("shards").keys() == {"path", "bytes", "checksum", "rows"}
        of_arrow = {"fingerprint"} if source.endswith(".parquet") else set()
        return _json(value, frozenset({"plan", "writer"} | of_arrow))  # a plan names the writer and the fingerprint
    return path.read_bytes()


def _records(name: str) -> Iterator[bytes]:
    dataset = open_dataset(name)
    for split in dataset.manifest.splits:
        yield from map(_json, read_records(dataset, split, 1000))


def digest_datasets() -> Digests:
    """Both digests of each dataset."""
    found = {}
    for name in DATASETS:
        about = json.loads(Path(name, "_ringfeed/dataset.json").read_bytes())
        kinds = {"source": str(BUILDS.get(name, {}).get("source", "")), "shard_format": about["shard_format"]}
        if name == "resharded":  # its source's fingerprint follows from the checksums of a table
            kinds["source"] = "csv-tfrecord/_ringfeed/shards.table.parquet"
        names = [path.relative_to(name).as_posix().encode() for path in _files(name)]
        contents = [_content(path, **kinds) for path in _files(name)]
        raw = [path.read_bytes() for path in _files(name)]
        found[name] = {
            "content": _digest(part for pair in zip(names, contents, strict=True) for part in pair),
            "bytes": _digest(part for pair in zip(names, raw, strict=True) for part in pair),
            "records": _digest(_records(name)),
        }
    return found


# --- epochs -----------------------------------------------------------------------------------------------------

EPOCHS: dict[str, dict[str, Any]] = {
    "natural": {},
    "uniform": {"balance": "uniform"},
    "power": {"balance": "power:0.5"},
    "shares": {"balance": {"a": 0.25, "b": 0.25, "c": 0.5}},
    "ramp": {"balance": "uniform->natural:4"},
    "where": {"where": "hours > 4 and carrier != 'BB'", "balance": "uniform"},
    "where label": {"where": "kind in ('a', 'c')"},
    "pad": {"remainder": "pad"},
    "wrap": {"remainder": "wrap", "window_shards": 2, "streams": 3},
    "in order": {"shuffle": False},
    "short": {"epoch_length": 60, "streams": 4},
    "oversample": {"epoch_length": "oversample", "balance": "uniform"},
}
OTHER_EPOCHS: dict[str, tuple[str, dict[str, Any]]] = {
    "parquet": ("csv-parquet", {"balance": "uniform"}),
    "parquet where": ("csv-parquet", {"where": "hours > 4 and carrier != 'BB'"}),
    "parquet columns": ("csv-parquet", {"columns": ["id", "carrier"]}),
    "appended": ("appended-tfrecord", {"balance": "uniform"}),
    "texts": ("jsonl-bytes", {"bucket_by": "tags", "bucket_steps": 4}),
    "texts parquet": ("jsonl-bytes-parquet", {"bucket_by": "tags", "remainder": "pad"}),
    "table": ("table-tfrecord", {"fill": {"name": "none"}, "balance": "uniform"}),
    "table parquet": ("table-parquet", {"fill": {"name": "none"}, "window_shards": 2}),
    "images": ("images-tfrecord", {}),
    "images parquet": ("images-parquet", {"balance": "uniform"}),
}
MIXTURES: dict[str, dict[str, dict[str, Any]]] = {
    "mixture": {"a": {"url": "csv-tfrecord", "balance": "uniform"}, "b": {"url": "csv-split-column"}},
    "mixture parquet": {"a": {"url": "csv-parquet"}, "b": {"url": "appended-parquet", "split": "test"}},
}
ORDER = ("id", "class_id", "source_id", "sample_weight", "sample_key")


def loader(name: str, *, rank: int = 0, world_size: int = 1) -> Loader | Mixture:
    """One of those above, by name."""
    common: dict[str, Any] = {"batch_size": BATCH, "seed": SEED, "rank": rank, "world_size": world_size}
    if name in MIXTURES:
        return Mixture(MIXTURES[name], weights={"a": 0.7, "b": 0.3}, sample_keys=True, **common)
    url, options = OTHER_EPOCHS[name] if name in OTHER_EPOCHS else ("csv-tfrecord", EPOCHS[name])
    return Loader(url, sample_keys=True, **common, **options)


LOADERS = [*EPOCHS, *OTHER_EPOCHS, *MIXTURES]


def _parts(name: str, value: Any) -> Iterator[bytes]:
    if isinstance(value, Ragged):
        yield from _parts(f"{name} values", value.values)
        yield from _parts(f"{name} rows", value.row_lengths)
    elif value.dtype == object:
        yield f"{name} {value.shape}".encode()
        yield from value.ravel().tolist()
    else:
        yield f"{name} {value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()


def digest_epochs(name: str) -> dict[str, str]:
    """The order, which is ids and keys, and all values, by epoch, first step and world size."""
    found: dict[str, str] = {}
    for epoch, start_step, world_size in ((0, 0, 1), (0, 0, 3), (2, 2, 1)):
        order, values = [], []
        for rank in range(world_size):
            for batch in loader(name, rank=rank, world_size=world_size).numpy_epoch(epoch, start_step):
                for feature in sorted(batch):
                    parts = list(_parts(feature, batch[feature]))
                    values += parts
                    order += parts if feature in ORDER else []
        assert values
        where = f"epoch {epoch}, from step {start_step}, {world_size} ranks"
        found |= {f"{where}: order": _digest(iter(order)), f"{where}: values": _digest(iter(values))}
    return found


# --- plans and states -------------------------------------------------------------------------------------------

# Sizes of files that Arrow wrote, and the checksum of the table. `bytes_per_rank` also depends on the kernels: without
# them, a shard that a cut divides is read whole.
ARROW_FIELDS = frozenset({"bytes_per_rank", "bytes_read", "bytes_skipped", "dataset"})


def digest_plans(name: str) -> dict[str, str]:
    """The plan of two epochs, a state, and of a loader also the quality of its shuffle and a record."""
    one = loader(name, world_size=3)
    found: dict[str, Any] = {f"plan {epoch}": asdict(one.plan(epoch)) for epoch in (0, 2)}
    state = one.state(epoch=2, step=1)
    assert one.resume(json.loads(json.dumps(state))) == (2, 1)
    if name != "power":  # its shares come from a power of floats, whose last bit may depend on the CPU
        found["state"] = state
    if isinstance(one, Loader):
        found |= {"quality": asdict(one.shuffle_quality(1)), "sample": one.sample(7)}
    content = {key: _digest(iter([_json(value, ARROW_FIELDS)])) for key, value in found.items()}
    return content | {"bytes": _digest(iter([_json(found)]))}


# --- training ---------------------------------------------------------------------------------------------------

RATES: dict[str, dict[str, Any]] = {
    "cosine": {"decay": "cosine", "end_value": 0.01},
    "polynomial": {"decay": "polynomial", "power": 2.0, "init_value": 0.05},
    "step": {"decay": "step", "scales": [(20, 0.1), (30, 0.5), (30, 0.5)]},
    "constant": {"decay": "constant"},
}
RATE_STEPS = (0, 1, 7, 8, 9, 19, 20, 30, 39, 40, 50)


def digest_checkpoints(folder: str) -> dict[str, str]:
    """By step, what a store of two leaves after three checkpoints.

    Of the header as JSON, because safetensors writes its metadata in another order in every process; so the name, which
    holds a checksum, is held against the file and not against an earlier one.
    """
    from ringfeed.training import Checkpoint, CheckpointStore

    store = CheckpointStore(folder, keep=2)
    for step in (5, 10, 200):
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "model/0000/kernel": np.arange(step, step + 6, dtype=np.float32).reshape(2, 3) / 8,
            "optimizer/iteration": np.array(step, np.int64),
            "seed": np.array([SEED, 2**32 - 1], np.uint32),
            "empty": np.zeros((0, 3), np.float16),
            "flag": np.array([True, False]),
            "wide": np.array(0.1),
        }
        state = {"epoch": step // 10, "loss_scale": 32768.0, "history": [{"step": step, "loss": 0.5}, None, "ä"]}
        store.save(Checkpoint(step=step, arrays=arrays, state=state))
    newest = store.newest()
    assert newest is not None
    assert newest.step == 200
    found = {}
    for path in _files(folder):
        done, checksum = path.stem.rsplit("-", 1)
        data = path.read_bytes()
        assert checksum == xxhash.xxh3_128_hexdigest(data)
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.dumps(json.loads(data[8:end]), sort_keys=True).encode()
        found[done] = _digest(iter([header, data[end:]]))
    return found


def learning_rates() -> dict[str, str]:
    """Learning rates at `RATE_STEPS`, as float32 in hexadecimal."""
    from ringfeed.training import WarmUpDecay, scaled_learning_rate

    peak = scaled_learning_rate(0.1, batch_size=1024, base_batch_size=256)
    found = {}
    for name, options in RATES.items():
        rate = WarmUpDecay(peak_value=peak, warmup_steps=8, total_steps=40, **options)
        found[name] = " ".join(np.array(rate(step), ">f4").tobytes().hex() for step in RATE_STEPS)
    return found


# --- the command line -------------------------------------------------------------------------------------------


# A process for each command would import the same modules 24 times, for up to a second each.
_HELPS = """\
import os, sys
from importlib.metadata import entry_points
import ringfeed.tools.shard_dataset.commands, ringfeed.tools.tune.command, ringfeed.training.train

scripts = entry_points(group="console_scripts")
mains = {name: scripts[name].load() for name in ("ringfeed", "shard-dataset")}
for line in sys.stdin:
    child = os.fork()
    if not child:
        sys.argv = [*line.split(), "--help"]
        try:
            status = mains[sys.argv[0]]()
        except SystemExit as end:
            status = end.code
        sys.stdout.flush()
        os._exit(status or 0)  # without taking apart all that was imported
    assert os.waitpid(child, 0)[1] == 0
    print(end="\\f", flush=True)
"""


def command_flags() -> str:
    """One line for each command: its name, and its flags, sorted."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-c", _HELPS], env=_wide(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as helps:
        for program in ("ringfeed", "shard-dataset"):
            overview = _help(helps, program)
            listed = overview.partition("\n  COMMAND\n")[2].partition("\n\n")[0]
            lines.append(f"{program}: {' '.join(_flags(overview))}\n")
            names = re.findall(r"^    ([a-z-]+)", listed, re.MULTILINE)
            lines += [f"{program} {name}: {' '.join(_flags(_help(helps, f'{program} {name}')))}\n" for name in names]
    return "".join(lines)


def _help(helps: subprocess.Popen[str], command: str) -> str:
    """What a command prints with ``--help``."""
    assert helps.stdin is not None
    assert helps.stdout is not None
    helps.stdin.write(f"{command}\n")
    helps.stdin.flush()
    text = ""
    while not text.endswith("\f"):
        letter = helps.stdout.read(1)
        assert letter, f"{command} --help failed"
        text += letter
    return text[:-1]


def _flags(text: str) -> list[str]:
    """The flags that a help text declares; those in its examples begin no line."""
    declared = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    return sorted({flag for line in declared for flag in re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", line)})


# --- the tests --------------------------------------------------------------------------------------------------


def _expected() -> dict[str, Any]:
    value: dict[str, Any] = json.loads((GOLDEN / "digests.json").read_text())
    return value


def _same_versions() -> bool:
    return all(_expected()["provenance"][package] == version(package) for package in GUARDED)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All datasets, in the current folder for as long as the module runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("golden"))
        write_sources()
        make_datasets()
        yield


@pytest.fixture(scope="module")
def found(datasets: None) -> Digests:
    return digest_datasets()


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_hold_the_same(found: Digests, name: str) -> None:
    expected = _expected()["datasets"][name]
    assert (found[name]["content"], found[name]["records"]) == (expected["content"], expected["records"])


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_are_the_same_bytes(found: Digests, name: str) -> None:
    if not _same_versions():
        pytest.skip("another version of Arrow may encode the same rows to other bytes")
    assert found[name]["bytes"] == _expected()["datasets"][name]["bytes"]


@pytest.mark.usefixtures("datasets")
def test_datasets_are_intact() -> None:
    """So that no digest is of a dataset that was damaged from the start."""
    assert verify("appended-groups", deep=True) == []


@pytest.mark.usefixtures("datasets")
@pytest.mark.parametrize("name", LOADERS)
def test_epochs_are_the_same(name: str) -> None:
    assert digest_epochs(name) == _expected()["epochs"][name]


@pytest.mark.usefixtures("datasets")
@pytest.mark.parametrize("name", LOADERS)
def test_plans_and_states_are_the_same(name: str) -> None:
    found, expected = digest_plans(name), _expected()["plans"][name]
    if not _same_versions() or name == "power":
        del found["bytes"], expected["bytes"]
    assert found == expected


def test_checkpoints_are_the_same(tmp_path: Path) -> None:
    assert digest_checkpoints(str(tmp_path)) == _expected()["checkpoints"]


def test_learning_rates_are_the_same() -> None:
    assert learning_rates() == _expected()["rates"]


def test_commands_have_the_same_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # away from the repository, so that the installed package is imported
    assert command_flags() == (GOLDEN / "flags.txt").read_text()


def main(folder: str) -> None:
    """Write the golden files anew."""
    os.chdir(folder)
    write_sources()
    make_datasets()
    value = {
        "provenance": {
            "command": "python -m tests.test_golden",
            "date": datetime.now(timezone.utc).date().isoformat(),
            **{package: version(package) for package in (*GUARDED, "numpy", "safetensors")},
        },
        "datasets": digest_datasets(),
        "epochs": {name: digest_epochs(name) for name in LOADERS},
        "plans": {name: digest_plans(name) for name in LOADERS},
        "checkpoints": digest_checkpoints("checkpoints"),
        "rates": learning_rates(),
    }
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "digests.json").write_text(json.dumps(value, indent=1) + "\n")
    (GOLDEN / "flags.txt").write_text(command_flags())


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        main(scratch)
