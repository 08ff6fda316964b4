"""Batches are cut into slices of bounded rows and bytes."""

import pyarrow as pa
import pytest

from ringfeed.sharding.compute import batches


@pytest.mark.parametrize(("rows", "expected"), [(0, []), (5, [5]), (10, [5, 5]), (11, [4, 4, 3])])
def test_slices_are_about_equal(rows: int, expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 5)
    batch = pa.record_batch({"x": pa.array(range(rows), pa.int8())})
    assert [piece.num_rows for piece in batches.slice_batch(batch)] == expected


def test_a_dictionary_is_measured_by_its_decoded_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    batch = pa.record_batch({"x": pa.array(["x" * 100, "y" * 100] * 50).dictionary_encode()})
    assert len(list(batches.slice_batch(batch))) == 10
