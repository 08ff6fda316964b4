"""Small helpers that belong to no subject: checksums, option checks, YAML, streamed JSON."""

__all__: list[str] = []
