"""Build a dataset or append to one: options, planning, tasks, writing."""

__all__: list[str] = []
