"""Choose the columns and the records that a loader gives."""

__all__: list[str] = []
