"""The public API: builds, checks, repairs and exports sharded datasets, without TensorFlow."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
