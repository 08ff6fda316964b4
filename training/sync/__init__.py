"""How ranks are kept in step: in every step or in rounds, and what they send."""

__all__: list[str] = []
