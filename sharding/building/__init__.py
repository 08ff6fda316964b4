"""Build a dataset or append to one: options, planning, tasks, writing.

Tested in tests/sharding/building/test_build.py.
"""

__all__: list[str] = []
