"""Count the work of each stage of the loader, and export the counters."""

__all__: list[str] = []
