"""Sources of text files, CSV and JSON Lines, whose types are inferred."""

__all__: list[str] = []
