"""Keras' own `fit` on the ranks of a ring."""

from .optimizer import distribute
from .synchronise import Synchronise

__all__ = ["Synchronise", "distribute"]
