"""The files of a source: listed, opened, and watched for changes."""

__all__: list[str] = []
