"""The bottleneck of a measured loader: the stage that holds it back, what limits it there, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringfeed.pipeline import Loader, StageStats
from ringfeed.sharding import Manifest
from ringfeed.tools.console import human_bytes
from ringfeed.tools.measure.store_trial import PIECE_BYTES, StoreTrial

# Stage, fact (see `_facts`) under which the row applies ("": always), what then limits the loader (see
# `verdict.LIMITS`), option that may help ("": none), text. The first row that applies is taken.
_KNOBS = (
    ("fetch", "short_prefetch", "too_few_fetches", "prefetch_bytes", "too little is fetched ahead of need to keep "
     "{threads} threads busy: try {prefetch_bytes}, or leave that out"),
    ("fetch", "files_in_memory", "store_latency", "fetch_threads", "opening files is the limit, since their contents "
     "come from memory: {larger}try {fetch_threads}{unset}"),
    ("fetch", "fetches_too_few", "too_few_fetches", "fetch_threads", "too few fetches run at once: the store gives "
     "{store_rate}/s to {store_threads} at once, and the loader takes {loader_rate}/s: {larger}try "
     "{fetch_threads}{unset}"),
    ("fetch", "store_is_late", "store_latency", "", "the store's latency is the limit, {latency} for each request: "
     "{larger}{near}{closer}"),
    ("fetch", "store_is_full", "store_bandwidth", "", "the store's bandwidth is the limit, it gives {store_rate}/s"
     "{unfilled}: {fetch_fewer}{near}{smaller}{closer}"),
    ("fetch", "", "store_bandwidth", "fetch_threads", "the storage is the limit{unfilled}: {larger}try {fetch_threads}"
     "{unset}; where that is no faster {full}: {fetch_fewer}{near}{smaller}{closer}"),
    ("cache", "", "cache", "", "the cache is the limit: {larger}put it on a faster disk, {cache}; if this stage waits, "
     "other ranks fetch the same shards"),
    ("fill", "", "cache", "", "writing the cache is the limit until it is filled: {larger}put it on a faster disk, "
     "{cache}, or use no cache"),
    ("verify", "shards_on_disk", "store_bandwidth", "fetch_threads", "the disk is the limit, since mapped shards are "
     "read while they are checked: put them on a faster one, {compressed}or try {fetch_threads}"),
    ("verify", "reads_few_columns", "verification", "", "checksums are the limit: the shards come from memory, and "
     "TFRecord is checked whole, whatever columns are read: write Parquet, where only these are ({reshard} --format "
     "parquet)"),
    ("verify", "", "verification", "", "checksums are the limit: the shards come from memory; more ranks per host "
     "share the work"),
    ("open", "is_compressed", "decode", "", "decompressing and decoding shards is the limit: {larger}{fewer}write them "
     "without compression ({reshard} --format {shard_format} --compression none), or more ranks per host"),
    ("open", "", "decode", "", "decoding whole shards is the limit: {larger}{unused}more ranks per host share the "
     "work"),
    ("plan", "", "planning", "window_shards", "planning windows is the limit: {larger}try larger ones, "
     "{window_shards}{lacking}"),
    ("none", "", "unknown", "", "no stage worked for much of the time that batches were waited for: measure for longer "
     "(--seconds)"),
    ("gather", "", "hand_over", "", "gathering samples is the limit: smaller records or more ranks per host"),
    ("deliver", "", "hand_over", "batch_size", "handing batches to TensorFlow is the limit: larger ones, {batch_size}, "
     "cross less often"),
    ("parse", "", "decode", "", "tf.io.parse_example is the limit: Parquet needs none, and is faster where most "
     "columns are numbers ({reshard} --format parquet); nor do TFRecords of one layout (no nulls, strings, lists); or "
     "drop columns you do not use, {columns}"),
)  # fmt: skip
# Phrase in these texts -> the fact under which it is there, its text.
_PHRASES = {
    "larger": ("has_small_shards", "write larger shards, these hold {mean_bytes} each ({reshard} --format "
               "{shard_format}), "),
    "unused": ("reads_all_columns", "drop columns you do not use, {columns}, or "),
    "fewer": ("may_read_fewer", "drop columns you do not use, {columns}, "),
    "fetch_fewer": ("may_fetch_fewer", "drop columns you do not use, {columns}, "),
    "near": ("may_cache", "keep what is read again on a local disk, {cache}, "),
    "smaller": ("is_compressible", "compress the shards ({reshard} --format {shard_format} --compression gzip), or "),
    "compressed": ("is_compressible", "compress the shards ({reshard} --format {shard_format} --compression gzip), "),
    "unfilled": ("has_cache", " until the cache is filled"),
    "unset": ("sets_threads", ", or leave that out"),
    "lacking": ("is_balanced", ", which lack fewer classes; fewer classes plan faster"),
}  # fmt: skip
_FULL = {True: ("the disk gives no more", "put the shards on a faster one"),
         False: ("the link is full", "bring the data nearer")}  # fmt: skip
_THREADS = 4  # the least number of fetching threads, unless it is given
_PREFETCH_BYTES = 64 << 20  # a loader's default for a remote store
_MORE_THREADS = {True: 8, False: 32}  # more than the loader's default, for a local disk and for a remote store
# Small shards in large numbers spend most of the time on opening files and on requests, not on their bytes.
_SMALL_BYTES, _FEW_SHARDS = 256 << 10, 32
_FULL_RATE = 0.7  # of what the store gives: a loader that takes more is held back by the store itself
_LATE = 0.5  # share of a read that is latency, from which on shards are too small for the store
_EXPLAINS = 0.35  # share of the wait for windows that the stage which works most must be busy, to be its cause
_STARVED = 0.5  # waiting for windows / gathering: from this share on, the stages that bring windows are the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """One stage: what passed through it, and how long it worked and waited.

    Attributes:
        name: ``fetch``, ``verify``, ``open``, ``plan``, ``gather`` or ``deliver``; with a cache also ``cache``,
            ``fill`` and ``evict``.
        items: files, shards or samples; see `StageStats`.
        bytes: bytes that passed, where the stage counts them.
        busy_seconds: seconds of work, over all threads.
        work_seconds: the part of `busy_seconds` that is no wait for a core or for Python's lock.
        wait_seconds: seconds of waiting for other stages; in ``fetch`` for the store, as a part of `busy_seconds`; in
            ``deliver``, until the next chunk was asked for.
        share: busy seconds / seconds of the whole measurement.

    >>> counted = StageStats(items=4, busy_seconds=0.5, cpu_seconds=0.125)
    >>> StageProfile.of("verify", counted, 2.0, from_disk=False).work_seconds
    0.125
    """

    name: str
    items: int
    bytes: int
    busy_seconds: float
    work_seconds: float
    wait_seconds: float
    share: float

    @classmethod
    def of(
        cls, name: str, stats: StageStats, seconds: float, *, from_disk: bool, store: StoreTrial | None = None
    ) -> StageProfile:
        """The profile of a stage in a measurement of some seconds.

        A thread off the cores waits for the store only if there is one to wait for, and no longer than it would if it
        had the store alone: all else is a wait for a core or for Python's lock.

        Args:
            name: the stage.
            stats: its counters.
            seconds: seconds of the measurement.
            from_disk: whether mapped files came from the disk, which any stage that reads them waits for.
            store: what a remote store gives alone.
        """
        work, share = stats.busy_seconds, stats.busy_seconds / seconds
        if not from_disk and name != "fill":
            wait = stats.wait_seconds if name == "fetch" else 0.0
            if store is not None:
                wait = min(wait, store.thread_seconds(stats.items, stats.bytes, share))
            work = min(stats.cpu_seconds + wait, work)
        return cls(
            name=name, items=stats.items, bytes=stats.bytes, busy_seconds=stats.busy_seconds, work_seconds=work,
            wait_seconds=stats.wait_seconds, share=share,
        )  # fmt: skip


def name_bottleneck(stages: tuple[StageProfile, ...], *, parses: bool) -> str:
    """Return the stage that holds the loader back.

    The consumer's thread gathers, waits for windows (``gather`` waits) or waits for its consumer (``deliver`` waits).
    If it mostly waits for windows, the bottleneck is the stage before it that works most; if it mostly waits for its
    consumer, the bottleneck comes after it. ``none``: no stage explains the wait.

    Args:
        stages: the measured stages.
        parses: whether TensorFlow parses each record after delivery.
    """
    by_name = {stage.name: stage for stage in stages}
    gathering, starved = by_name["gather"].busy_seconds, by_name["gather"].wait_seconds
    idle = by_name["deliver"].wait_seconds
    if idle > max(starved, gathering):
        return "parse" if parses else "deliver"
    if starved > gathering * _STARVED:
        upstream = [name for name in by_name if name not in ("gather", "deliver", "evict")]
        busiest = max(upstream, key=lambda name: by_name[name].work_seconds)
        return busiest if by_name[busiest].busy_seconds > _EXPLAINS * starved else "none"
    return "gather"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """What limits a loader, what to do about it, and the arguments of `Loader` in that text that can be tried."""

    limit: str
    text: str
    options: Mapping[str, Any]


def name_knob(
    bottleneck: str,
    stages: tuple[StageProfile, ...],
    loader: Loader,
    disk_bytes: int,
    store: StoreTrial | None = None,
) -> Knob:
    """Return what to do about a bottleneck.

    Args:
        bottleneck: a stage, or ``parse``: see `name_bottleneck`.
        stages: the measured stages.
        loader: the measured loader.
        disk_bytes: bytes read from a local disk, and not from the system's memory.
        store: what the store gives without the loader, if that was measured.
    """
    manifest, options = loader.manifest, loader.arguments
    split = manifest.split(options["split"])
    mean_bytes = sum(loader.plan().bytes_per_rank) // split.shards  # with their indexes
    store_facts, store_values = _store_facts(store, stages, options, mean_bytes)
    facts = _facts(manifest, options, stages, mean_bytes, disk_bytes) | store_facts
    tried = _options_to_try(options, store if facts["fetches_too_few"] else None, loader.records)
    values = _values(manifest, options, mean_bytes) | {name: _as_option(name, value) for name, value in tried.items()}
    values |= store_values
    phrases = {name: text.format(**values) if facts[fact] else "" for name, (fact, text) in _PHRASES.items()}
    _, _, limit, option, text = next(row for row in _KNOBS if row[0] == bottleneck and (not row[1] or facts[row[1]]))
    may_try = bool(option) and not facts["has_cache"]  # which the measurement has filled
    return Knob(limit=limit, text=text.format(**values, **phrases), options={option: tried[option]} if may_try else {})


def _facts(
    manifest: Manifest,
    options: Mapping[str, Any],
    stages: tuple[StageProfile, ...],
    mean_bytes: int,
    disk_bytes: int,
) -> dict[str, bool]:
    """The facts that the choice of a text, and of the phrases in it, depends on."""
    is_local, has_cache = options["url"].local_path is not None, options["cache"] is not None
    reads_all = options["columns"] is None
    may_read_fewer = reads_all and manifest.shard_format == "parquet"
    stage_bytes = {stage.name: stage.bytes for stage in stages}
    busy_threads = sum(stage.share for stage in stages if stage.name == "fetch")
    is_compressed = manifest.compression != "none"
    shards = manifest.split(options["split"]).shards
    return {
        "short_prefetch": options["prefetch_bytes"] is not None and busy_threads < _threads(options) / 2,
        "files_in_memory": is_local and disk_bytes < stage_bytes.get("fetch", 0) / 2,
        "shards_on_disk": disk_bytes > stage_bytes.get("verify", 0) / 2,
        "is_compressed": is_compressed,
        "is_compressible": not is_compressed and not any(feature.is_image for feature in manifest.schema.features),
        "has_cache": has_cache,
        "may_cache": not is_local and not has_cache,
        "reads_all_columns": reads_all,
        "reads_few_columns": not reads_all and manifest.shard_format == "tfrecord",
        "may_read_fewer": may_read_fewer,
        "may_fetch_fewer": may_read_fewer and not has_cache,  # a cache keeps whole files
        "has_small_shards": options["where"] is None and shards > _FEW_SHARDS and mean_bytes < _SMALL_BYTES,
        "sets_threads": bool(options["fetch_threads"]),
        "is_balanced": options["balance"] != "natural",
    }


def _store_facts(
    store: StoreTrial | None, stages: tuple[StageProfile, ...], options: Mapping[str, Any], mean_bytes: int
) -> tuple[dict[str, bool], dict[str, str]]:
    """The facts about a store that was measured alone, and values for texts; all false and empty if none was."""
    if store is None:
        facts, values = ("fetches_too_few", "store_is_late", "store_is_full"), ("store_rate", "store_threads")
        return dict.fromkeys(facts, False), dict.fromkeys((*values, "loader_rate", "latency"), "")
    one_read = min(mean_bytes, PIECE_BYTES) / store.bytes_per_second[1]
    # Both the loader's rate and the store's own say so: cores that others take slow the loader alone.
    least, loader_rate = _FULL_RATE * store.best_bytes_per_second, _fetch_rate(stages)
    few = max(loader_rate, store.rate_of(_threads(options))) < least and store.best_threads > _threads(options)
    late = store.latency_seconds > _LATE * one_read
    return {"fetches_too_few": few, "store_is_late": late, "store_is_full": True}, {
        "store_rate": human_bytes(store.best_bytes_per_second), "store_threads": str(store.best_threads),
        "loader_rate": human_bytes(loader_rate), "latency": f"{store.latency_seconds * 1000:,.1f} ms",
    }  # fmt: skip


def _fetch_rate(stages: tuple[StageProfile, ...]) -> float:
    """Bytes fetched a second of the whole measurement; 0 if a cache had all of them."""
    fetch = [stage for stage in stages if stage.name == "fetch" and stage.busy_seconds]
    return sum(stage.bytes / stage.busy_seconds * stage.share for stage in fetch)


def _options_to_try(options: Mapping[str, Any], store: StoreTrial | None, records: int) -> dict[str, int]:
    """Values of options that may help: as many threads as the store has use for, or twice what is set."""
    is_local = options["url"].local_path is not None
    more_threads = 2 * (options["fetch_threads"] or 0) or _MORE_THREADS[is_local]
    return {
        "fetch_threads": store.best_threads if store else more_threads,
        "prefetch_bytes": max(2 * (options["prefetch_bytes"] or 0), _PREFETCH_BYTES),
        "window_shards": 2 * options["window_shards"],
        "batch_size": min(2 * options["batch_size"], records),
    }


def _values(manifest: Manifest, options: Mapping[str, Any], mean_bytes: int) -> dict[str, str]:
    """The values that texts and phrases name: commands, sizes, options to fill in."""
    full, closer = _FULL[options["url"].local_path is not None]
    return {
        "shard_format": manifest.shard_format,
        "mean_bytes": human_bytes(mean_bytes),
        "reshard": "shard-dataset reshard SRC DST",
        "threads": str(_threads(options)),
        "full": full,
        "closer": closer,
        "columns": _as_option("columns", ["A", "B"]),
        "cache": _as_option("cache", "FOLDER"),
    }


def _threads(options: Mapping[str, Any]) -> int:
    return options["fetch_threads"] or _THREADS


def _as_option(name: str, value: int | str | list[str]) -> str:
    """An option as the command and the loader take it.

    >>> _as_option("columns", ["A", "B"])
    "--columns A,B (Loader(columns=['A', 'B']))"
    """
    word = ",".join(value) if isinstance(value, list) else value
    return f"--{name.replace('_', '-')} {word} (Loader({name}={value!r}))"
