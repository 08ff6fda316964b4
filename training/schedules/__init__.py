"""Learning rates as functions of the step."""

__all__: list[str] = []
