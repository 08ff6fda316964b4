"""From measurements to a named bottleneck: of a loader, of training, of a run."""

__all__: list[str] = []
