"""When an elastic run replaces ranks that died, and how many ranks it goes on with."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field

from ringfeed.sharding.errors import StorageError
from ringfeed.sharding.storage.retry import RetryPolicy
from ringfeed.training.checkpoint.store import CheckpointStore

_TRIES = 3  # without a new checkpoint, or of one place
_SHORT_SECONDS = 60.0  # a rank that lived this long in a ring was worth its start


@dataclass(slots=True, kw_only=True)
class Restarts:
    """The failures of a run since its newest checkpoint, and those in each place soon after a rank took it."""

    ranks: int  # number of ranks, which failures lower
    least: int  # fewest ranks to go on with
    url: str  # where the checkpoints are
    _failures: int = 0
    _newest: str = ""
    _step: int = -1
    _short_lives: dict[Hashable, int] = field(default_factory=dict)

    def after_failure(
        self, line: str, step: int = -1, slot: Hashable = 0, lived_seconds: float = _SHORT_SECONDS
    ) -> str | None:
        """Count a failure, `line`, and decide on the number of ranks; return why the run ends, or None if it goes on.

        Three in a row without progress cost a rank: the newest commit among the ranks that live is of `step`, or -1. So
        do three of one slot, each soon after its rank joined a ring: the progress of the others would hide them.
        """
        newest = self._newest
        with suppress(StorageError):  # the ranks notice themselves that their store is gone
            newest = max(CheckpointStore(self.url, retries=RetryPolicy(attempts=1)).names(), default="")
        self._failures = 1 if newest != self._newest or step > self._step else self._failures + 1
        self._newest, self._step = newest, max(step, self._step)
        is_short = lived_seconds < _SHORT_SECONDS
        self._short_lives[slot] = self._short_lives.get(slot, 0) + 1 if is_short else 0
        if max(self._failures, self._short_lives[slot]) < _TRIES:
            return None
        how = f"without a new checkpoint in {self.url}"
        if self._failures < _TRIES:
            how = f"within {_SHORT_SECONDS:.0f} s of a start in this place"
        self._failures = self._short_lives[slot] = 0
        if self.ranks <= self.least:  # a file of hosts may ask for fewer
            return f"{line}; this was failure {_TRIES} in a row {how}"
        self.ranks -= 1
        return None
