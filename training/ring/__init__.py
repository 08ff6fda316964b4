"""The ranks of a run and their collectives."""

__all__: list[str] = []
