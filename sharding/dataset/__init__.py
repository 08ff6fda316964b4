"""The files of a finished dataset: manifest, shard table, shard indexes, companion files."""

__all__: list[str] = []
