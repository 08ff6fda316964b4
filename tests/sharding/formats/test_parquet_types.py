"""Times are integers in ringfeed and times in Parquet shards; the shards of earlier versions have integers, too.

`golden/integer_times.tar.gz` was written by commit eb0d0d72: `integers`, built from rows.arrow with `--label label
--format parquet --shards 2 --split train=0.75,test=0.25`.
"""

import json
import shutil
import tarfile
from datetime import date, datetime, time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from ringfeed.pipeline import Loader
from ringfeed.pipeline.deliver.to_numpy import Ragged
from ringfeed.sharding import (
    ExportOptions,
    Original,
    SourceError,
    append,
    build,
    export,
    open_dataset,
    repair,
)
from ringfeed.sharding.formats.parquet import read_parquet, write_parquet
from ringfeed.sharding.formats.parquet_types import plain_columns, stored_schema, to_stored
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.verifying.locate import reencode_shard
from ringfeed.sharding.verifying.record_checks import check_meaning
from tests.helpers.files import contents

ARCHIVE = Path(__file__).resolve().parents[2] / "golden" / "integer_times.tar.gz"
OPTIONS: dict[str, Any] = {
    "label": "label", "format": "parquet", "shards": 2,
    "split": {"train": Fraction(3, 4), "test": Fraction(1, 4)},
}  # fmt: skip
DAY, LARGE = 86400, 2**63 - 1
TIMES = {  # the type of a source, its type in the file, and integers of it
    "days": (pa.date32(), pa.date32(), [18546, -1]),
    "days in ms": (pa.date64(), pa.timestamp("ms"), [DAY * 1000, -1]),
    "seconds": (pa.timestamp("s"), pa.timestamp("ms"), [10**9, -1]),
    "seconds of a zone": (pa.timestamp("s", "Asia/Kolkata"), pa.timestamp("ms", "Asia/Kolkata"), [10**9, -(10**9)]),
    "ms": (pa.timestamp("ms"), pa.timestamp("ms"), [10**12, -1]),
    "us of a zone": (pa.timestamp("us", "+05:30"), pa.timestamp("us", "+05:30"), [10**15, -1]),
    "ns": (pa.timestamp("ns"), pa.timestamp("ns"), [LARGE, -1]),
    "time in seconds": (pa.time32("s"), pa.time32("ms"), [0, DAY - 1]),
    "time in ms": (pa.time32("ms"), pa.time32("ms"), [1, DAY * 1000 - 1]),
    "time in us": (pa.time64("us"), pa.time64("us"), [1, DAY * 10**6 - 1]),
    "time in ns": (pa.time64("ns"), pa.time64("ns"), [1000, DAY * 10**9 - 1000]),
    "duration in seconds": (pa.duration("s"), pa.duration("s"), [10**9, -1]),
    "duration in ns": (pa.duration("ns"), pa.duration("ns"), [LARGE, -1]),
}


def columns_of(kind: pa.DataType, values: list[int]) -> pa.RecordBatch:
    """A column of times, one of lists and one of pairs, each with something missing."""
    integer, (one, other) = pa.int32() if kind.bit_width == 32 else pa.int64(), values
    columns = {
        "scalar": pa.array([one, None, other], integer).cast(kind),
        "list": pa.array([[one, None], None, []], pa.list_(integer)).cast(pa.list_(kind)),
        "pair": pa.array([[one, other], None, [other, None]], pa.list_(integer, 2)).cast(pa.list_(kind, 2)),
    }
    return pa.record_batch(columns)


@pytest.mark.parametrize("name", TIMES)
def test_a_time_has_its_type_in_the_file_and_its_integer_elsewhere(name: str) -> None:
    kind, stored_kind, values = TIMES[name]
    batch = columns_of(kind, values)
    schema = Schema.from_arrow(batch.schema, None)
    plain = schema.conform(batch)
    stored = to_stored(plain, stored_schema(schema))
    assert stored.schema.types == [stored_kind, pa.list_(stored_kind), pa.list_(stored_kind, 2)]
    if not pa.types.is_date64(kind):  # which Python shows as dates
        assert stored.to_pylist() == batch.to_pylist()
    data = write_parquet(stored, "none", 2)
    assert pq.read_table(pa.BufferReader(data)).to_pylist() == stored.to_pylist()
    read = read_parquet(data)
    assert read.schema.types == plain.schema.types
    assert read.to_pylist() == plain_columns(stored).to_pylist() == plain.to_pylist()
    shares_memory = stored["scalar"].buffers()[1].address == plain["scalar"].buffers()[1].address
    assert shares_memory == (kind == stored_kind or pa.types.is_date64(kind))


def test_seconds_too_large_for_milliseconds_are_refused(tmp_path: Path) -> None:
    table = pa.table({"at": pa.array([LARGE], pa.int64()).cast(pa.timestamp("s")), "x": [1]})
    with pytest.raises(SourceError, match=r"column 'at' holds a timestamp\[s\] that is too large .* --cast at=int64"):
        build(source=table, destination=str(tmp_path / "out"), format="parquet", min_class_records=1)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows.arrow, `integers` of the earlier version, and `times`, built from the same rows."""
    root = tmp_path_factory.mktemp("times")
    with tarfile.open(ARCHIVE) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it
        archive.extractall(root)
    build(source=str(root / "rows.arrow"), destination=str(root / "times"), **OPTIONS)
    return root


def kind_and_rows(values: Any) -> list[tuple[np.dtype[Any], Any]]:
    """Type and values of each record."""
    rows = values.rows() if isinstance(values, Ragged) else list(values)
    return [(row.dtype, row.tolist()) for row in rows]


def test_the_loader_gives_integers_whatever_the_version(folder: Path) -> None:
    integers, times = (open_dataset(str(folder / name)).manifest for name in ("integers", "times"))
    assert (integers.declares_meanings, times.declares_meanings) == (False, True)
    assert '"format_version": "2.0"' in (folder / "times" / "_ringfeed" / "dataset.json").read_text()
    fill = {"day": 0, "second": 0, "nano": 0}
    for columns, where in (
        (None, None),
        (["second", "span"], "second > '1938-05-01'"),
        (["day", "days"], "second > -999600000 and id < 9"),
        (["id", "clock"], pc.field("day") > 18100),
    ):
        options = {"columns": columns, "where": where, "fill": {n: 0 for n in fill if columns is None or n in columns}}
        (before,), (now,) = (
            Loader(str(folder / name), split="train", batch_size=9, remainder="pad", **options).numpy_epoch(0)
            for name in ("integers", "times")
        )
        assert len(before) > 1
        for name, values in before.items():
            assert kind_and_rows(now[name]) == kind_and_rows(values)


@pytest.mark.parametrize(("name", "kind"), [("integers", pa.int64()), ("times", pa.timestamp("ms"))])
def test_both_versions_are_appended_to_and_restored(folder: Path, tmp_path: Path, name: str, kind: pa.DataType) -> None:
    rows, root, more = pa.feather.read_table(folder / "rows.arrow"), tmp_path / name, tmp_path / "more.arrow"
    shutil.copytree(folder / name, root)
    pa.feather.write_feather(rows.set_column(0, "id", pc.add(rows["id"], 100)), more)
    append(source=str(more), destination=str(root), shards=2)
    dataset, before = open_dataset(str(root)), contents(root)
    for shard in dataset.shards:
        assert pq.read_schema(root / shard.path).field("second").type == kind
        assert check_meaning(dataset.storage, dataset.manifest, shard) == []
        assert reencode_shard(pa.py_buffer(before[shard.path]), dataset.manifest, shard) is not None
    (root / dataset.shards[0].path).write_bytes(before[dataset.shards[0].path] + b"added")
    (root / dataset.shards[-1].path).unlink()
    repair(str(root), originals=[Original(url=str(more))])
    assert contents(root) == before


@pytest.mark.parametrize("name", ["integers", "times"])
def test_copies_and_exports_have_times(folder: Path, tmp_path: Path, name: str) -> None:
    build(source=str(folder / name), destination=str(tmp_path / "copy"), **OPTIONS)
    for to in ("hf", "webdataset"):
        export(ExportOptions(url=str(folder / name), destination=str(tmp_path / to), to=to))
    source = pa.feather.read_table(folder / "rows.arrow").to_pylist()
    for to in ("copy", "hf"):
        table = pyarrow.dataset.dataset(sorted((tmp_path / to).glob("*.parquet"))).to_table()
        for row in table.to_pylist():
            expected = source[row["id"]] | {"old_day": datetime.combine(source[row["id"]]["old_day"], time())}
            if to == "hf":
                expected["label"] = expected["label"].toordinal() - date(2019, 4, 14).toordinal()
            assert row == expected
    labels = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]
    assert labels == {"names": ["2019-04-14", "2019-04-15"], "_type": "ClassLabel"}
    with tarfile.open(next((tmp_path / "webdataset").glob("test-*.tar"))) as tar:
        document = json.load(tar.extractfile(next(member for member in tar if member.name.endswith(".json"))))
    expected = source[document["id"]]
    assert document["day"] == str(expected["day"])
    assert document["days"] == [str(day) for day in expected["days"]]
    assert datetime.fromisoformat(document["micro"]) == expected["micro"]
    assert document["wait"] == expected["wait"].total_seconds()
