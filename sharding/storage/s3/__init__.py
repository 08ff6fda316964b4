"""Read and write S3: faster clients, multipart uploads, timeouts."""

__all__: list[str] = []
