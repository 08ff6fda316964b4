"""Evaluation, exact over all ranks."""

__all__: list[str] = []
