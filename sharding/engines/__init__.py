"""Run the tasks of a build: on local processes, Dask or Ray, within a memory limit.

Tested in tests/sharding/engines/test_engine.py.
"""

__all__: list[str] = []
