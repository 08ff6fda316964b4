"""Repair of a damaged dataset: restore files, rebuild shards from their sources, salvage intact records.

Tested in tests/sharding/repairing/test_repair.py.
"""

__all__: list[str] = []
