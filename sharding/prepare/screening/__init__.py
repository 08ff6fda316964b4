"""Find the records that a build leaves out: bad records, bad images, duplicates."""

__all__: list[str] = []
