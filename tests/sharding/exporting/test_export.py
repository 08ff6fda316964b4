"""What holds for exports to any format."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding import (
    ConfigError,
    CorruptionError,
    Dataset,
    DatasetError,
    DestinationError,
    ExportOptions,
    Progress,
    export,
)
from ringfeed.sharding.exporting.export import EXPORT_FORMATS, Export
from tests.helpers.builds import built
from tests.helpers.files import contents
from tests.helpers.kinds import ROWS, write_kinds
from tests.servers.store import Store

METADATA = {"tfds": ["dataset_info.json", "features.json", "label.labels.txt"]}
SPLITS = {"train": Fraction(3, 4), "test": Fraction(1, 4)}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("pristine")
    return built(write_kinds(folder / "x.parquet"), folder / "out", label="label", shards=3, splits=SPLITS)


@pytest.fixture
def dataset(root: Path) -> str:
    return str(root)


def exported(url: str, out: Path, to: str, **options: Any) -> Path:
    export(ExportOptions(url=url, destination=str(out), to=to, **options))
    return out


@pytest.mark.parametrize(("to", "suffix"), EXPORT_FORMATS.items())
def test_an_export_has_one_file_per_shard_and_a_card(dataset: str, tmp_path: Path, to: str, suffix: str) -> None:
    progress: list[Progress] = []
    options = ExportOptions(url=dataset, destination=str(tmp_path / "out"), to=to)
    written = export(options, report=progress.append)
    files = contents(tmp_path / "out")
    names = [f"train-0000{i}-of-00003.{suffix}" for i in range(3)]
    metadata = METADATA.get(to, [])
    assert sorted(files) == sorted(["README.md", *metadata, f"test-00000-of-00001.{suffix}", *names])
    data_bytes = sum(len(data) for name, data in files.items() if name not in ("README.md", *metadata))
    assert (written.records, written.files, written.bytes) == (ROWS, 4, data_bytes)
    assert [(p.done, p.total) for p in progress] == [(i, 4) for i in range(5)]
    assert progress[-1].records == ROWS
    card = files["README.md"].decode()
    assert f'  - split: "test"\n    path: "test-*.{suffix}"\n' in card
    assert "| train | 18 | 3 |" in card
    assert "| 1 | `odd` | 9 | 3 |" in card


def test_every_store_yields_the_same_bytes(store: Store, tmp_path: Path) -> None:
    source = write_kinds(tmp_path / "x.parquet")
    built(source, f"{store.url}/dataset", label="label", shards=2)
    local = contents(exported(f"{store.url}/dataset", tmp_path / "out", "hf"))
    export(ExportOptions(url=f"{store.url}/dataset", destination=f"{store.url}/out", to="hf"))
    assert {name: store.read_bytes(f"out/{name}") for name in local} == local
    assert [name for name in store.list() if not name.startswith("dataset/")] == [f"out/{name}" for name in local]


@pytest.mark.parametrize("to", EXPORT_FORMATS)
def test_the_bytes_depend_on_the_records_alone(tmp_path: Path, to: str) -> None:
    source = write_kinds(tmp_path / "x.parquet")
    found = []
    for shard_format, compression in [("tfrecord", "none"), ("tfrecord", "gzip"), ("parquet", "snappy")]:
        url = str(tmp_path / f"{shard_format}-{compression}")
        built(source, url, label="label", shards=2, shard_format=shard_format, compression=compression)
        found.append(contents(exported(url, tmp_path / f"out-{shard_format}-{compression}", to)))
    assert found[0] == found[1] == found[2]


def test_the_bytes_do_not_depend_on_the_workers(dataset: str, tmp_path: Path) -> None:
    one = exported(dataset, tmp_path / "one", "webdataset")
    two = exported(dataset, tmp_path / "two", "webdataset", workers=2)
    assert contents(one) == contents(two)


def test_only_the_given_splits_are_exported(dataset: str, tmp_path: Path) -> None:
    export(url=dataset, destination=str(tmp_path / "out"), to="hf", split=("test",))
    files = contents(tmp_path / "out")
    assert sorted(files) == ["README.md", "test-00000-of-00001.parquet"]
    assert b"train" not in files["README.md"]
    with pytest.raises(DatasetError, match="no split 'nope'; the dataset has 'train', 'test'"):
        exported(dataset, tmp_path / "x", "hf", splits=("nope",))


@pytest.mark.parametrize("to", EXPORT_FORMATS)
def test_a_damaged_shard_is_named_and_nothing_is_left(dataset: str, nothing_left: Path, to: str) -> None:
    shard = Path(dataset) / "train-00001-of-00003.tfrecord"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"train-00001-of-00003\.tfrecord is damaged"):
        exported(dataset, nothing_left, to)


def test_the_dataset_itself_is_no_destination(dataset: str) -> None:
    with pytest.raises(DestinationError, match="is the source itself"):
        exported(dataset, Path(dataset), "hf")
    with pytest.raises(DestinationError, match="lies inside the source"):
        exported(dataset, Path(dataset) / "hf", "hf")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"to": "zip"}, "must be one of webdataset, hf, tfds"),
        ({"workers": 0}, "at least 1"),
        ({"workers": None}, "workers must be an integer, got None"),
        ({"workers": "2"}, "workers must be an integer, got '2'"),
        ({"splits": "train"}, "splits must be a list of texts, got 'train'"),
        ({"splits": None}, "splits must be a list of texts, got None"),
        ({"to": ["hf"]}, "to must be text"),
        ({"splits": ("a", "a")}, "once"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ExportOptions(**({"url": "a", "destination": "b", "to": "hf"} | options))


@pytest.mark.parametrize("to", EXPORT_FORMATS)
def test_a_finished_export_is_found_by_the_same_one_and_refused_to_others(
    dataset: str, store: Store, tmp_path: Path, to: str
) -> None:
    def once_more(splits: tuple[str, ...], url: str = dataset) -> Export:
        return export(ExportOptions(url=url, destination=f"{store.url}/out", to=to, splits=splits))

    first = once_more(("test", "train"))
    whole = {name: store.read_bytes(name) for name in store.list()}
    again = once_more(("test", "train"))
    assert (first.is_new, again.is_new) == (True, False)
    assert (first.records, first.files, first.bytes) == (again.records, again.files, again.bytes)
    built(write_kinds(tmp_path / "x.parquet"), tmp_path / "other", label="label", shards=3, splits=SPLITS, seed=1)
    for splits, url in ((("test",), dataset), (("test", "train"), str(tmp_path / "other"))):
        with pytest.raises(DestinationError, match="holds an export already, but not this one"):
            once_more(splits, url)
    assert {name: store.read_bytes(name) for name in store.list()} == whole
