"""Leave out bad records, damaged images and duplicates before anything is counted."""

__all__: list[str] = []
