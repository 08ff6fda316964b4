"""Plan an epoch: which record comes at which position. Pure arithmetic, no I/O."""

__all__: list[str] = []
