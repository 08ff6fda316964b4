"""The files of a finished dataset: manifest, shard table, shard indexes, companions."""

__all__: list[str] = []
