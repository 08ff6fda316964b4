"""Read image files as records: class folders and image lists."""

__all__: list[str] = []
