"""Records of a run, one file per rank: where the time of each step went; and the same as Prometheus metrics."""

__all__: list[str] = []
