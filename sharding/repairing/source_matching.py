"""Matches sources to the generations of a dataset, and plans the rebuilds of those that lost shards.

Generations are planned from the oldest to the newest. Where groups stay together or duplicates are dropped, a
generation depends on the records before it. So planning rebuilds the shards that later generations need, and checks
them by the shard table, if there is one: a source that yields other shards is not the original. Carrying out the plan
rebuilds these shards once more. Without the table, every shard of a generation that lost some is rebuilt, and then the
table.
Tested in tests/sharding/repairing/test_rebuild_generations.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import replace

from ringfeed.sharding.dataset.dataset import EarlierShards
from ringfeed.sharding.dataset.file_names import generation_of
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.dataset.recovery import RecoveredDataset, confirm_table
from ringfeed.sharding.destination.spill import planning_folder
from ringfeed.sharding.errors import ConfigError, CorruptionError, SourceError
from ringfeed.sharding.progress import Report
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.url_secrets import public_url

from .rebuild_plan import Original, Rebuild, check_rebuilt, depends_on_earlier, plan_generation, source_flags
from .rebuilder import Rebuilder, open_rebuilder


def _unused_source_error(storage: Storage, original: Original) -> SourceError:
    return SourceError(
        f"{public_url(original.url)} is one source too many: each generation of {storage.locate()} has another one; "
        "nothing was changed; leave it out"
    )


def _url_similarity(manifest: Manifest, generations: Iterable[int], url: str) -> int:
    """Return the most trailing path parts that a URL shares with the source of one of the generations."""
    return max(_common_parts(url, manifest.all_generations[number].source["url"]) for number in generations)


def _common_parts(url: str, other: str) -> int:
    """Return how many trailing path parts two URLs share.

    >>> _common_parts("s3://new/2026/05.csv", "s3://old/2026/05.csv")
    2
    """
    pairs = zip(reversed(url.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def plan_rebuilds(
    rebuilder: Rebuilder,
    originals: Sequence[Original],
    wanted: Collection[int],
    lost: Collection[int],
    shards: Set[tuple[str, str]] | None = None,
) -> tuple[Rebuild, ...]:
    """Plan the rebuilds of generations; those from one source share it.

    Among sources that may fit a generation, the one whose URL ends most like its own is tried first. A source whose URL
    is more like that of a later generation is kept for that one.

    Args:
        rebuilder: rebuilds shards; all of them if the shard table is lost.
        lost: those of them known to have lost shards; they come first where URLs are equally alike.
        shards: shards to rebuild, by the paths of data file and index; None: all of a generation.

    Returns:
        The rebuilds of the wanted generations that have a source, in order. Sources of other generations are ignored,
        so that a repair that was killed can be run again unchanged.

    Raises:
        SourceError: a source cannot be read or fits no generation, or no wanted generation has a source.
        ConfigError: the dataset was built with options unknown to this version.
        CorruptionError: a generation depends on records that are lost and have no source here.
    """
    matching = _Matching(rebuilder, originals, sorted(wanted), lost, shards)
    rebuilds = [rebuild for number in sorted(wanted) if (rebuild := matching.plan(number)) is not None]
    matching.match_remaining(rebuilds)
    return tuple(rebuilds)


class _Matching:
    """Which source belongs to which generation."""

    def __init__(
        self,
        rebuilder: Rebuilder,
        originals: Sequence[Original],
        wanted: Sequence[int],
        lost: Collection[int],
        shards: Set[tuple[str, str]] | None,
    ) -> None:
        self._rebuilder = rebuilder
        self._manifest = rebuilder.dataset.manifest
        self._originals = originals
        self._wanted = wanted
        self._lost = lost
        self._shards = shards
        self._urls = [public_url(original.url) for original in originals]
        self._fingerprints = [generation.source["fingerprint"] for generation in self._manifest.all_generations]
        self._matched: dict[str, int] = {}  # position of the source, by fingerprint
        self._errors: dict[int, SourceError | ConfigError] = {}  # why a source does not fit, by position

    def plan(self, number: int) -> Rebuild | None:
        """Plan a wanted generation by the first source that fits; None if none does."""
        later = (other for other in self._wanted if other > number)
        proven = self._rebuilder.dataset.proven
        at_once = not proven or any(depends_on_earlier(self._manifest, other) for other in later)
        for place in self._candidates(number):
            if rebuild := self._try_source(place, number, at_once=at_once):
                return rebuild
        return None

    def match_remaining(self, rebuilds: Sequence[Rebuild]) -> None:
        """Match each remaining source to a generation that is not rebuilt.

        Raises:
            SourceError, ConfigError: a source fits none.
        """
        generations = range(len(self._manifest.all_generations))
        for place in self._unmatched():
            numbers = [number for number in generations if rebuilds and not self._has_source(number)]
            if not any(self._fits(place, number, rebuilds) for number in numbers):
                storage = self._rebuilder.dataset.storage
                raise self._errors.get(place) or _unused_source_error(storage, self._originals[place])

    def _fits(self, place: int, number: int, rebuilds: Iterable[Rebuild]) -> bool:
        for rebuild in rebuilds:
            if rebuild.generation < number and self._rebuilder.is_lost(rebuild.generation):
                self._rebuilder.run(rebuild)
        return self._try_source(place, number) is not None

    def _try_source(self, place: int, number: int, *, at_once: bool = False) -> Rebuild | None:
        """Plan a generation from a source; None if it does not fit.

        Args:
            at_once: whether to rebuild the shards now, because later generations depend on them or nothing else
                proves them.
        """
        earlier = self._earlier_shards(number)
        dataset = replace(self._rebuilder.dataset, shards=self._rebuilder.rows)
        try:
            rebuild = plan_generation(dataset, number, self._originals[place], self._rebuilder.report, earlier)
            if self._shards is not None:
                numbers = {pair: shard for pair, shard in rebuild.numbers.items() if pair in self._shards}
                rebuild = replace(rebuild, numbers=numbers)
            if at_once:
                self._rebuilder.run(rebuild)
        except (SourceError, ConfigError) as error:
            self._errors.setdefault(place, error)
            return None
        self._matched[self._fingerprints[number]] = place
        return rebuild

    def _earlier_shards(self, number: int) -> EarlierShards | None:
        try:
            return self._rebuilder.earlier_shards(number)
        except CorruptionError as error:
            failed = next((self._errors[place] for place in self._unmatched() if place in self._errors), None)
            if failed is not None:  # it may be the source that would provide them
                raise failed from error
            raise

    def _has_source(self, number: int) -> bool:
        return self._fingerprints[number] in self._matched

    def _unmatched(self) -> list[int]:
        return [place for place in range(len(self._urls)) if place not in self._matched.values()]

    def _candidates(self, number: int) -> list[int]:
        """Return the sources that may fit a generation, the likeliest first."""
        if self._has_source(number):
            return [self._matched[self._fingerprints[number]]]
        later = [other for other in self._wanted if other > number and not self._has_source(other)]
        own = {place: self._likeness(place, number) for place in self._unmatched()}
        likely = [place for place, own_fit in own.items() if all(self._likeness(place, n) <= own_fit for n in later)]
        return sorted(likely, key=lambda place: own[place], reverse=True)  # stable: the first of equals

    def _likeness(self, place: int, number: int) -> tuple[int, bool]:
        fingerprint = self._fingerprints[number]
        same_source = [other for other, mark in enumerate(self._fingerprints) if mark == fingerprint]
        return _url_similarity(self._manifest, same_source, self._urls[place]), number in self._lost


def rebuild_table(
    dataset: RecoveredDataset, originals: Sequence[Original], spill: str | None, report: Report
) -> tuple[RecoveredDataset, tuple[Rebuild, ...]]:
    """Rebuild the shard table of a dataset from the rows of rebuilt shards and of the intact generations.

    Returns:
        The dataset, proven, and the builds that rebuild its shards.

    Raises:
        SourceError: a source is not the original.
        CorruptionError: these sources do not yield the table that was lost.
    """
    manifest, storage = dataset.manifest, dataset.storage
    table = storage.locate(manifest.shards_path)
    lost = sorted({generation_of(damage.path) for damage in dataset.damages if damage.path != manifest.shards_path})
    if not originals or manifest.lost:
        others = ", and the source of each other generation whose shards are damaged" if manifest.generations else ""
        remedy = (
            "build the dataset again"
            if manifest.lost
            else f"repair it with {source_flags(manifest, lost or [0])}{others}"
        )
        raise CorruptionError(
            f"{table} is damaged, and so are shards; without the table, nothing shows what was lost; {remedy}"
        )
    wanted = sorted(range(len(manifest.all_generations)), key=lambda number: number not in lost)
    with planning_folder(spill, storage) as root, open_rebuilder(dataset, root, report, lost=lost) as rebuilder:
        rebuilds = plan_rebuilds(rebuilder, originals, wanted, lost)
        rows = rebuilder.rows
    proven = confirm_table(dataset, rows)
    if proven is None and manifest.generations:
        named = ", ".join(f"generation {r.generation} ({public_url(r.plan.options.source)})" for r in rebuilds)
        raise CorruptionError(
            f"{table} is damaged, and cannot be rebuilt from the shards of {named}: shards of another generation are "
            "damaged, too, or a source is not the original; nothing was changed; name a --source for each generation "
            "whose shards are damaged"
        )
    if proven is None:
        check_rebuilt(rebuilds[0], table, "", manifest.shards_checksum)
        raise AssertionError("unreachable: the table differs")
    return proven, rebuilds
