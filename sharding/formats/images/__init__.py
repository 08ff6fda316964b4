"""Image files: their types, headers and sizes, and statistics of their pixels."""

__all__: list[str] = []
