"""Build a dataset, or append to one: options, plan, tasks, writing."""

__all__: list[str] = []
