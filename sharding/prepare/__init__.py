"""Prepare records before they are sharded: steps as values, and the sources that apply them."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
