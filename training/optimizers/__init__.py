"""Optimizers, and the precision of their steps."""

__all__: list[str] = []
