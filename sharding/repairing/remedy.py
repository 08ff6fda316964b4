"""What a repair does for each file, and what it cannot bring back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringfeed.sharding.dataset.manifest import LostRecords, ShardInfo

MISPLACED = ".misplaced"  # suffix of a file that is being moved to its own path


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What is done for one file.

    Attributes:
        path: path of the file.
        action: ``rewrite``: its bytes are restored; ``move``, ``copy``: its bytes are in the file `origin`;
            ``rebuild``: its bytes are rebuilt from a source; ``salvage``: its intact records go to a new file;
            ``remove``: nothing of it is left, or needed; ``leave``: it stays, until a repair is given its source.
        how: the same in words.
        origin: path of the file that holds its bytes.

    >>> from ringfeed.sharding import plan_repair
    >>> from pathlib import Path
    >>> shard = sorted(Path("flights").glob("train-*.tfrecord"))[0]
    >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
    >>> [remedy.action for remedy in plan_repair("flights").remedies]
    ['rewrite']
    """

    path: str
    action: str
    how: str
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A shard that cannot be restored, and its records that can be kept."""

    shard: ShardInfo  # the shard as it was written
    replacement: ShardInfo | None  # shard that replaces it; None if no record is intact

    @property
    def lost(self) -> LostRecords:
        """The records missing from the replacement."""
        kept = (0,) * len(self.shard.class_counts) if self.replacement is None else self.replacement.class_counts
        return LostRecords(
            split=self.shard.split,
            path=self.shard.path,
            records=self.shard.records - (0 if self.replacement is None else self.replacement.records),
            class_counts=tuple(before - after for before, after in zip(self.shard.class_counts, kept, strict=True)),
        )


def remaining_shards(shards: Sequence[ShardInfo], losses: Sequence[Loss]) -> list[ShardInfo]:
    """Return the shards, with damaged ones replaced, or left out if they have no replacement."""
    by_path = {loss.shard.path: loss.replacement for loss in losses}
    return [new for shard in shards if (new := by_path.get(shard.path, shard)) is not None]


def rewrite(path: str, how: str) -> Remedy:
    """Return the remedy of a file whose bytes are restored."""
    return Remedy(path=path, action="rewrite", how=how)
