"""Read the records of a rank in the planned order, window by window."""

__all__: list[str] = []
