"""Traces compared with what a network saw in a run: on two ranks, resumed on one, of a mixture, without a bad shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pyarrow as pa
import pytest
import tensorflow as tf
import yaml

from ringfeed.sharding import build
from ringfeed.tools.cli import main
from ringfeed.training.config.config_file import load_config
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.trainer import Trainer
from tests.helpers.thread_ring import on_ranks

STEPS, EPOCH = 16, 10

_seen: list[list[list[int]]] = []
"""The numbers of the records in each step, for each network that was built."""


class Watching(keras.layers.Layer):
    """Passes numbers on, and remembers those of each training step."""

    def __init__(self, place: int) -> None:
        super().__init__(dtype="float32")
        self._place = place  # Keras would track a list

    def call(self, values: Any, training: bool = False) -> Any:  # as Keras calls it
        """Return the values."""

        def remember(array: Any) -> Any:
            _seen[self._place].append([round(float(value)) for value in array])
            return array

        return (
            tf.ensure_shape(tf.numpy_function(remember, [values], values.dtype), values.shape) if training else values
        )


def build_watching(manifest: Any, config: Any) -> keras.Model:  # as a run calls it
    """A network of one number, which remembers what it was trained on."""
    _seen.append([])
    number = keras.Input((), name="number")
    return keras.Model({"number": number}, keras.layers.Dense(1)(Watching(len(_seen) - 1)(number)[:, None] / 1000))


def write_data(url: str, first: int, records: int, shards: int = 4) -> str:
    numbers = range(first, first + records)
    table = pa.table({"number": pa.array(numbers, pa.float32()), "y": [n % 3 / 2 for n in numbers]})
    build(source=table, destination=url, shards=shards, workers=1, format="parquet")
    return url


def write_run(folder: Path, data: dict[str, Any]) -> str:
    tree = {
        "task": "regression",
        "data": {"batch_size": 12, "target": "y", "include": ["number"], "eval_split": None, **data},
        "model": {"name": f"{__name__}:build_watching"},
        "optimizer": {"name": "sgd", "learning_rate": 0.001},
        "epochs": 2,
        "max_steps": STEPS,
        "checkpoint": {"url": str(folder / "checkpoints")},
        "output": {"metrics": str(folder / "metrics.json")},
        "deterministic": False,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    return str(folder / "run.yaml")


def traced(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["trace", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def by_rank(rows: list[dict[str, Any]]) -> Iterator[list[int]]:
    for rank in sorted({row["rank"] for row in rows}):
        yield [int(row["number"]) for row in rows if row["rank"] == rank]


@pytest.mark.parametrize("kind", ["one", "mixture", "quarantine"])
def test_a_trace_is_what_the_ranks_read_also_after_a_resume_on_another_number(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _seen.clear()
    first = write_data(str(tmp_path / "a"), 0, 12 * EPOCH)
    data: dict[str, Any] = {"url": first}
    if kind == "mixture":
        second = write_data(str(tmp_path / "b"), 1000, 60)
        data = {"mixture": {"a": {"url": first}, "b": {"url": second}}, "weights": {"a": 0.5, "b": 0.5}}
    elif kind == "quarantine":
        shard = sorted(Path(first).glob("train-*"))[2]
        shard.write_bytes(shard.read_bytes()[:-9])
        data["on_bad_shard"] = "quarantine"
    path = write_run(tmp_path, data)
    on_ranks(2, lambda ring: Trainer(load_config(path, ["max_steps=7"]), ring).run())
    Trainer(load_config(path), SoloRing()).run()
    *ranks, alone = _seen
    assert [len(one) for one in (*ranks, alone)] == [7, 7, STEPS - 7]
    for step in range(STEPS):
        show = ["--config", path, "--step", str(step), "--show", "number"]
        if step < 7:
            assert sorted(by_rank(traced(capsys, *show, "--ranks", "2"))) == sorted(one[step] for one in ranks)
        rows = traced(capsys, *show)
        seen = alone[step - 7] if step >= 7 else sorted(ranks[0][step] + ranks[1][step])
        assert (next(by_rank(rows)) if step >= 7 else sorted(next(by_rank(rows)))) == seen
        assert {row["epoch"] for row in rows} == {0 if kind != "mixture" and step < EPOCH else rows[0]["epoch"]}

    row = traced(capsys, "--config", path, "--step", "3", "--show", "number")[5]
    uses = traced(capsys, "--config", path, "--record", f"{row['shard']}:{row['record']}")
    uses = [use["step"] for use in uses if use["dataset"] == row["dataset"]]
    number = int(row["number"])
    assert uses == [step for step in range(STEPS) for one in (ranks if step < 7 else [alone])
                    for seen in [one[step] if one is not alone else one[step - 7]] if number in seen]  # fmt: skip


def test_the_records_behind_a_spike_and_a_table_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_data(str(tmp_path / "a"), 0, 12 * EPOCH)
    path = write_run(tmp_path, {"url": str(tmp_path / "a")})
    losses = [1.0, 0.9, 0.8, 4.0, 0.7]
    entries = [{"step": 2 * n + 2, "loss": loss} for n, loss in enumerate(losses)]
    (tmp_path / "metrics.json").write_text(json.dumps({"history": {"steps": entries}}))
    rows = traced(capsys, "--config", path, "--spike")
    assert [row["step"] for row in rows] == [6] * 12 + [7] * 12
    assert main(["trace", "--config", path, "--step", "6", "--limit", "2", "--show", "y"]) == 0
    head, first, _, more = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "epoch", "rank", "position", "shard", "record", "y"]
    assert first.split()[:4] == ["6", "0", "0", "0"]
    assert more == "... and more; --limit 4 shows them"


def test_the_source_of_each_record_is_a_file_and_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, first in (("a", 0), ("b", 60)):
        lines = ["number,y", *(f"{number},{number % 3 / 2}" for number in range(first, first + 60))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    build(source=str(tmp_path / "*.csv"), destination=str(tmp_path / "shards"), shards=4, workers=1)
    path = write_run(tmp_path, {"url": str(tmp_path / "shards")})
    rows = traced(capsys, "--config", path, "--step", "3", "--show", "number", "--with-source")
    assert len(rows) == 12
    for row in rows:
        number = row["number"]
        assert (row["file"], row["place"]) == (str(tmp_path / f"{'ab'[number // 60]}.csv"), f"line {number % 60 + 2}")
    assert main(["trace", "--config", path, "--step", "3", "--with-source"]) == 0
    head, first_row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["file", "place"]
    assert first_row.split()[-3:] == [rows[0]["file"], *rows[0]["place"].split()]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--step", "16"], "--step: the run has the steps 0 to 15, got 16"),
        (["--step", "0", "--show", "numbr"], "has no column 'numbr'; did you mean 'number'?"),
        (["--step", "0", "--ranks", "0"], "--ranks must be at least 1, got 0"),
        (["--record", "train-0:x"], "--record: name SHARD:NUMBER, such as "),
        (["--record", "train-00000-of-00004.parque:1"], "no shard 'train-00000-of-00004.parque'; did you mean 'train-"),
        (["--record", "train-00000-of-00004.parquet:30"], "has the records 0 to 29, got 30"),
        (["--spike"], "metrics.json"),
        (["--step", "0", "--save", "images"], "--save: the records have no column of images"),
    ],
)
def test_what_cannot_be_traced_is_refused_in_one_line(
    tmp_path: Path, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data(str(tmp_path / "a"), 0, 12 * EPOCH)
    assert main(["trace", "--config", write_run(tmp_path, {"url": str(tmp_path / "a")}), *words]) == 1
    line = capsys.readouterr().err
    assert error in line
    assert line.count("\n") == 1


def test_images_are_saved(tmp_path: Path, pictures: str, capsys: pytest.CaptureFixture[str]) -> None:
    tree = {"data": {"url": pictures, "batch_size": 8}, "model": {"name": "convnet", "image_shape": [8, 8, 1]}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(tree))
    command = ["trace", "--config", str(tmp_path / "run.yaml"), "--step", "2", "--save", str(tmp_path / "images")]
    assert main([*command, "--show", "label"]) == 0
    labels = [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]]
    saved = sorted((tmp_path / "images").iterdir())
    assert len(saved) == len(labels) == 8
    for file, label in zip(saved, labels, strict=True):
        pixels = tf.io.decode_png(file.read_bytes()).numpy()[:, :, 0]
        bright = [pixels[4 * (q // 2) :, 4 * (q % 2) :][:4, :4].mean() for q in range(4)]
        assert label == f"q{bright.index(max(bright))}"
