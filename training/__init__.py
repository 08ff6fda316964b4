"""Trains from batches to a model: optimizers, schedules, precision, ranks and checkpoints."""

from ringfeed.pipeline.deliver.quiet_tensorflow import attach_quietly

__getattr__, __dir__, __all__ = attach_quietly(__name__, __file__)
