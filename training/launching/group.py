"""Which ranks of an elastic run make up the next ring, and when: decisions alone, which the launcher carries out.

A process starts, waits for a place, joins a ring, and trains. When a rank dies, the others come back to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto


class Phase(Enum):
    """What a process does."""

    STARTING = auto()
    WAITING = auto()
    JOINING = auto()
    TRAINING = auto()
    LEAVING = auto()


_IN_RING = (Phase.JOINING, Phase.TRAINING)


@dataclass(slots=True, kw_only=True)
class ElasticRank:
    """A process of the run."""

    host: str = ""  # name of its host
    slot: int  # its number on its host for life; it selects its GPU
    phase: Phase = Phase.STARTING  # what it does
    step: int = -1  # of its newest commit; -1: none
    rank: int = -1  # its rank in the last ring; -1 before the first
    joined: float | None = None  # clock in seconds at which it first joined a ring; None before

    @property
    def name(self) -> int:
        """The number by which users know it: its rank, or the one that it will probably have."""
        return self.rank if self.rank >= 0 else self.slot


@dataclass(slots=True, kw_only=True)
class Group:
    """The living processes of a run, by a number that is never used again."""

    wanted: int  # number of ranks
    least: int  # fewest ranks to train with
    hosts: Mapping[str, int]  # number of ranks that each host takes, by its name
    members: dict[int, ElasticRank] = field(default_factory=dict)
    resting: Set[str] = frozenset()  # hosts that are not tried now

    def of(self, *phases: Phase) -> list[int]:
        """Return the numbers of the processes in some phases."""
        return [number for number, member in self.members.items() if member.phase in phases]

    @property
    def missing(self) -> int:
        missing = self.wanted - sum(map(self.has_place, self.members.values()))
        return max(0, min(missing, sum(map(self._room, self.hosts))))

    def has_place(self, member: ElasticRank) -> bool:
        """Return whether a process stays: its host may not be wanted any more."""
        return member.phase is not Phase.LEAVING and member.slot < self.hosts.get(member.host, 0)

    def _taken(self, host: str) -> set[int]:
        return {m.slot for m in self.members.values() if m.host == host and m.phase is not Phase.LEAVING}

    def _room(self, host: str) -> int:
        return 0 if host in self.resting else max(0, self.hosts[host] - len(self._taken(host)))

    def free_host(self) -> str:
        """Return the first host that takes another process; `missing` says that there is one."""
        return next(host for host in self.hosts if self._room(host))

    def free_slot(self, host: str) -> int:
        """Return the lowest slot that no process has which stays: a host has a GPU for each rank that is wanted."""
        taken = self._taken(host)
        return next(slot for slot in range(len(taken) + 1) if slot not in taken)

    def next_ring(self) -> list[int]:
        """Return the processes that make up the next ring, in the order of their ranks; none if it is not yet time.

        Rank 0 has the newest commit, and the ranks of a host are side by side. Survivors wait for no newcomer; a run
        without any waits for all ranks.
        """
        if self.of(*_IN_RING):
            return []
        waiting = [number for number in self.of(Phase.WAITING) if self.has_place(self.members[number])]
        has_survivors = any(self.members[number].rank >= 0 for number in waiting)
        if self.of(Phase.STARTING) and (not has_survivors or len(waiting) < self.least):
            return []
        ranks = {number: self.members[number].rank % 2**32 for number in waiting}  # newcomers last
        ring = sorted(waiting, key=lambda number: (-self.members[number].step, ranks[number], number))[: self.wanted]
        hosts = list(dict.fromkeys(self.members[number].host for number in ring))
        return sorted(ring, key=lambda number: hosts.index(self.members[number].host))

    def is_change_due(self) -> bool:
        """Whether the ring shall end for another one: a newcomer is ready, or there are too many ranks."""
        ring = self.of(*_IN_RING)
        if not ring or self.of(Phase.JOINING):
            return False
        is_surplus = len(ring) > self.wanted or not all(self.has_place(self.members[number]) for number in ring)
        return is_surplus or (len(ring) < self.wanted and bool(self.of(Phase.WAITING)))
