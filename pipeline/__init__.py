"""Reads batches from shards: which sample goes to which rank at which step, and how its bytes get there."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
