"""Run the tasks of a build: on local processes, Dask or Ray, within a memory limit."""

__all__: list[str] = []
