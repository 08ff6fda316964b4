"""Averages over ranks, and over steps."""

__all__: list[str] = []
