"""Sources of image files: folders of classes, and lists of images."""

__all__: list[str] = []
