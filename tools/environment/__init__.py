"""The installed environment: `ringfeed doctor` examines it, `ringfeed install-horovod` adds Horovod."""

__all__: list[str] = []
