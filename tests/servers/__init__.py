"""Real storage servers for the tests: an S3 (SeaweedFS) and an HDFS (NameNode and DataNode), on 127.0.0.1."""
