"""Gradients in fewer bytes: codecs of one tensor, and the synchronizers that exchange what they encode.

Tested in tests/training/sync/compression/test_codecs.py.
"""

__all__: list[str] = []
