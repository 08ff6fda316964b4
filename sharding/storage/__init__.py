"""Reads and writes whole files on local disk, S3, HDFS and HTTP, with checks and retries."""

__all__: list[str] = []
