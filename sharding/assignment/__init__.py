"""Decide which record goes to which split and shard."""

__all__: list[str] = []
