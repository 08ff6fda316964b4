"""Does without the kernels, as where they were not compiled."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringfeed.sharding.compute import kernels


@contextmanager
def without_kernels() -> Iterator[None]:
    """Use what stands in for the kernels in the body."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_library", None)
        yield
