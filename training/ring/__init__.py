"""The ranks of a run and their collectives.

Tested in tests/training/ring/test_ring.py and tests/training/sync/compression/test_methods.py.
"""

__all__: list[str] = []
