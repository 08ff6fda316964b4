"""Averages over ranks."""

__all__: list[str] = []
