"""A pytest plugin: tests use the kernels in the library that `SANITIZED_KERNELS` names."""

import os
from types import SimpleNamespace

import pytest

from ringfeed.sharding.compute import kernels


def pytest_configure(config: pytest.Config) -> None:
    """Load the library in place of the compiled module."""
    origin = os.environ["SANITIZED_KERNELS"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "find_spec", lambda *_: SimpleNamespace(origin=origin))
        kernels._library, kernels._extend_crc = kernels._load()
    assert kernels._library is not None
    assert kernels._library._name == origin
