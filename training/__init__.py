"""Trains from batches to a model: optimizers, schedules, precision, ranks and checkpoints."""

from lazy_loader import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
