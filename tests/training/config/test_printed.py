"""A printed configuration: it is read back as the same one, from any folder; and what relative paths count from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from ringfeed.tools import cli
from ringfeed.training.config.config_file import load_config, to_tree
from ringfeed.training.config.keys import all_keys
from ringfeed.training.config.printed import print_config
from ringfeed.training.config.registry import METHODS

ROOT = Path(__file__).resolve().parents[3]
UNUSUAL = {
    "data": {"url": "s3://b/1e5", "balance": {2: 0.5, True: 0.25, "null": 0.25}, "cache": "memory", "include": ["a b"]},
    "model": {"name": "nets:build", "options": {"é": [{"a: #b": None}], "rate": 1e-5}},
    "optimizer": {"learning_rate": 1e-5, "exclude": ["^a$", "[#]"]},
    "loss": {"class_weights": {"1e3": 2.0}},
}


@pytest.mark.parametrize("name", ["flights.yaml", "digits.yaml", "unusual.yaml"])
def test_is_read_back_as_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unusual.yaml").write_text(yaml.safe_dump(UNUSUAL))
    path = tmp_path / name if name == "unusual.yaml" else ROOT / "examples" / name
    text = print_config(load_config(str(path)))
    assert max(map(len, text.splitlines())) <= 120
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "saved.yaml").write_text(text)
    monkeypatch.chdir("/")
    assert print_config(load_config(str(tmp_path / "elsewhere" / "saved.yaml"))) == text
    tree = to_tree(load_config(str(path)))
    for key, spec in all_keys():
        group, _, leaf = key.rpartition(".")
        if leaf in (tree[group] if group else tree):  # but not the keys of other methods
            assert f"{leaf}: " in text
            assert spec.metadata["help"].split()[0] in text
        else:
            assert group in METHODS


def test_paths_of_a_file_count_from_it_and_those_of_the_command_from_where_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run.yaml").write_text(
        "data: {url: ../flights, cache: none}\nmodel: {weights: /w/a.keras}\ncheckpoint: {url: s3://b/run}\n"
        "output: {metrics: m.json, model: model.keras}\n"
    )
    monkeypatch.chdir(tmp_path)
    config = load_config("runs/run.yaml", ["output.model=here.keras"])
    assert (config.data.url, config.data.cache) == (os.path.join("runs", "../flights"), "none")
    assert (config.model.weights, config.checkpoint.url) == ("/w/a.keras", "s3://b/run")
    assert (config.output.metrics, config.output.model) == ("runs/m.json", "here.keras")
    assert cli.main(["train", "--config", "runs/run.yaml", "--print-config", "--set", "output.model=here.keras"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["data"]["url"] == str(tmp_path / "flights")
    assert printed["output"]["model"] == str(tmp_path / "here.keras")
