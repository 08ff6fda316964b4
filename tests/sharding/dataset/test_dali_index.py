"""DALI indexes equal those written by the programs that read them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from ringfeed.sharding import BuildOptions, ConfigError, verify
from tests.helpers.builds import built
from tests.helpers.files import all_files


@pytest.fixture
def dataset(parquet: str, tmp_path: Path) -> Path:
    built(parquet, tmp_path / "out", label="label", shards=3, dali_index=True)
    return tmp_path / "out"


def ran(script: str, *arguments: str) -> str:
    """What a script prints, in a process of its own: `tfrecord` and TensorFlow define the same protocol buffers."""
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def test_an_index_equals_that_of_the_tool(dataset: Path, tmp_path: Path) -> None:
    shutil.copytree(dataset, tmp_path / "copy")
    script = "import sys, tfrecord.tools.tfrecord2idx as tool; tool.create_indices(sys.argv[1])"
    ran(script, str(tmp_path / "copy"))
    expected = sorted((tmp_path / "copy").glob("*.tfindex"))
    written = sorted(dataset.glob("_ringfeed/*.idx"))
    assert [path.stem for path in written] == [path.stem for path in expected]
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in expected]


def test_records_are_found_by_the_index(dataset: Path, table: pa.Table) -> None:
    script = """
import json, sys
from tfrecord.reader import tfrecord_loader
for shard in sys.argv[1:]:
    for piece in range(4):  # a piece starts at a record in the middle of the file
        index = shard.replace("train-", "_ringfeed/train-").replace(".tfrecord", ".idx")
        for record in tfrecord_loader(shard, index, {"id": "int", "vector": "float"}, shard=(piece, 4)):
            print(json.dumps([int(record["id"][0]), record["vector"].tolist()]))
"""
    lines = ran(script, *map(str, sorted(dataset.glob("*.tfrecord")))).splitlines()
    records = dict(map(json.loads, lines))
    assert len(lines) == table.num_rows
    assert records == dict(zip(table["id"].to_pylist(), table["vector"].to_pylist(), strict=True))


def test_an_index_is_covered_by_a_checksum(dataset: Path) -> None:
    index = sorted(dataset.glob("_ringfeed/*.idx"))[1]
    index.write_bytes(index.read_bytes()[:-1])
    assert [damage.path for damage in verify(str(dataset))] == [f"_ringfeed/{index.name}"]


def test_replacing_a_dataset_removes_its_indexes(dataset: Path, parquet: str) -> None:
    built(parquet, dataset, label="label", shards=2, shard_format="parquet", overwrite=True)
    assert {path.suffix for path in all_files(dataset)} == {".parquet", ".index", ".json", ".table"}
    assert list(dataset.glob("*.json")) == []


@pytest.mark.parametrize("options", [{"shard_format": "parquet"}, {"compression": "gzip"}])
def test_what_dali_cannot_read_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a DALI index needs uncompressed TFRecord shards, and these are"):
        BuildOptions(source="x.csv", destination="out", dali_index=True, **options)  # type: ignore[arg-type]
