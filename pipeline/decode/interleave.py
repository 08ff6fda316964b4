"""Joins the samples that a rank gathered from its streams into whole batches.

Tested in tests/pipeline/decode/test_row_views.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ringfeed.pipeline.select.sample_columns import FRAMES
from ringfeed.sharding.formats.example_encode import RecordLayout
from ringfeed.sharding.schema import Schema

from .buffer_pool import BufferPool, empty_aligned
from .class_labels import ClassLabels
from .columns import Columns, concat_columns, take_columns
from .row_views import RowViews
from .tfrecord_frames import decode_frames, decode_row_views


def interleave(
    parts: Sequence[Columns],
    widths: Sequence[int],
    steps: int,
    schema: Schema,
    layout: RecordLayout | None,
    pool: BufferPool | None = None,
    labels: ClassLabels | None = None,
) -> Columns:
    """Join the streams' samples step by step, and decode TFRecord frames that share a layout.

    Args:
        parts: columns of each stream, ``steps * width`` rows, step after step.
        widths: samples of each stream in a step.
        schema: the features delivered.
        layout: their layout in the records, if all records share one.
        pool: memory for the result, or None.
        labels: labels that were not read, or None.

    Returns:
        Columns of ``steps * sum(widths)`` rows, step after step.
    """
    result: dict[str, Any] = {}
    arrow: list[dict[str, Any]] = [{} for _ in parts]
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        if any(isinstance(own, RowViews) for own in values):
            rows = RowViews.side_by_side(values, steps)
            if name == FRAMES and layout is not None:
                result |= decode_row_views(rows, schema, layout, pool)
            else:
                result[name] = rows.copy(pool)
        elif isinstance(first, np.ndarray):
            pieces = [own.reshape(steps, -1, *first.shape[1:]) for own in values]
            if name == FRAMES and layout is not None:
                result |= decode_frames(pieces, schema, layout, pool)
            else:
                result[name] = _side_by_side(pieces, pool)
        else:
            for columns, own in zip(arrow, values, strict=True):
                columns[name] = own
    if arrow[0]:
        result |= take_columns(concat_columns(arrow), _interleaved_rows(widths, steps))
    return result if labels is None else labels.add_to(result)


def _side_by_side(pieces: Sequence[npt.NDArray[Any]], pool: BufferPool | None) -> npt.NDArray[Any]:
    steps, *shape = pieces[0].shape[0], *pieces[0].shape[2:]
    joined = empty_aligned((steps, sum(piece.shape[1] for piece in pieces), *shape), pieces[0].dtype, pool)
    return np.concatenate(pieces, axis=1, out=joined).reshape(-1, *shape)


def _interleaved_rows(widths: Sequence[int], steps: int) -> npt.NDArray[np.int64]:
    """For each row of the result, its number among the parts' rows, laid end to end."""
    firsts = np.cumsum([0, *widths[:-1]]) * steps
    rows = [at + np.arange(steps * width).reshape(steps, width) for at, width in zip(firsts, widths, strict=True)]
    return np.concatenate(rows, axis=1).reshape(-1)
