"""What a run keeps, and goes on from: commits, checkpoints, the best of them, and outputs."""

__all__: list[str] = []
