"""The command line: `ringfeed` and `shard-dataset`, the profiler, the doctor and the Horovod installer."""

__all__: list[str] = []
