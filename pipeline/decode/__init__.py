"""Decode the bytes of a shard into columns of NumPy and Arrow arrays."""

__all__: list[str] = []
