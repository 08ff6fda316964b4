"""The ranks of each host.

Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringfeed.sharding.errors import ConfigError

__all__ = ["host_groups"]


def host_groups(hosts: Sequence[str]) -> list[list[int]]:
    """Return the ranks of each host, of which the first leads; a ConfigError if there are no two levels.

    >>> host_groups(["a", "b", "a", "b", "c"])
    [[0, 2], [1, 3], [4]]
    """
    groups: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        groups.setdefault(host, []).append(rank)
    if len(groups) == 1 or len(groups) == len(hosts):
        count = "one host" if len(groups) == 1 else "one rank on each host"
        raise ConfigError(
            f"sync.hierarchical=true needs several hosts, and several ranks on one of them, got {len(hosts)} ranks and "
            f"{count}; use sync.hierarchical=false"
        )
    return list(groups.values())
