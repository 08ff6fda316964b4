"""Find damaged images inside the records of tables, archives and the like before they reach a shard.

Sources whose images are separate files check these themselves (`sources.base.CheckableSource`).
Tested in tests/sharding/prepare/screening/test_bad_records.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ringfeed.sharding.sources import Part, Source
from ringfeed.sharding.sources.base import BadRecord, CheckableSource, Reject, fail_on_bad, unwrap
from ringfeed.sharding.sources.images.image_files import ImageCheck, find_faulty_images, image_fault
from ringfeed.sharding.sources.images.image_list import URL, missing_path_record
from ringfeed.sharding.sources.ringfeed import RingfeedSource

from .record_origins import describe_origin


def image_columns(source: Source, *, stored: bool = False) -> tuple[str, ...]:
    """The columns of drafts that hold unchecked images; those of a ringfeed dataset only if `stored`."""
    base = unwrap(source)
    if isinstance(base, CheckableSource) or (isinstance(base, RingfeedSource) and not stored):
        return ()
    return tuple(f.name for f in source.schema.features if f.is_image)


def check_images(source: Source, part: Part, drafts: pa.RecordBatch, first: int) -> None:
    """Refuse damaged images among drafts, and images of a list that have no path.

    Raises:
        SourceError: an image is damaged or has no path; the message shows the first.
    """
    for urls in (drafts.column(name) for name in drafts.schema.names if name.endswith(URL)):
        for row in np.flatnonzero(urls.is_null().to_numpy(zero_copy_only=False)).tolist():
            fail_on_bad(
                missing_path_record(part.path, describe_origin(source, part, first + row, source.schema.names[0]))
            )
    for name in image_columns(source):
        for row, reason in _faulty(name, drafts, image_fault):
            place = describe_origin(source, part, first + row, name)
            fail_on_bad(BadRecord(path=part.path, place=place, reason=reason))


def faulty_records(
    source: Source, part: Part, columns: Sequence[str], fault: ImageCheck, reject: Reject
) -> Iterator[tuple[int, str]]:
    """The positions among a part's drafts of those with a bad image, and what is wrong, column by column."""
    first = 0
    for drafts in source.drafts(part, reject) if columns else ():
        for name in columns:
            yield from ((first + row, reason) for row, reason in _faulty(name, drafts, fault))
        first += drafts.num_rows


def _faulty(name: str, drafts: pa.RecordBatch, fault: ImageCheck) -> Iterator[tuple[int, str]]:
    for row, reason in find_faulty_images(drafts.column(name), fault):
        yield row, f"the image in column {name!r} {reason}"
