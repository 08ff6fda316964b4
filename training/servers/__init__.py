"""Runs on parameter servers: the chief, its workers and the servers."""

__all__: list[str] = []
