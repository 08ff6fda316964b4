"""Select the columns and the records that a loader delivers."""

__all__: list[str] = []
