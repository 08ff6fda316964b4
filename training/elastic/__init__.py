"""The life of a rank in an elastic run: its place among the ranks, and the rings that it trains in."""

__all__: list[str] = []
