"""The two levels of a hierarchical ring; tests/training/sync/compression/test_methods.py trains on one."""

from __future__ import annotations

import pytest

from ringfeed.sharding.errors import ConfigError
from ringfeed.training.ring.world import host_groups


@pytest.mark.parametrize(("hosts", "count"), [(["a", "a"], "one host"), (["a", "b"], "one rank on each host")])
def test_a_ring_without_two_levels_is_refused(hosts: list[str], count: str) -> None:
    with pytest.raises(ConfigError, match=f"sync.hierarchical=true needs .*, got 2 ranks and {count}; use"):
        host_groups(hosts)
