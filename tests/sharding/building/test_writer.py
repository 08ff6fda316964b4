"""`Writer`: takes records one after the other, and builds as `build` does."""

from pathlib import Path
from typing import Any

import pytest

from ringfeed.sharding import ConfigError, DestinationError, SourceError, Writer, build, open_dataset
from tests.helpers.files import contents

RECORDS: list[dict[str, Any]] = [{"id": i, "label": "ab"[i % 2]} for i in range(40)]
HOW: dict[str, Any] = {"label": "label", "shards": 2, "split": {"train": 0.75, "test": 0.25}}


def test_records_become_the_dataset_that_a_build_writes(tmp_path: Path) -> None:
    with Writer(tmp_path / "out", **HOW) as writer:
        for record in RECORDS:
            writer.write(record)
        assert not (tmp_path / "out").exists()
    build(source=RECORDS, destination=tmp_path / "built", **HOW)
    assert contents(tmp_path / "out") == contents(tmp_path / "built")
    assert writer.manifest == open_dataset(str(tmp_path / "out")).manifest
    writer.close()
    with pytest.raises(ConfigError, match="this Writer is closed"):
        writer.write(RECORDS[0])


def test_nothing_is_written_if_the_body_raises(nothing_left: Path, spill_folder: Path) -> None:
    def write(*records: Any) -> None:
        with Writer(nothing_left, **HOW) as writer:
            for number, record in enumerate(records):
                writer.write(record)
                assert number == 0, "the second record is refused at its own line"

    with pytest.raises(AssertionError, match="the second record"):
        write(*RECORDS[:2])
    with pytest.raises(SourceError, match="record 1: the column 'label' has a value of type set"):
        write(RECORDS[0], {"id": 1, "label": {1}})
    with pytest.raises(SourceError, match="data in memory holds no records"):
        write()
    assert list(spill_folder.iterdir()) == []


def test_the_destination_is_checked_before_the_first_record(tmp_path: Path) -> None:
    build(source=RECORDS, destination=tmp_path / "out", **HOW)
    with pytest.raises(DestinationError, match="already holds a dataset"):
        Writer(tmp_path / "out", **HOW)
    with Writer(tmp_path / "out", overwrite=True) as writer:
        writer.write({"x": 1})
        writer.write({"x": 2})
    assert open_dataset(str(tmp_path / "out")).manifest.records == 2
    with pytest.raises(ConfigError, match="shards must be at least 1, got 0"):
        Writer(tmp_path / "new", shards=0)
