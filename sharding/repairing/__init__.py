"""Repair of a damaged dataset: restore files, rebuild shards from their sources, salvage intact records."""

__all__: list[str] = []
