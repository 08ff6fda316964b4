"""Small helpers for all packages: validation, checksums, YAML, streamed JSON, locks."""

__all__: list[str] = []
