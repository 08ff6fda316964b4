"""The built-in networks, one idea a file."""

__all__: list[str] = []
