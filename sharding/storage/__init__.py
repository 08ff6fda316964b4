"""Read and write files on local disk, S3, HDFS and HTTP: whole, checked, retried."""

__all__: list[str] = []
