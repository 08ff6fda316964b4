"""What people see of results: text, tables, plots, pages, traces."""

__all__: list[str] = []
