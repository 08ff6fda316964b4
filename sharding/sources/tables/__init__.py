"""Read table files: Parquet, Arrow IPC, ORC."""

__all__: list[str] = []
