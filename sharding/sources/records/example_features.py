"""Infers the features of `tf.train.Example` records, and converts their values to Arrow columns.

Tested in tests/sharding/sources/records/test_tfrecord.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.formats.example_columns import FeatureValues, ParsedExamples
from ringfeed.sharding.schema import Feature, insert_nulls, to_lists

_MAX_FEATURES = 10_000
_HEAD_BYTES = 12
_DTYPES = {"int64": "int64", "float": "float32"}

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def is_image(head: bytes) -> bool:
    """Whether the first 12 bytes of a file are those of a JPEG, PNG, GIF, BMP or WebP image.

    >>> is_image(bytes.fromhex("ffd8ffe000104a4649460001")), is_image(b"hello, world")
    (True, False)
    """
    return head.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")) or (
        head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    )


class FeatureTypes:
    """The narrowest type of each feature that holds all its values, found block by block.

    Args:
        declared: features whose types are not inferred, by name.

    Attributes:
        empty: whether no record was added yet.
    """

    def __init__(self, declared: Mapping[str, Feature]) -> None:
        self._declared = declared
        self._values: dict[str, _FeatureValues] = {}
        self.empty = True

    def add(self, parsed: ParsedExamples, path: str, numbers: Int64) -> None:
        """Widen the types by a block of records.

        Args:
            parsed: parsed records.
            path: path of their file, for errors.

        Raises:
            SourceError: a feature's kinds differ, or there are too many features.
        """
        self.empty = self.empty and not len(parsed.kept)
        for name, columns in parsed.columns.items():
            known = self._values.setdefault(name, _FeatureValues(name))
            if name not in self._declared:
                for values in columns:
                    if len(values.rows):
                        known.add(values, f"{path}: record {numbers[values.rows[0]]}")
        if len(self._values) > _MAX_FEATURES:
            raise SourceError(
                f"{path}: the records have more than {_MAX_FEATURES:,} different features; store values whose names "
                "differ from record to record as lists"
            )

    def features(self, path: str) -> tuple[Feature, ...]:
        """Return all features, sorted by name.

        Raises:
            SourceError: no record has a feature, or none has a declared one.
        """
        if not self._values:
            raise SourceError(f"{path}: the records hold no features; expected tf.train.Example messages with some")
        for name in self._declared:
            if name not in self._values:
                raise SourceError(
                    f"{path}: no record has the feature {name!r} whose type was given; there are: "
                    + ", ".join(sorted(self._values)[:20])
                )
        return tuple(self._declared.get(name) or known.feature() for name, known in sorted(self._values.items()))


class _FeatureValues:
    """A summary of the values of one feature."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = self.place = ""
        self.fewest, self.most = 1 << 62, 0
        self.text = self.image = True

    def add(self, values: FeatureValues, place: str) -> None:
        if self.kind not in ("", values.kind):
            raise SourceError(
                f"{place}: the feature {self.name!r} holds {values.kind} values, but {self.kind} values in "
                f"{self.place}; write the same type in all records"
            )
        self.place = self.place or place
        self.kind = values.kind
        counts = values.counts()
        self.fewest, self.most = min(self.fewest, int(counts.min())), max(self.most, int(counts.max()))
        if self.kind == "bytes" and (self.text or self.image):
            texts, _ = values.texts()
            self.text = self.text and _are_text(texts)
            heads = pc.binary_slice(texts, 0, _HEAD_BYTES).to_pylist() if self.image else ()
            self.image = self.image and all(map(is_image, heads))

    def feature(self) -> Feature:
        shape: tuple[int | None, ...] = () if self.fewest == self.most == 1 else (None,)
        if self.fewest == self.most > 1:
            shape = (self.most,)
        if self.kind in _DTYPES:
            return Feature(name=self.name, dtype=_DTYPES[self.kind], shape=shape)
        if not self.kind:  # named, but always empty
            return Feature(name=self.name, dtype="string")
        if self.text:
            return Feature(name=self.name, dtype="string", shape=shape)
        image = self.image and shape == ()
        return Feature(name=self.name, dtype="binary", shape=shape, encoding="image" if image else "")


def _are_text(values: pa.BinaryArray) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def column_of(feature: Feature, columns: Sequence[FeatureValues], rows: int) -> tuple[pa.Array, dict[int, str]]:
    """Convert the values of a feature to a column.

    Numbers may take another type that holds each of them exactly, and bytes that of the little-endian elements of a
    tensor.

    Args:
        columns: values of the feature, one entry for each kind of values that it has.
        rows: number of records.

    Returns:
        The column, null where a record lacks the feature or does not fit; and what is wrong with each record that does
        not fit, by row.
    """
    wrong: dict[int, str] = {}
    pieces: list[tuple[Int64, Int64, pa.Array]] = []
    for values in columns:
        flat, counts, fits, reason = _convert(values, feature)
        expected = feature.elements
        sized = np.ones(len(counts), bool) if expected is None else counts == expected
        for row, count in zip(values.rows[fits & ~sized].tolist(), counts[fits & ~sized].tolist(), strict=True):
            wrong[row] = f"the feature {feature.name!r} has {count} values, not {expected}"
        wrong.update(dict.fromkeys(values.rows[~fits].tolist(), f"the feature {feature.name!r} {reason}"))
        keep = fits & sized
        flat = flat if keep.all() else flat.filter(pa.array(np.repeat(keep, counts)))
        pieces.append((values.rows[keep], counts[keep], flat))
    return _assemble(feature, pieces, rows), wrong


def _convert(values: FeatureValues, feature: Feature) -> tuple[pa.Array, Int64, Bool, str]:
    """Return all elements, how many each record has, which records fit, and why the others do not."""
    if values.kind == "bytes" and feature.numeric:
        return _convert_raw(values, feature)
    if values.kind == "bytes":
        texts, counts = values.texts()
        if feature.dtype == "binary":
            return texts, counts, np.ones(len(counts), bool), ""
        good = np.ones(len(texts), bool)
        if not _are_text(texts):
            good[:] = [_are_text(texts.slice(i, 1)) for i in range(len(texts))]
            texts = pc.if_else(pa.array(good), texts, pa.scalar(b"", pa.binary()))
        return texts.cast(pa.string()), counts, _by_record(good, counts), "is not UTF-8"
    numbers, counts = values.numbers()
    if not feature.numeric or (values.kind == "float" and not feature.dtype.startswith("float")):
        none = pa.nulls(len(numbers), feature.primitive)
        return none, counts, np.zeros(len(counts), bool), f"holds {values.kind} values, not {feature.dtype}"
    with np.errstate(over="ignore"):
        converted = numbers.astype(feature.dtype)
    good = np.asarray(converted.astype(numbers.dtype) == numbers)
    if values.kind == "float":
        good |= np.isnan(numbers.astype(np.float32))
    return pa.array(converted), counts, _by_record(good, counts), f"has a value that {feature.dtype} does not hold"


def _convert_raw(values: FeatureValues, feature: Feature) -> tuple[pa.Array, Int64, Bool, str]:
    """Convert little-endian elements, stored as one bytes value a record, as ringfeed writes some features."""
    dtype = np.dtype(feature.dtype).newbyteorder("<")
    texts, counts = values.texts()
    lengths = np.zeros(len(counts), np.int64)
    single = counts == 1
    lengths[single] = (values.ends - values.starts)[np.repeat(single, counts)]
    fits = single & (lengths % dtype.itemsize == 0)
    chosen = texts.filter(pa.array(np.repeat(fits, counts)))
    flat = np.frombuffer(b"".join(chosen.to_pylist()), dtype).astype(feature.dtype, copy=False)
    elements = np.where(fits, lengths // dtype.itemsize, 0)
    return pa.array(flat), elements, fits, f"is no run of {feature.dtype} elements"


def _by_record(good: Bool, counts: Int64) -> Bool:
    """Return for each record whether all of its values are good."""
    bad = np.zeros(len(counts), bool)
    if good.all():
        return ~bad
    bad[np.repeat(np.arange(len(counts)), counts)[~good]] = True
    return ~bad


def _assemble(feature: Feature, pieces: Sequence[tuple[Int64, Int64, pa.Array]], rows: int) -> pa.Array:
    none = np.empty(0, np.int64)
    present, counts = (np.concatenate([none, *(piece[i] for piece in pieces)]) for i in (0, 1))
    flat = pa.concat_arrays([pa.nulls(0, feature.primitive), *(piece[2] for piece in pieces)])
    absent = np.ones(rows, bool)
    absent[present] = False
    if (np.diff(present) < 0).any():  # values of two kinds, whose rows interleave
        order = np.argsort(present)
        starts = (np.cumsum(counts) - counts)[order]
        counts = counts[order]
        flat = flat.take(pa.array(np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())))
        present = present[order]
    if feature.elements is None:
        lengths = np.zeros(rows, np.int64)
        lengths[present] = counts
        return to_lists(flat, lengths, pa.array(absent) if absent.any() else None)
    values = flat if feature.shape == () else pa.FixedSizeListArray.from_arrays(flat, feature.elements)
    return insert_nulls(values, pa.array(~absent))
