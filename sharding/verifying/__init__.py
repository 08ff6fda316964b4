"""Check every byte of a dataset, and locate what is damaged."""

__all__: list[str] = []
