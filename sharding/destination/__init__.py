"""What a build leaves at its destination on the way: draft, journal, spill, leftovers."""

__all__: list[str] = []
