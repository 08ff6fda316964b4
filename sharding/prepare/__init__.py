"""Prepare records before they are sharded: steps as values, and the sources that apply them.

Tested in tests/sharding/prepare/test_steps.py.
"""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
