"""What is brought in before it is needed: of all streams the windows needed soonest, up to a number of bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["PrefetchBudget", "PrefetchingStream", "UpcomingWindow"]

_AT_ONCE = 32  # windows that are begun at a time: with small shards, bytes alone would hold up the first batch


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingWindow:
    """The next window that a stream may ask for.

    Attributes:
        step: that needs it first.
        size: bytes of its shards' files.
    """

    step: int
    size: int


class PrefetchingStream(Protocol):
    """A stream, as far as it looks ahead."""

    @property
    def upcoming(self) -> UpcomingWindow | None:
        """The first window that was not asked for yet; None behind the last."""

    def ask(self) -> None:
        """Ask for it."""


class PrefetchBudget:
    """The bytes that all streams of a rank hold ahead of need. For one thread.

    What is needed now is asked for whatever is held; what comes later waits until it fits the limit. So memory is
    bounded by the windows that are open and the limit.

    Args:
        limit_bytes: ahead of need, at most; 0 for none.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._streams: list[PrefetchingStream] = []

    def add(self, stream: PrefetchingStream) -> None:
        """One more stream that looks ahead."""
        self._streams.append(stream)

    def release(self, size: int) -> None:
        """So many bytes are needed now, or never any more."""
        self._held_bytes -= size

    def fill(self) -> None:
        """Let streams ask for what is needed soonest, while it fits."""
        for _ in range(_AT_ONCE):
            self._streams = [stream for stream in self._streams if stream.upcoming is not None]
            waiting = [(up.step, number) for number, stream in enumerate(self._streams) if (up := stream.upcoming)]
            if not waiting:
                return
            stream = self._streams[min(waiting)[1]]
            size = stream.upcoming.size if stream.upcoming else 0
            if self._held_bytes + size > self._limit_bytes:
                return
            self._held_bytes += size
            stream.ask()
