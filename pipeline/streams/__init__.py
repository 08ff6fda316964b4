"""Read the records of a rank in the planned order, window by window.

Tested in tests/pipeline/test_loader.py.
"""

__all__: list[str] = []
