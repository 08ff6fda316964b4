"""The command line: `ringfeed` and `shard-dataset`, with the profiler, the doctor and the Horovod installer."""

__all__: list[str] = []
