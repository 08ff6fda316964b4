"""Plan the rebuilds of a dataset whose generations follow from those before them, where groups stay together or doubles
are passed over: in the order in which they were written, each on top of what the ones before it hold.

So shards that later generations follow from are made again here already, and proven, if the table is there to prove
them; a source that gives others is not the one of then. They are made once more when the plan is carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import replace

from ..dataset.earlier_shards import EarlierShards
from ..dataset.manifest import Manifest
from ..errors import ConfigError, CorruptionError, SourceError
from ..storage.storage import public_url
from .rebuild_plan import Original, Rebuild, depends_on_earlier, plan_generation, unused_source_error, url_similarity
from .rebuilder import Rebuilder

__all__ = ["any_depends_on_earlier", "plan_in_order"]


def any_depends_on_earlier(manifest: Manifest) -> bool:
    """Whether what some generation holds depends on those before it."""
    return any(depends_on_earlier(manifest, number) for number in range(len(manifest.all_generations)))


def plan_in_order(
    rebuilder: Rebuilder,
    originals: Sequence[Original],
    wanted: Collection[int],
    lost: Collection[int],
    shards: Set[tuple[str, str]] | None = None,
) -> tuple[Rebuild, ...]:
    """Find the generation that each source is of, and plan, for each that is wanted, a build that writes it again.

    Of several sources that may be that of a generation, the one whose URL ends most like its own is tried first. One
    whose URL is more like that of a later generation is kept for it.

    Args:
        rebuilder: where shards are made, and all of them if the table of the dataset is lost.
        originals: the sources.
        wanted: the generations to make again, as far as there are sources.
        lost: those of them that surely lost shards: of sources that are alike, they come first.
        shards: those to make, by the names of data file and index; None: all of a generation.

    Returns:
        As `plan_rebuilds`.

    Raises:
        SourceError: a source cannot be read, or no generation was built from it, or none has a source that is wanted.
        ConfigError: the dataset was built with options that this version does not know.
        CorruptionError: what a generation holds depends on records that are lost, and have no source here.
    """
    manifest, storage = rebuilder.known.manifest, rebuilder.known.storage
    matches = _Matches(manifest, originals, sorted(wanted), lost)
    rebuilds: list[Rebuild] = []
    for number in sorted(wanted):
        for place in matches.candidates(number):
            earlier = _before(rebuilder, number, matches)
            try:
                rebuild = _plan(rebuilder, number, originals[place], earlier)
                if shards is not None:
                    rebuild = replace(rebuild, numbers={p: n for p, n in rebuild.numbers.items() if p in shards})
                if not rebuilder.known.proven or any(
                    depends_on_earlier(manifest, later) for later in wanted if later > number
                ):
                    rebuilder.make(rebuild)
            except (SourceError, ConfigError) as error:
                matches.errors.setdefault(place, error)
                continue
            matches.take(place, number)
            rebuilds.append(rebuild)
            break
    for place in matches.free():
        others = [number for number in range(len(manifest.all_generations)) if rebuilds and not matches.has(number)]
        for number in others:
            for rebuild in rebuilds:
                if rebuild.generation < number and rebuilder.lacks(rebuild.generation):
                    rebuilder.make(rebuild)
            earlier = _before(rebuilder, number, matches)
            try:
                _plan(rebuilder, number, originals[place], earlier)
            except (SourceError, ConfigError) as error:
                matches.errors.setdefault(place, error)
                continue
            matches.take(place, number)
            break
        else:
            raise matches.errors.get(place) or unused_source_error(storage, originals[place])
    return tuple(rebuilds)


def _before(rebuilder: Rebuilder, number: int, matches: _Matches) -> EarlierShards | None:
    try:
        return rebuilder.before(number)
    except CorruptionError as error:
        if failed := matches.failed():  # that may be the one which is lacking
            raise failed from error
        raise


def _plan(rebuilder: Rebuilder, number: int, original: Original, earlier: EarlierShards | None) -> Rebuild:
    known = replace(rebuilder.known, shards=rebuilder.rows)
    return plan_generation(known, number, original, rebuilder.report, earlier)


class _Matches:
    """Which source is that of which generation. Generations that came from the same one have it together."""

    def __init__(
        self, manifest: Manifest, originals: Sequence[Original], wanted: Sequence[int], lost: Collection[int]
    ) -> None:
        self.errors: dict[int, SourceError | ConfigError] = {}
        self._manifest = manifest
        self._marks = [generation.source["fingerprint"] for generation in manifest.all_generations]
        self._urls = [public_url(original.url) for original in originals]
        self._wanted = wanted
        self._lost = lost
        self._taken: dict[str, int] = {}

    def take(self, place: int, number: int) -> None:
        """Let a source be that of a generation."""
        self._taken[self._marks[number]] = place

    def has(self, number: int) -> bool:
        """Whether a generation has its source."""
        return self._marks[number] in self._taken

    def free(self) -> list[int]:
        """The sources that are of no generation yet."""
        return [place for place in range(len(self._urls)) if place not in self._taken.values()]

    def failed(self) -> SourceError | ConfigError | None:
        """Why a source is not that of a generation, of one that is of none."""
        return next((self.errors[place] for place in self.free() if place in self.errors), None)

    def candidates(self, number: int) -> list[int]:
        """The sources that may be that of a generation, the likeliest first."""
        if self.has(number):
            return [self._taken[self._marks[number]]]
        later = [n for n in self._wanted if n > number and not self.has(n)]
        own = {place: self._fit(place, number) for place in self.free()}
        mine = [place for place, fit in own.items() if all(self._fit(place, n) <= fit for n in later)]
        return sorted(mine, key=lambda place: own[place], reverse=True)  # stable: else the first

    def _fit(self, place: int, number: int) -> tuple[int, bool]:
        same = [n for n, mark in enumerate(self._marks) if mark == self._marks[number]]
        return url_similarity(self._manifest, same, self._urls[place]), number in self._lost
