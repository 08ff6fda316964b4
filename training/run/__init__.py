"""The training loop: loaders, the step, reports and outputs."""

__all__: list[str] = []
