"""Names of files and folders that look like splits (`split_names.py`): recognized folders, and warnings."""

from pathlib import Path

import pytest

from ringfeed.sharding import BuildOptions, plan_build
from ringfeed.sharding.sources.split_names import find_split_folders
from tests.helpers.builds import SPLITS, built
from tests.servers.store import Store


@pytest.mark.parametrize(
    ("paths", "folders"),
    [
        (["val/a/1.png", "train/a/1.png"], ["train", "val"]),
        (["train/0.arrow", "test/0.arrow", "dataset_dict.json"], ["train", "test"]),
        (["Train/a.csv", "dev/a.csv", "_x/a.csv", "README.md"], ["train", "dev"]),
        (["train/a.csv", "test/a.csv", "more/a.csv"], []),
        (["train/a.csv", "test/a.csv", "all.csv"], []),
        (["val/a.csv", "dev/a.csv"], []),
        (["train/a.csv"], []),
    ],
)
def test_folders_of_splits_are_recognized(store: Store, paths: list[str], folders: list[str]) -> None:
    for path in paths:
        store.write_bytes(path, b"x")
    found = find_split_folders(store.url)
    assert list(found) == folders
    assert [name.lower() for name in found.values()] == folders
    assert find_split_folders(f"{store.url}/{paths[0]}") == {}
    assert find_split_folders(f"{store.url}/*") == {}
    assert find_split_folders(f"{store.url}/nothing") == {}


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["train.csv", "test.csv"], "train='train*' test='test*'"),
        (["data/train-0.csv", "data/validation-0.csv"], "train='data/train*' val='data/validation*'"),
        (["a/train/1.csv", "b/train/1.csv", "a/test/1.csv"], "train='**/*train*' test='a/test'"),
        (["mnist-train.csv", "mnist-test.csv"], "train='mnist-train*' test='mnist-test*'"),
        (["trainer.csv", "tests.csv"], ""),
        (["train-1.csv", "train-2.csv"], ""),
    ],
)
def test_mixed_splits_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[str], patterns: str
) -> None:
    for name in names:
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("y\n" + "a\n" * 20)
    for splits in ({}, {"splits": SPLITS}):
        caplog.clear()
        plan_build(BuildOptions(source=str(tmp_path / "in"), destination=str(tmp_path / "out"), label="y", **splits))
        told = [record.getMessage() for record in caplog.records]
        assert [message.partition("add --split-files ")[2] for message in told] == ([patterns] if patterns else [])


def test_the_splits_of_a_dataset_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").write_text("y\n" + "a\n" * 20)
    built(f"{tmp_path}/a.csv", tmp_path / "out", label="y", splits=SPLITS, shards=1)
    built(f"{tmp_path}/out#train", tmp_path / "train", shards=1)
    assert not caplog.records
    built(f"{tmp_path}/out", tmp_path / "all", shards=1)
    assert caplog.records[0].getMessage().startswith(f"{tmp_path}/out has the splits train, test, whose records are")
