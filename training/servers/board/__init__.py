"""The chief's board of a run on parameter servers: who takes which step, and who stands still."""

__all__: list[str] = []
