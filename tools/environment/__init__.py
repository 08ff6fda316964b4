"""What is installed here: `ringfeed doctor` and `ringfeed install-horovod`."""

__all__: list[str] = []
