"""Plan an epoch: the record at each position. Pure arithmetic, no I/O."""

__all__: list[str] = []
