"""From the bytes of a shard to columns of NumPy arrays."""

__all__: list[str] = []
