"""Repair a damaged dataset: rebuild shards from their source, or salvage intact records."""

__all__: list[str] = []
