"""ORC files; what they share with other tables is in test_sources_tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import orc

from ringfeed.sharding.sources import open_source
from ringfeed.sharding.sources import orc as module
from tests.sharding.test_sources_tables import labels, records


@pytest.mark.parametrize("compression", ["uncompressed", "zlib", "zstd"])
def test_a_part_is_a_run_of_stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    rows = 60_000
    numbers = np.random.default_rng(0).integers(0, 2**60, rows)
    table = pa.table({"x": numbers, "label": pa.array(["a", "b"] * (rows // 2))})
    orc.write_table(table, tmp_path / "x.orc", stripe_size=1 << 16, compression=compression, batch_size=1000)
    stripes = orc.ORCFile(tmp_path / "x.orc").nstripes
    monkeypatch.setattr(module, "_PART_ROWS", rows // 2)
    source = open_source(str(tmp_path), "label")
    assert stripes > 2
    assert len(source.parts) == 2
    assert [part.first_record for part in source.parts] == [0, source.parts[0].pieces[2]]
    unlabelled = open_source(str(tmp_path), None)
    counts = [len(batch) for part in unlabelled.parts for batch in unlabelled.labels(part)]
    assert counts == [part.pieces[2] for part in source.parts]
    assert records(source) == table.to_pylist()
    assert labels(source) == table.column("label").to_pylist()


def test_times_keep_their_values(tmp_path: Path) -> None:
    table = pa.table(
        {"when": pa.array([0, None, 10**15], pa.timestamp("us")), "day": pa.array([1, 2, None], pa.date32())}
    )
    orc.write_table(table, tmp_path / "x.orc")
    source = open_source(str(tmp_path), None)
    assert (source.schema["when"].logical, source.schema["day"].logical) == ("timestamp[ns]", "date32[day]")
    assert records(source) == [{"when": 0, "day": 1}, {"when": None, "day": 2}, {"when": 10**18, "day": None}]
