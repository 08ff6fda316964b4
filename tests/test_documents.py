"""README.md and docs/ as a reader meets them: their Python runs, their commands parse, their links lead somewhere.

docs/loader.md and docs/interoperability.md are run by tests of their own.
"""

import argparse
import io
import itertools
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ringfeed.pipeline import Loader
from ringfeed.sharding import BuildOptions, build, open_dataset, read_records
from ringfeed.tools import cli
from ringfeed.tools.shard_dataset import program as shard_dataset
from ringfeed.tools.shard_dataset.parser import build_parser
from ringfeed.training import load_config
from ringfeed.training.config.config_file import parse_config
from ringfeed.training.models.build import build_model
from tests.helpers.commands import Cli
from tests.helpers.lean import lean_environment
from tests.helpers.pictures import write_pictures
from tests.servers.seaweedfs import S3Server

ROOT = Path(__file__).resolve().parent.parent
PATHS = {
    path.name: path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/design").glob("*.md"))
}
PAGES = {name: path.read_text() for name, path in sorted(PATHS.items()) if name != "CHANGELOG.md"}
ELSEWHERE = {
    "loader.md": "tests/pipeline/test_loader_guide.py",
    "interoperability.md": "tests/test_interoperability.py",
}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SUBCOMMANDS = r"build|append|reshard|inspect|verify|repair|cat|clean|export"
COMMAND = re.compile(
    r"^\s*(?:horovodrun .*?|srun |exec )?"
    rf"((?:shard-dataset (?:{SUBCOMMANDS})|ringfeed (?:{'|'.join(cli.COMMANDS)}))\b.*)",
    re.MULTILINE,
)


def python_of(page: str) -> list[str]:
    return BLOCK.findall(PAGES[page])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets that the pages name, in a folder to be in."""
    root = tmp_path_factory.mktemp("documents")
    number = np.arange(4096)
    flights = {
        "hours": pa.array(number % 20 / 3, pa.float32()),
        "miles": pa.array(number % 2500, pa.float32()),
        "hour": pa.array(number % 24, pa.int32()),
        "carrier": pa.array(np.take(["AA", "B6", "UA", "DL"], number % 4)),
        "arrival": pa.array(np.where(number % 8 == 0, "late", "on time")),
    }
    pq.write_table(pa.table(flights), root / "flights.parquet")
    seats = pa.array([None if i % 50 == 0 else i % 300 for i in number.tolist()], pa.int32())
    pq.write_table(pa.table({**flights, "seats": seats}), root / "seats.parquet")
    texts = {"tokens": [list(range(1, 2 + i % 50)) for i in range(640)], "label": [i % 2 for i in range(640)]}
    pq.write_table(pa.table(texts), root / "texts.parquet")
    write_pictures(root / "photos", 640, ("jpg",))
    splits = {"train": "0.8", "val": "0.1", "test": "0.1"}
    for source, destination, label in (
        ("flights.parquet", "flights", "arrival"),
        ("seats.parquet", "seats", "arrival"),
        ("texts.parquet", "texts", "label"),
        ("photos", "photo-shards", None),
    ):
        options: dict[str, Any] = {} if label is None else {"label": label}
        build(
            BuildOptions(
                source=str(root / source), destination=str(root / destination), shards=4, splits=splits, **options
            )
        )
    return root


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def run_page(page: str, names: dict[str, Any], *replaced: tuple[str, str]) -> dict[str, Any]:
    """The blocks of a page one after the other, each from a file, and a batch of what each calls ``batches``."""
    for number, block in enumerate(python_of(page)):
        for old, new in replaced:
            block = block.replace(old, new)
        file = Path(f"{page}-{number}.py")
        file.write_text(block)
        names.pop("batches", None)
        names |= {name: value for name, value in runpy.run_path(str(file), names).items() if name[0] != "_"}
        if "batches" in names:
            names["batch"] = next(iter(names["batches"]))
    return names


def test_readme(here: Path) -> None:
    names = run_page("README.md", {}, ("s3://bucket/flights", "flights"), ("/mnt/nvme/cache", "cache"), ("120", "2"))
    assert names["batch"]["class_id"].shape == (1024,)


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Do what a page says in an empty folder, block after block, check what it promises, and return what was printed.

    Its commands run in this process, which has imported TensorFlow, and all else that is bash in a shell.
    """
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    promised: list[str] = []
    for number, (language, block) in enumerate(
        re.findall(r"^```(\w+)\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)
    ):
        name = re.match(r"# ([\w.]+\.(?:py|yaml))\n", block)
        if name:
            Path(name[1]).write_text(block)
        elif language == "python":
            Path(f"block_{number}.py").write_text(block)
            runpy.run_path(f"block_{number}.py")
        elif language == "bash":
            whole_lines = re.sub(r" *\\\n *", " ", block).splitlines(keepends=True)
            for is_command, lines in itertools.groupby(
                whole_lines, lambda line: line.startswith(("ringfeed ", "shard-dataset "))
            ):
                follow_lines(list(lines), is_command=is_command)
        elif language == "text":
            promised += block.splitlines()
    streams = capfd.readouterr()
    printed = streams.out + streams.err
    assert {without_numbers(line) for line in promised} <= {without_numbers(line) for line in printed.splitlines()}
    return printed


def follow_lines(lines: list[str], *, is_command: bool) -> None:
    if not is_command:
        subprocess.run(["bash", "-e"], input="".join(lines), text=True, check=True)
        return
    for program, *words in map(shlex.split, lines):
        more = ["--set", "deterministic=false"] if words[0] == "train" else []
        status = shard_dataset.main(words) if program == "shard-dataset" else cli.main([*words, *more])
        assert status == 0, words


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves a model
@pytest.mark.parametrize(
    ("page", "figure", "least"),
    [
        ("quickstart.md", "balanced accuracy", 0.9),
        ("tutorial-table.md", "AUC", 0.7),
        ("tutorial-photos.md", "balanced accuracy", 0.7),
        ("tutorial-text.md", "balanced accuracy", 0.9),
    ],
)
def test_pages_to_follow(
    page: str, figure: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Their commands as they are written, one after the other, and roughly what they print."""
    printed = follow(page, tmp_path, monkeypatch, capfd)
    (tested,) = [line for line in printed.splitlines() if line.startswith("tested the weights of step ")]
    assert float(re.findall(rf"{figure} ([\d.]+)", tested)[-1]) > least
    assert list(tmp_path.glob("*.keras"))
    assert len(Path(tmp_path, "scored.csv").read_text().splitlines()) >= 2


def without_numbers(line: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\d[\d.,]*", "0", line))


def test_cookbook(here: Path) -> None:
    dates, memory = python_of("cookbook.md")
    Path("dates.py").write_text(dates)
    Path("orders.csv").write_text("day,returned\n" + "2026-02-01,yes\n2026-03-02,no\n" * 20)
    (command,) = (line for line in commands(PAGES["cookbook.md"].replace("`", "\n")) if "dates:parts" in line)
    assert shard_dataset.main([word.replace("shards", "dated") for word in command[1:]]) == 0
    rows = {(row["month"], row["weekday"]) for row in read_records(open_dataset("dated"), "train", 40)}
    assert rows == {(2, 6), (3, 0)}
    exec(memory, {})
    assert open_dataset("from-memory").manifest.records == 100
    Path("orders.csv").write_text("id,returned\n" + "".join(f"{i},{'yes' if i % 3 else 'no'}\n" for i in range(60)))
    for command in (line for line in commands(PAGES["cookbook.md"]) if "folds" in line):
        assert shard_dataset.main([word.replace("$k", "2") for word in command[1:]]) == 0
    fold, test, train = (
        {row["id"] for row in read_records(open_dataset(url), split, 99)}
        for url, split in (("folds", "f2"), ("without-2", "test"), ("without-2", "train"))
    )
    assert fold == test == set(range(60)) - train
    assert len(test) == 12


def test_order(here: Path) -> None:
    run_page(
        "order.md", {"Loader": Loader}, ("url", "'flights'"), ("rank=rank", "rank=0"), ("=ranks", "=1"), ("5000", "2")
    )


def test_cache(here: Path) -> None:
    run_page("cache.md", {}, ("s3://bucket/flights", "flights"), ("/mnt/nvme/cache", "cache"))


def test_faults(here: Path) -> None:
    import keras

    loader = Loader("flights", batch_size=1024, columns=["miles"])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(1e-3), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    run_page("faults.md", {"loader": loader, "model": model})
    assert model.optimizer.iterations == 2 * loader.steps_per_epoch


def test_images_and_augmentation(here: Path) -> None:
    import keras
    import tensorflow as tf

    layers = [keras.Input((32, 32, 3)), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    small = (("batch_size=256", "batch_size=64"), ("(224, 224", "(32, 32"), ('Loader("flights"', 'Loader("seats"'))
    names = run_page("images-and-augmentation.md", {"model": model}, *small)
    assert names["batch"]["tokens_mask"].shape[1] % 16 == 0
    noisy = names["add_noise"]({"vector": tf.zeros((4, 3)), "sample_key": tf.zeros((4, 2), tf.int64)})
    assert np.ptp(noisy["vector"]) > 0


def test_preparing(here: Path) -> None:
    masked, module, nested, sales, in_python = python_of("preparing.md")
    Path("prepare_flights.py").write_text(module)
    table = ["build", "flights.parquet", "prepared", "--label", "arrival"]
    assert shard_dataset.main([*table, "--map", "prepare_flights:add_speed", "--filter", "hours > 0"]) == 0
    assert "speed" in open_dataset("prepared").manifest.schema.names
    rows = "".join(f"{i},5;Köln {i} €;{'ab'[i % 2]}\n" for i in range(8))
    Path("sales.csv").write_bytes(f"amount;place;kind\n{rows};;a\n".encode("windows-1252"))
    Path("sales.py").write_text(sales)
    (command,) = (line for line in commands(PAGES["preparing.md"]) if "sales:records" in line)
    assert shard_dataset.main([word.replace("shards/", "sold") for word in command[1:]]) == 0
    sold = list(read_records(open_dataset("sold"), "train", 9))
    assert {(record["amount"], record["place"]) for record in sold} == {
        (None, ""), *((i + 0.5, f"Köln {i} €") for i in range(8)),
    }  # fmt: skip
    exec(in_python.replace('"late"', '"arrival"'), {})
    assert open_dataset("shards").manifest.schema["hours"].dtype == "float32"
    check_masked_lists(masked)
    check_nested_lists(nested)


def check_masked_lists(code: str) -> None:
    import tensorflow as tf

    pq.write_table(pa.table({"tokens": [[i, None, 7] if i else [] for i in range(4)]}), "tokens.parquet")
    assert shard_dataset.main(["build", "tokens.parquet", "masked", "--shards", "1", "--mask-nulls", "tokens"]) == 0
    names = {"tf": tf, "batch": next(iter(Loader("masked", batch_size=4).epoch(0)))}
    exec(code, names)
    assert sorted(names["present"].to_list()) == [[], [1, 7], [2, 7], [3, 7]]


def check_nested_lists(code: str) -> None:
    import tensorflow as tf

    lists = [[[i] * i, [], [7]] if i else [] for i in range(4)]
    pq.write_table(pa.table({"a": lists}), "nested.parquet")
    assert shard_dataset.main(["build", "nested.parquet", "nested", "--shards", "1"]) == 0
    names = {"tf": tf, "batch": next(iter(Loader("nested", batch_size=4).epoch(0)))}
    exec(code, names)
    assert sorted(names["lists"].to_list()) == sorted(lists)


def test_record_streams(here: Path) -> None:
    module, in_memory = python_of("record-streams.md")
    reader = "from types import SimpleNamespace\n\n\ndef read_my_format(name):\n    return [SimpleNamespace("
    reader += 'delay=i, airline="AA", path=i / 3) for i in range(60)]\n\n\n'
    Path("flights.py").write_text(reader + module)
    (command,) = (line for line in commands(PAGES["record-streams.md"]) if "--source" in line)
    assert shard_dataset.main([word.replace("shards/", "streamed") for word in command[1:]]) == 0
    assert open_dataset("streamed").manifest.classes == (False, True)
    exec(in_memory, {})
    assert (open_dataset("late-flights").manifest.records, open_dataset("flights-by-record").manifest.records) == (
        650,
        600,
    )


@pytest.mark.usefixtures("s3_env")
def test_stores(here: Path, s3_server: S3Server, s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/flights"
    assert shard_dataset.main(["build", "flights.parquet", url, "--label", "arrival"]) == 0
    names = {"ENDPOINT": s3_server.endpoint_url, "KEY": s3_server.access_key, "SECRET": s3_server.secret_key}
    names = run_page("stores.md", names, ("s3://bucket/flights", url))
    assert len(next(names["loader"].numpy_epoch(0))["class_id"]) == 1024


def test_options_of_a_store_stand_in_a_file_of_fsspec(
    here: Path, s3_server: S3Server, s3_env: dict[str, str], s3_bucket: str, installed: Cli, tmp_path: Path
) -> None:
    url = f"s3://{s3_bucket}/from-file"
    (text,) = re.findall(r"^```json\n(.*?)```", PAGES["stores.md"], re.MULTILINE | re.DOTALL)
    for old, new in (("http://host:9000", s3_server.endpoint_url), ("KEY", "writer"), ("SECRET", "writer-secret")):
        text = text.replace(old, new)
    (tmp_path / "ringfeed.json").write_text(text)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"):
        del os.environ[name]  # `s3_env` puts them back
    command = ["build", "flights.parquet", url, "--label", "arrival"]
    installed("shard-dataset", *command, env={"FSSPEC_CONFIG_DIR": str(tmp_path)}, check=True)


def test_training(here: Path) -> None:
    """In a process of its own, since a trainer makes TensorFlow deterministic; so is the page on what follows."""
    write_configuration()
    after, _, _, train = python_of("training.md")
    serving, rows = python_of("serving.md")
    export = "from ringfeed.tools.cli import main\nassert main(['export', 'model.keras', '--out', 'served/1']) == 0\n"
    check = """
assert metrics["test"]["samples"] == loader.records
assert metrics["final"]["samples"] == Loader("flights", split="val", batch_size=64).records
assert set(metrics["history"]) == {"steps", "evaluations"}
assert logits.shape == (256, 2)
assert answer["class"].numpy().tolist()[0] in (b"late", b"on time") and answer["probabilities"].shape == (1, 2)
assert model(flight)["predicted"].to_pylist() == [text.decode() for text in answer["class"].numpy()]
"""
    command = [sys.executable, "-c", train + after + export + serving + rows + check]
    done = subprocess.run(command, env=lean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_model_of_your_own(here: Path) -> None:
    write_configuration()
    Path("networks.py").write_text(python_of("training.md")[1])
    loader = Loader("flights", batch_size=64)
    built = build_model(loader.manifest, load_config("flights.yaml", ["model.name=networks:wide"]))
    inputs, class_id, _ = built.preprocess(next(iter(loader.epoch(0))))
    assert (*built.network(inputs).shape, *class_id.shape) == (64, 2, 64)
    built = build_model(loader.manifest, load_config("delays.yaml"))
    inputs, hours, _ = built.preprocess(next(iter(loader.epoch(0))))
    assert (*built.network(inputs).shape, hours.dtype.name) == (64, 1, "float64")


def test_a_loss_metrics_callbacks_and_trackers_of_your_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_configuration()
    Path("own.py").write_text(python_of("training.md")[2])
    options = ["--set", "deterministic=false", "--set", "data.batch_size=64"]
    assert cli.main(["train", "--config", "own.yaml", *options]) == 0
    (rate,) = re.findall(r"^epoch 0: (0\.\d{3})$", capsys.readouterr().out, re.MULTILINE)
    steps = Loader("flights", split="train", batch_size=64).steps_per_epoch
    assert Path("notes.txt").read_text() == f"step {steps}: {rate}\n"


def test_a_schedule_of_your_own(here: Path) -> None:
    write_configuration()
    Path("rates.py").write_text(python_of("optimizers.md")[0])
    Path("noam.yaml").write_text(blocks_of("optimizers.md", "yaml")[0])
    settings = ("deterministic=false", "data.batch_size=64", "output.log_every=1", "max_steps=12", "output.metrics=m")
    assert cli.main(["train", "--config", "noam.yaml", *(word for item in settings for word in ("--set", item))]) == 0
    rates = [entry["learning_rate"] for entry in json.loads(Path("m").read_text())["history"]["steps"]]
    assert rates == pytest.approx([min((10 / (t + 1)) ** 0.5, (t + 1) / 10) for t in range(12)], rel=1e-6)


def test_a_synchroniser_of_your_own(here: Path) -> None:
    write_configuration()
    (program,) = python_of("synchronisation.md")
    Path("own.py").write_text(program.partition("\n\nmetrics")[0])
    check = """
votes = SignSGD(SoloRing()).reduce(Exchange([tf.constant([2.0, -0.5, 0.0])]), 0).gradients
assert votes[0].numpy().tolist() == [1.0, -1.0, 0.0]
assert metrics["final"]["step"] == metrics["total_steps"] > 0
named = load_config("flights.yaml", ["sync.method=own:SignSGD", "checkpoint.url=again"])
assert Trainer(named, connect()).run()["weights_digest"] == metrics["weights_digest"]
"""
    program = program.replace("load_config\n", "Exchange, SoloRing, load_config\n", 1) + check
    done = subprocess.run(
        [sys.executable, "-c", program], env=lean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def write_configuration() -> None:
    for block in blocks_of("training.md", "yaml"):
        Path(block.splitlines()[0].removeprefix("# ")).write_text(block)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras 3.15 with NumPy 2
def test_a_fit_that_was_stopped_goes_on_as_if_it_had_not_been(here: Path) -> None:
    """The recipe of docs/loader.md, with an optimizer that keeps moments."""
    import keras

    (recipe,) = (block for block in python_of("loader.md") if "class Keep" in block)
    loader = Loader("flights", batch_size=64, columns=["miles"], seed=1)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            if batch == 37:
                raise KeyboardInterrupt

    def run(folder: str, *more: object) -> Any:
        keras.utils.set_random_seed(1)
        layers = [keras.Input((1,)), keras.layers.Rescaling(1e-3), keras.layers.Dense(4), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        names = {"keras": keras, "json": json, "loader": loader, "model": model, "more": more}
        code = recipe.replace('"kept"', repr(folder)).replace("[keep]", "[keep, *more]")
        exec(code, names)
        return names["model"].get_weights()

    with pytest.raises(KeyboardInterrupt):
        run("stopped", Stop())
    assert [path.name for path in sorted(Path("stopped").iterdir())][-1] == "step-000000030"
    for resumed, whole in zip(run("stopped"), run("whole"), strict=True):
        np.testing.assert_array_equal(resumed, whole)


def test_moving(here: Path) -> None:
    (module,) = python_of("moving.md")
    Path("decode.py").write_text(module)
    arrays = [np.full((4, 2), i, np.float32) for i in range(60)]
    files = [io.BytesIO() for _ in arrays]
    for file, array in zip(files, arrays, strict=True):
        np.save(file, array)
    table = pa.table({"features": [file.getvalue() for file in files], "y": [i % 3 for i in range(60)]})
    Path("petastorm").mkdir()
    pq.write_table(table, "petastorm/part-00000.parquet")
    Path("flowers").mkdir()
    pq.write_table(table.slice(0, 48), "flowers/train-0.parquet")
    pq.write_table(table.slice(48), "flowers/test-0.parquet")
    for command in commands(PAGES["moving.md"]):
        if command[2] in ("petastorm/", "flowers/"):
            destination = "decoded" if command[2] == "petastorm/" else "splits"
            assert shard_dataset.main([word.replace("shards/", destination) for word in command[1:]]) == 0
    splits = open_dataset("splits").manifest.splits
    assert {name: split.records for name, split in splits.items()} == {"train": 48, "test": 12}
    (batch,) = Loader("decoded", batch_size=60).numpy_epoch(0)
    assert sorted(batch["features"][:, 7]) == list(range(60))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, when it saves a model
def test_keras(here: Path) -> None:
    columns = ('"s3://bucket/flights"', '"flights"'), ('["delay"]', '["miles"]'), ("1024", "64")
    names = run_page("keras.md", {}, *columns)
    assert len(names["history"].history["val_accuracy"]) == 2
    assert Path("flights.keras").exists()


def test_profiling(here: Path) -> None:
    (code,) = python_of("profiling.md")
    code = code.replace("s3://bucket/flights", "flights").replace("4096", "64").replace("seconds=30", "seconds=0.5")
    names: dict[str, Any] = {"train_step": lambda batch: None, "prepare": lambda batch: batch}
    exec(code, names)
    assert names["result"].training is not None


def test_simulation(here: Path) -> None:
    names = run_page("simulation.md", {}, ("s3://bucket/flights", "flights"), ("seconds=10", "seconds=0.5"))
    assert "<svg" in names["simulation"]._repr_html_()
    assert names["simulation"].epochs[0].samples_per_second > 0


def test_every_block_is_run() -> None:
    run = {"README.md", "order.md", "cache.md", "faults.md", "images-and-augmentation.md", "preparing.md"}
    run |= {
        "record-streams.md",
        "stores.md",
        "training.md",
        "serving.md",
        "moving.md",
        "profiling.md",
        "simulation.md",
        "keras.md",
        "optimizers.md",
        "synchronisation.md",
        "cookbook.md",
        *(page for page in PAGES if page.startswith("tutorial-")),
    }
    assert {page for page in PAGES if python_of(page)} == {*run, *ELSEWHERE}


def test_readme_leads_to_every_page() -> None:
    pages = {name for name, path in PATHS.items() if path.parent == ROOT / "docs"}
    assert set(re.findall(r"docs/([\w-]+\.md)", PAGES["README.md"])) == pages
    assert "CONTRIBUTING.md" in PAGES["README.md"]


def test_the_architecture_leads_to_every_page_of_the_design() -> None:
    pages = {name for name, path in PATHS.items() if path.parent == ROOT / "docs/design"}
    assert set(re.findall(r"\(design/([\w-]+\.md)\)", PAGES["architecture.md"])) == pages


def commands(text: str) -> list[list[str]]:
    """The command lines of ringfeed in a text, in words, without where their output goes."""
    lines = COMMAND.findall(re.sub(r" *\\\n *", " ", text))
    words = [shlex.split(re.sub(r"\s#.*", "", line).replace(" ...", " SRC DST")) for line in lines]
    ends = ("|", "&&", ">", "2>&1")
    return [list(itertools.takewhile(lambda word: word not in ends, line)) for line in words]


def help_texts() -> dict[str, str]:
    """That of each command."""
    parsers = {"shard-dataset": build_parser(), **{f"ringfeed {name}": cli.build_parser(name) for name in cli.COMMANDS}}
    texts = {}
    for program, parser in parsers.items():
        texts[program] = parser.format_help()
        (chosen,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        texts |= {f"{program} {name}": command.format_help() for name, command in chosen.choices.items()}
    return texts


@pytest.mark.parametrize("texts", [PAGES, help_texts()], ids=["documents", "help"])
def test_commands_parse(texts: dict[str, str]) -> None:
    found = [words for text in texts.values() for words in commands(text)]
    assert len(found) > 20
    for program, *words in found:
        if program == "ringfeed":
            cli.build_parser(words[0]).parse_args(words)
        else:
            build_parser(python_source="--source" in words and words[0] == "build").parse_args(words)


def blocks_of(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def test_commands_in_blocks_are_known() -> None:
    """Also a misspelt one, which `commands` passes over; and the scripts and targets of `make` that blocks call."""
    known = {f"ringfeed {name}" for name in cli.COMMANDS} | {f"shard-dataset {name}" for name in SUBCOMMANDS.split("|")}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = "".join(block for language in ("", "bash", "sh") for block in blocks_of(page, language))
        called = re.findall(r"^(?:ringfeed|shard-dataset) [a-z][\w-]*", text, re.MULTILINE)
        called += re.findall(r"^horovodrun .*?(ringfeed [a-z][\w-]*)", text, re.MULTILINE)
        assert set(called) <= known, page
        for script in re.findall(
            r"^python ((?:benchmarks|examples|tools|tests|docs)/[\w./-]+\.py)", text, re.MULTILINE
        ):
            assert (ROOT / script).exists(), (page, script)
        assert set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE)) <= targets, page


# Not of `ringfeed train`: of Prometheus, of Kubernetes, and of `--schema` (tests/test_interoperability.py reads that).
OTHER_YAML = ("scrape_configs:", "apiVersion:", "features:")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page, "yaml")])
def test_configurations_are_valid(page: str) -> None:
    for block in blocks_of(page, "yaml"):
        for tree in yaml.safe_load_all(block):
            if not block.startswith(OTHER_YAML):
                data = tree.get("data", {})
                named = {} if {"url", "mixture"} & data.keys() else {"url": "flights", "batch_size": 64}
                parse_config({**tree, "data": {**named, **data}}, page)


def test_json_parses() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page, "json")]
    assert blocks
    for block in blocks:
        json.loads(block)


def test_recipes_of_clusters_are_scripts_and_manifests() -> None:
    scripts = blocks_of("clusters.md", "bash")
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        assert "ringfeed " in script
    manifests = [manifest for block in blocks_of("clusters.md", "yaml") for manifest in yaml.safe_load_all(block)]
    started = []
    for manifest in manifests:
        assert {"apiVersion", "kind", "metadata", "spec"} == set(manifest)
        for container in (container for pods in pod_templates(manifest) for container in pods["spec"]["containers"]):
            words = [*container.get("command", []), *container.get("args", [])]
            if not words:
                continue
            assert all(isinstance(word, str) for word in words)
            _, *words = words[words.index("ringfeed") :]
            args = cli.build_parser(words[0]).parse_args(words)
            started.append(args)
            if words[0] == "launch":
                cli.build_parser("train").parse_args(args.program)
            for variable in container.get("env", []):
                if variable["name"] == "TF_CONFIG":
                    assert json.loads(variable["value"].replace("$(JOB_COMPLETION_INDEX)", "3"))["task"]["index"] == 3
    assert (len(scripts), len(manifests), len(started)) == (4, 5, 3)


def pod_templates(tree: Any) -> list[dict[str, Any]]:
    """Those of a manifest."""
    if isinstance(tree, dict):
        found = [tree["template"]] if "template" in tree else []
        return found + [pods for value in tree.values() for pods in pod_templates(value)]
    return []


def test_flags_exist() -> None:
    known = {flag for text in help_texts().values() for flag in re.findall(r"--[a-z][a-z-]*", text)}
    known |= {"--rounds", "--output", "--quick", "--no-deps"}  # of benchmarks, the demo and pip
    known |= {"--network-interfaces", "--start-timeout", "--ssh-port", "--execute"}  # of horovodrun and nbconvert
    known |= {"--hostfile", "--from-file"}  # of horovodrun and kubectl
    known |= {
        "--job-name",
        "--nodes",
        "--ntasks",
        "--ntasks-per-node",
        "--cpus-per-task",
        "--gres",
        "--time",
    }  # of Slurm
    known |= {"--signal", "--requeue", "--open-mode", "--distribution", "--kill-on-bad-exit"}
    known |= {"--host-discovery-script", "--min-np", "--max-np", "--gloo-timeout-seconds"}  # of horovodrun
    for page, text in PAGES.items():
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        assert named - known == set(), page


@pytest.mark.parametrize("page", sorted(PAGES))
def test_links_lead_somewhere(page: str) -> None:
    path = PATHS[page]
    text = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link
    for name in re.findall(
        r"`((?:tests|tools|pipeline|sharding|training|benchmarks|notebooks|examples)/[\w./-]+)`", text
    ):
        assert (ROOT / name).exists(), name


def anchors(text: str) -> set[str]:
    """Those that GitHub makes of headings."""
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
