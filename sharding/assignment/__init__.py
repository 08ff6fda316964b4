"""Assign each record to a split and a shard."""

__all__: list[str] = []
