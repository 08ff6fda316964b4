"""Find, list and open the files of a source."""

__all__: list[str] = []
