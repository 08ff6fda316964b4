"""Sources on the Hugging Face Hub (`hf://`), through its own client, from a stand-in for the Hub."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.registry import _registry as loaded_clients

from ringfeed.sharding import StorageError, open_dataset
from ringfeed.sharding.sources.files.find import list_files
from tests.helpers.commands import Cli
from tests.servers.hub import hub


def test_a_repository_is_built_and_what_is_not_there_said(installed: Cli, tmp_path: Path) -> None:
    repository, out = tmp_path / "repository", tmp_path / "out"
    (repository / "data").mkdir(parents=True)
    for number in range(2):
        table = pa.table({"x": range(number * 50, number * 50 + 50), "label": ["a", "b"] * 25})
        pq.write_table(table, repository / "data" / f"{number}.parquet")
    (repository / "README.md").write_text("x")
    with hub(repository, "me/flights", refusals=[429, 503]) as url:
        env = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"}  # which other tests set
        flags = ["--label", "label", "--shards", "1"]
        installed(
            "shard-dataset", "build", "hf://datasets/me/flights/data/*.parquet", str(out), *flags, env=env, check=True
        )
        missing = installed("shard-dataset", "build", "hf://datasets/me/other", str(tmp_path / "b"), *flags, env=env)
    assert open_dataset(str(out)).manifest.split("train").records == 100
    expected = "cannot read hf://datasets/me/other: there is no such repository or revision, or it is private: check"
    assert expected in missing.stderr


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(loaded_clients, "hf", raising=False)
    with pytest.raises(StorageError, match=r"install its client with: pip install 'ringfeed\[hf\]'"):
        list_files("hf://datasets/me/flights", [".parquet"])
