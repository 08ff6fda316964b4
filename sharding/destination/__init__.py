"""What a build writes at its destination besides the dataset: draft, journal, spill files, leftovers."""

__all__: list[str] = []
