"""Trained models: opened with their preprocessing, exported for other programs, and applied to datasets."""

__all__: list[str] = []
