"""Keras' own `fit` on the ranks of a ring.

Tested in tests/training/keras/test_keras.py.
"""

from .optimizer import distribute
from .synchronise import Synchronise

__all__ = ["Synchronise", "distribute"]
