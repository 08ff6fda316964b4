"""Which record of a dataset each of its seats in a mixture serves: pass after pass over all of its records.

A pass has as many draws as the dataset has records, counted over all streams in the order of the batches, so each
record is drawn once in it. The dataset's tape is cut into equal parts, one for each stream. A stream draws from its own
part; when that is exhausted before the pass ends, because the stream has had more seats than others, it draws from the
part with the most records left. All draws from a part take its records in order. So assignments depend only on earlier
draws, not on ranks or on shares to come, and ranks read their own parts but for the ends of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .seat_ledger import SeatLedger

Int64 = npt.NDArray[np.int64]
Seats = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """Draws from a dataset, int64 [draws] each."""

    passes: Int64  # number of the pass, from 0
    parts: Int64
    positions: Int64  # position in the part, in that pass


def _counted(seats: Seats, streams: int, columns: Int64, start: Int64) -> tuple[Int64, Int64, Int64]:
    """Count each stream's draws on from `start`: streams and counts of the seats in some columns; counts at the end."""
    piece = seats.shape[1] // streams
    by_stream = seats.reshape(len(seats), streams, piece)
    used = np.unique(columns // piece)
    own = by_stream[:, used].transpose(1, 0, 2)  # [streams, steps, piece]
    counts = np.cumsum(own.reshape(len(used), -1), axis=1).reshape(own.shape).transpose(1, 0, 2)
    counts = counts - 1 + start[used][:, None]
    places = np.searchsorted(used, columns // piece)
    mine = seats[:, columns]
    own_streams = np.broadcast_to(columns // piece, mine.shape)[mine]
    return own_streams, counts[:, places, columns % piece][mine], start + by_stream.sum((0, 2))


class EpochDraws:
    """Draws from a balanced dataset. Each stream moves from one of its epochs into the next by itself.

    Args:
        length: samples of a stream in an epoch of the dataset.
        served: samples of each stream so far, [streams].
    """

    def __init__(self, length: int, served: Int64) -> None:
        self._length, self._served = length, served

    def draw(self, seats: Seats, columns: Int64) -> Draws:
        """Return the draws of the seats in some columns, step after step, and count all of them.

        Args:
            seats: which seats of the global batches are the dataset's, [steps, batch].
            columns: positions in the batch, ascending.
        """
        parts, numbers, self._served = _counted(seats, len(self._served), columns, self._served)
        passes, positions = np.divmod(numbers, self._length)
        return Draws(passes=passes, parts=parts, positions=positions)


class Passes:
    """Draws from a dataset in natural order, each record once in each pass.

    Args:
        sizes: records of each part, [streams].

    >>> passes = Passes(np.array([2, 2]))
    >>> drawn = passes.draw(np.array([[True, False], [True, True], [True, False], [True, False]]), np.arange(2))
    >>> list(zip(drawn.passes.tolist(), drawn.parts.tolist(), drawn.positions.tolist()))
    [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0)]
    """

    def __init__(self, sizes: Int64) -> None:
        self._sizes, self._records = sizes, int(sizes.sum())
        self._number, self._taken = 0, np.zeros(len(sizes), np.int64)

    @classmethod
    def at(cls, sizes: Int64, ledger: SeatLedger, dataset: int, epoch: int, step: int) -> Passes:
        """Return the passes as they stand before a step of an epoch."""
        passes = cls(sizes)
        streams, records = len(sizes), int(sizes.sum())
        own = ledger.before(epoch, step)[:, dataset]
        number = int(own.sum()) // records
        begin = number * records
        if own.sum() == begin:
            passes._number = number
            return passes
        started = np.zeros(streams, np.int64)
        if number:  # the pass began within this step; skip the samples of the pass before
            first = ledger.epoch_where(lambda seats: seats[:, dataset].sum() > begin, epoch)
            stop = step if first == epoch else ledger.schedule(first).steps
            first_step = ledger.step_where(lambda seats: seats[:, dataset].sum() > begin, first, max(stop, 1))
            before = ledger.before(first, first_step)[:, dataset]
            drawn = _streams_of(ledger, dataset, first, first_step, streams)[: begin - int(before.sum())]
            started = before + np.bincount(drawn, minlength=streams)
        passes._number, passes._taken = number, own - started
        if (passes._taken > sizes).any():  # some streams draw from others' parts: since when?

            def is_late(seats: Int64) -> bool:
                return bool((seats[:, dataset] - started > sizes).any())

            late = ledger.epoch_where(is_late, epoch)
            stop = step if late == epoch else ledger.schedule(late).steps
            late_step = ledger.step_where(is_late, late, max(stop, 1))
            passes._taken = ledger.before(late, late_step)[:, dataset] - started
            skipped = np.minimum(passes._taken, 0)  # a pass that began within that step
            passes._taken -= skipped
            passes._replay(ledger, dataset, (late, late_step), (epoch, step), -int(skipped.sum()))
        return passes

    def _replay(
        self, ledger: SeatLedger, dataset: int, start: tuple[int, int], stop: tuple[int, int], skipped: int
    ) -> None:
        """Draw for the steps of a range, but for the first draws, which are of the pass before."""
        (epoch, step), streams = start, len(self._sizes)
        while (epoch, step) < stop:
            drawn = _streams_of(ledger, dataset, epoch, step, streams)
            self._assign(drawn[skipped:])
            skipped, step = 0, step + 1
            if step == ledger.schedule(epoch).steps:
                epoch, step = epoch + 1, 0

    def draw(self, seats: Seats, columns: Int64) -> Draws:
        streams = len(self._sizes)
        own, positions, taken = _counted(seats, streams, columns, self._taken)
        if (taken <= self._sizes).all():
            self._taken = taken
            return Draws(passes=np.full(len(own), self._number), parts=own, positions=positions)
        flat = np.flatnonzero(seats)
        draws = self._assign(flat % seats.shape[1] // (seats.shape[1] // streams))
        numbers = np.cumsum(seats).reshape(seats.shape)[:, columns][seats[:, columns]] - 1
        return Draws(passes=draws.passes[numbers], parts=draws.parts[numbers], positions=draws.positions[numbers])

    def _assign(self, streams: Int64) -> Draws:
        """Assign draws of some streams, in order."""
        drawn = []
        while len(streams):
            left = self._records - int(self._taken.sum())
            if not left:
                self._number, self._taken = self._number + 1, np.zeros_like(self._taken)
                continue
            drawn.append(self._within(streams[:left]))
            streams = streams[left:]
        return Draws(
            passes=np.concatenate([draws.passes for draws in drawn] or [np.empty(0, np.int64)]),
            parts=np.concatenate([draws.parts for draws in drawn] or [np.empty(0, np.int64)]),
            positions=np.concatenate([draws.positions for draws in drawn] or [np.empty(0, np.int64)]),
        )

    def _within(self, streams: Int64) -> Draws:
        """Assign draws of one pass: at once for streams with records of their own, one by one for the others."""
        order = np.argsort(streams, kind="stable")
        counts = np.bincount(streams, minlength=len(self._sizes))
        positions = np.empty(len(streams), np.int64)
        positions[order] = np.arange(len(streams)) - np.repeat(np.cumsum(counts) - counts, counts)
        positions += self._taken[streams]
        beyond = np.flatnonzero(positions >= self._sizes[streams])
        own = int(beyond[0]) if len(beyond) else len(streams)
        self._taken = self._taken + np.bincount(streams[:own], minlength=len(self._sizes))
        parts = streams.copy()
        taken, sizes = self._taken.tolist(), self._sizes.tolist()
        for place, stream in enumerate(streams[own:].tolist(), own):
            part = stream
            if taken[part] == sizes[part]:
                left = [size - used for size, used in zip(sizes, taken, strict=True)]
                part = left.index(max(left))
            parts[place], positions[place] = part, taken[part]
            taken[part] += 1
        self._taken = np.array(taken, np.int64)
        return Draws(passes=np.full(len(streams), self._number), parts=parts, positions=positions)


def _streams_of(ledger: SeatLedger, dataset: int, epoch: int, step: int, streams: int) -> Int64:
    """The stream of each of a dataset's seats in one batch, in order."""
    schedule = ledger.schedule(epoch)
    classes = schedule.classes_at(np.array([step]), range(schedule.batch_size))[0]
    streams_of: Int64 = np.flatnonzero(classes == dataset) // (schedule.batch_size // streams)
    return streams_of
