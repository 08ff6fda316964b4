"""Read text files: CSV and JSON Lines, and infer their types."""

__all__: list[str] = []
