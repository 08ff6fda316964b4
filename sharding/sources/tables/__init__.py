"""Sources of tables: Parquet, Arrow IPC, ORC."""

__all__: list[str] = []
