"""Reads and writes S3: faster clients, multipart uploads, time limits."""

__all__: list[str] = []
