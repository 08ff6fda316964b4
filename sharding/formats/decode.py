"""One serialised `tf.train.Example` to plain Python values, without TensorFlow: to look at records, not to train."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..schema import Feature, Schema
from .protobuf import read_fields, read_varints

__all__ = ["decode_example"]


def decode_example(message: bytes, schema: Schema) -> dict[str, Any]:
    """The values of one record by feature; None where it has none.

    Returns:
        Numbers, strings and bytes; tensors as nested lists of their shape.

    Raises:
        ValueError: the message is no Example.
    """
    found: dict[str, bytes] = {}
    for _, features in _fields(message):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            found[parts[1].decode()] = parts.get(2, b"")
    return {f.name: _value(found[f.name], f) if f.name in found else None for f in schema.features}


def _value(feature_message: bytes, feature: Feature) -> Any:
    ((_, body),) = _fields(feature_message)
    chunks = [chunk for _, chunk in _fields(body)]
    kind = feature.example_kind
    if kind == "bytes":
        values: list[Any] = [chunk.decode() if feature.dtype == "string" else chunk for chunk in chunks]
    elif kind == "int64":
        values = [_integer(number, feature) for number in read_varints(b"".join(chunks))]
    else:
        dtype = "<f4" if kind == "float" else np.dtype(feature.dtype).newbyteorder("<")
        values = np.frombuffer(b"".join(chunks), dtype).tolist()
    if feature.shape == ():
        return values[0]
    return np.reshape(np.array(values, object), feature.fixed_shape).tolist() if feature.fixed_shape else values


def _integer(number: int, feature: Feature) -> int | bool:
    if feature.dtype == "bool":
        return bool(number)
    return number - (1 << 64) if number >= 1 << 63 and not feature.dtype.startswith("u") else number


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each length-delimited field; there are no others in an Example that ringfeed wrote."""
    for number, value in read_fields(message):
        if isinstance(value, int):
            raise ValueError(f"expected a length-delimited field, got the integer {value} in field {number}")
        yield number, value
