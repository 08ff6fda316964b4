"""Repair of a damaged dataset: restore files bit by bit, rebuild shards from their sources, salvage intact records."""

__all__: list[str] = []
