"""The lines of docs/interoperability.md open a dataset with the program that they name, and read what was built."""

import gc
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pytest

from ringfeed.sharding import AppendOptions, append, open_dataset, read_records
from tests.servers.petastorm import run_with_petastorm

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "interoperability.md").read_text()
SNIPPETS = dict(re.findall(r"^### ([^\n]+)\n+```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^shard-dataset (.*)", PAGE, re.MULTILINE)
ROWS = 64

Rows = dict[int, tuple[float, str]]  # hours and status by id


def day_of(number: int) -> date:
    """The day of a record."""
    return date(2020, 10, 1) + timedelta(days=number)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("interoperability")
    rows = {
        "id": range(ROWS),
        "hours": [i / 7 for i in range(ROWS)],
        "status": ["late" if i % 4 == 0 else "on time" for i in range(ROWS)],
        "day": list(map(day_of, range(ROWS))),
    }
    pyarrow.csv.write_csv(pa.table(rows), root / "flights.csv")
    for command in COMMANDS:
        program = [sys.executable, "-m", "ringfeed.tools.shard_dataset", *shlex.split(command)]
        subprocess.run(program, cwd=root, check=True, capture_output=True)
    return root


@pytest.fixture(scope="module")
def expected(folder: Path) -> Rows:
    records = list(read_records(open_dataset(str(folder / "shards")), "train", ROWS))
    assert len(records) == ROWS * 3 // 4
    return {r["id"]: (r["id"] / 7, "late" if r["id"] % 4 == 0 else "on time") for r in records}


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder, as the working directory; what programs leave open or cache is cleared up."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with suppress(ImportError):
        monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", folder / "cache")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield folder
        gc.collect()


def in_tfds(names: dict[str, Any]) -> Rows:
    records = names["tfds"].as_numpy(names["train"])
    return {int(r["id"]): (float(r["hours"]), r["status"].decode()) for r in records}


def in_exported_tfds(names: dict[str, Any]) -> Rows:
    label = names["tfds"].builder_from_directory("tfds").info.features["status"]
    records = names["tfds"].as_numpy(names["train"])
    return {int(r["id"]): (float(r["hours"]), label.int2str(r["status"])) for r in records}


def in_table(table: pa.Table) -> Rows:
    assert all(r["day"] == day_of(r["id"]) for r in table.to_pylist())
    return {r["id"]: (r["hours"], r["status"]) for r in table.to_pylist()}


def in_huggingface(names: dict[str, Any]) -> Rows:
    label = names["train"].features["status"]
    text = label.int2str if isinstance(label, names["datasets"].ClassLabel) else str
    assert all(r["day"] == day_of(r["id"]) for r in names["train"])
    return {r["id"]: (r["hours"], text(r["status"])) for r in names["train"]}


def in_webdataset(names: dict[str, Any]) -> Rows:
    samples = list(names["train"])
    assert all(sample["cls"] == ("late", "on time").index(sample["json"]["status"]) for sample in samples)
    assert all(sample["json"]["day"] == str(day_of(sample["json"]["id"])) for sample in samples)
    return {s["json"]["id"]: (s["json"]["hours"], s["json"]["status"]) for s in samples}


READERS: dict[str, Callable[[dict[str, Any]], Rows]] = {
    "TensorFlow Datasets": in_tfds,
    "PyArrow": lambda names: in_table(names["train"].to_table()),
    "pandas": lambda names: in_table(pa.Table.from_pandas(names["train"], preserve_index=False)),
    "DuckDB": lambda names: in_table(names["train"].to_arrow_table()),
    "Polars": lambda names: in_table(names["train"].collect().to_arrow()),
    "Hugging Face datasets": in_huggingface,
    "WebDataset": in_webdataset,
    "Hugging Face export": in_huggingface,
    "TensorFlow Datasets export": in_exported_tfds,
}


def skip_unless_installed(program: str) -> None:
    for module in re.findall(r"^(?:from|import) ([\w.]+)", SNIPPETS[program], re.MULTILINE):
        pytest.importorskip(module)


def test_every_piece_of_python_on_the_page_is_run() -> None:
    assert set(SNIPPETS) == {*READERS, "DALI", "tfrecord", "Petastorm"}
    assert PAGE.count("```python") == len(SNIPPETS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets.*")
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("program", READERS)
def test_it_reads_what_was_built(program: str, expected: Rows) -> None:
    skip_unless_installed(program)
    names: dict[str, Any] = {}
    exec(SNIPPETS[program], names)
    assert READERS[program](names) == expected


OPENED: dict[str, Callable[[str], Any]] = {  # how each program opens a folder; returns the ids of all records
    "pyarrow.dataset": lambda url: importlib.import_module("pyarrow.dataset").dataset(url).to_table()["id"].to_pylist(),
    "pandas": lambda url: importlib.import_module("pandas").read_parquet(url)["id"].tolist(),
    "dask.dataframe": lambda url: importlib.import_module("dask.dataframe").read_parquet(url)["id"].compute().tolist(),
    "duckdb": lambda url: [row[0] for row in importlib.import_module("duckdb").sql(f"SELECT id FROM '{url}/*.parquet'")
                           .fetchall()],
    "polars": lambda url: importlib.import_module("polars").read_parquet(f"{url}/*.parquet")["id"].to_list(),
    "datasets.packaged_modules.parquet": lambda url: importlib.import_module("datasets").load_dataset(
        "parquet", data_files=f"{url}/*.parquet", split="train")["id"],
    "datasets": lambda url: [
        id_ for part in importlib.import_module("datasets").load_dataset(url).values() for id_ in part["id"]
    ],
}  # fmt: skip


STOPPED: dict[str, Callable[[], Any]] = {  # what fails on the bare folder, by the page; the error is on it, too
    "polars": lambda: importlib.import_module("polars").read_parquet("tables"),
    "polars.io": lambda: importlib.import_module("polars").scan_parquet("tables", hidden_file_prefix="_").collect(),
    "datasets": lambda: importlib.import_module("datasets").load_dataset("parquet", data_dir="tables"),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("program", STOPPED)
def test_the_page_quotes_the_errors_at_the_bare_folder(program: str) -> None:
    pytest.importorskip(program)
    quoted = re.findall(r"\(`([^`]+)`\)", PAGE[PAGE.index("Two fail on the bare folder") :].replace("\n", " "))[:2]
    with pytest.raises(Exception, match="|".join(quoted)):
        STOPPED[program]()


@pytest.fixture(scope="module")
def appended(folder: Path) -> Path:
    """Datasets of both formats with a second generation, whose ids follow those of the first."""
    rows = pyarrow.csv.read_csv(folder / "flights.csv")
    more = pa.compute.add(rows["id"], ROWS)
    pyarrow.csv.write_csv(rows.set_column(0, "id", more), folder / "more.csv")
    for name in ("shards", "tables"):
        shutil.copytree(folder / name, folder / "appended" / name)
        append(AppendOptions(source=str(folder / "more.csv"), destination=str(folder / "appended" / name)))
    return folder / "appended"


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, to Dask
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("program", OPENED)
def test_it_opens_a_folder_with_all_that_was_appended(program: str, folder: Path, appended: Path) -> None:
    pytest.importorskip(program)
    assert sorted(OPENED[program](str(folder / "tables"))) == list(range(ROWS))
    assert sorted(OPENED[program](str(appended / "tables"))) == list(range(2 * ROWS))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets.*")
@pytest.mark.usefixtures("here")
def test_tfds_opens_a_folder_with_all_that_was_appended(appended: Path) -> None:
    builder = pytest.importorskip("tensorflow_datasets").builder_from_directory(appended / "shards")
    found = builder.as_dataset(split="train_g00000+train_g00001+test_g00000+test_g00001").as_numpy_iterator()
    assert sorted(int(record["id"]) for record in found) == list(range(2 * ROWS))


@pytest.mark.usefixtures("here")
def test_huggingface_takes_no_file_of_tfrecord_shards_for_data(appended: Path) -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(FileNotFoundError, match=r"No .*data files"):
        datasets.load_dataset(str(appended / "shards"))


@pytest.mark.usefixtures("here")
def test_dali_reads_what_was_built(expected: Rows) -> None:
    skip_unless_installed("DALI")
    names: dict[str, Any] = {}
    exec(SNIPPETS["DALI"], names)
    pipeline = names["train"]()
    pipeline.build()
    ids = {int(i) for _ in range(len(expected) // 8) for i in pipeline.run()[0].as_array().reshape(-1)}
    assert ids == set(expected)


def test_tfrecord_reads_what_was_built(here: Path, expected: Rows) -> None:
    """In processes of their own: `tfrecord` and TensorFlow define the same protocol buffers."""
    rest = "for r in records:\n    print(int(r['id'][0]), bytes(r['status']).decode(), sep=',')"
    code = SNIPPETS["tfrecord"] + rest
    lines: list[str] = []
    for shard in ("train-00000", "train-00001"):
        script = code.replace("train-00000", shard)
        lines += subprocess.run(
            [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    assert {int(line.split(",")[0]): line.split(",")[1] for line in lines} == {i: s for i, (_, s) in expected.items()}


def test_petastorm_reads_what_was_built(folder: Path, expected: Rows) -> None:
    rest = "rows = [row for b in batches for row in zip(*(c.tolist() for c in (b.id, b.hours, b.status)))]"
    script = f"{SNIPPETS['Petastorm']}{rest}\nimport json\nprint(json.dumps(rows))"
    rows = json.loads(run_with_petastorm(script, cwd=folder).splitlines()[-1])
    assert len(rows) == len(expected)
    assert {i: (hours, status) for i, hours, status in rows} == expected
