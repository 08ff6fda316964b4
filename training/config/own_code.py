"""The errors of a user's own code, which a configuration names as `module:function`.

Tested in tests/training/run/test_own_code.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ringfeed.sharding.errors import RingfeedError, TrainingError
from ringfeed.sharding.sources.user_code import describe_error

__all__ = ["own_code"]


@contextmanager
def own_code(key: str, name: str) -> Iterator[None]:
    """Report an error of a user's code, in the body, in one line with the place in that code.

    Errors of TensorFlow's operations pass through, such as for want of memory, but for that of a wrong argument.

    Raises:
        TrainingError: the code raised an error.
    """
    try:
        yield
    except (RingfeedError, MemoryError):
        raise
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        if "OpError" in kinds and "InvalidArgumentError" not in kinds:
            raise
        raise TrainingError(f"{key} {name}: {describe_error(error, name)}") from error
