"""Checkpoints: what a run needs to resume, on any storage that fsspec opens."""

__all__: list[str] = []
