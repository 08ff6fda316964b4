"""Count what each stage of the loader did, and export the counts."""

__all__: list[str] = []
