"""Balanced shards in, batches out, models trained on a ring: the names that most programs need.

>>> import ringfeed
>>> loader = ringfeed.Loader("flights", split="train", batch_size=64)
>>> len(loader)
5

All others are in `ringfeed.sharding`, `ringfeed.pipeline`, `ringfeed.training` and `ringfeed.tools`. Nothing is
imported before it is used: sharding needs no TensorFlow.
"""

from typing import Any

from lazy_loader import attach_stub

_named, __dir__, __all__ = attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("ringfeed")
    return _named(name)
