"""Networks, the preprocessing that feeds them, and losses."""

__all__: list[str] = []
