"""What the measurements mean: the bottleneck, the figures that show it, and what an option would gain."""

__all__: list[str] = []
