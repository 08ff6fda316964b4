"""Which stage of the loader holds it back, of what was measured, and the knob that helps."""

from __future__ import annotations

from dataclasses import dataclass

from ...pipeline import Loader
from ..console import human_bytes

__all__ = ["StageProfile", "name_bottleneck", "name_knob"]

_KNOBS = {
    "fetch": "the storage is the limit{unfilled}: {larger}try {fetch_threads}{unset}; where that is no faster {end}: "
    "{fewer}{near}{smaller}{closer}",
    "cache": "the cache is the limit: {larger}put it on a faster disk, {cache}; if this waits, other ranks bring the "
    "same shards",
    "fill": "writing the cache is the limit as long as it is not filled: {larger}put it on a faster disk, {cache}, or "
    "read past it with no cache",
    "verify": "checksums are the limit: the shards come from memory; more ranks per host share the work",
    "open": "decoding whole shards is the limit: {larger}{unused}more ranks per host share the work",
    "plan": "planning windows is the limit: {larger}try larger ones, {window_shards}{lacking}",
    "gather": "gathering samples is the limit: smaller records or more ranks per host",
    "deliver": "handing batches to TensorFlow is the limit: larger ones, {batch_size}, cross less often",
    "parse": "tf.io.parse_example is the limit: Parquet needs none, and is faster where most columns are numbers "
    "({reshard} --format parquet); nor do TFRecords of one layout (no nulls, strings, lists); or drop columns you do "
    "not use, {columns}",
}
_UNPACKING = (
    "decompressing and decoding shards is the limit: {larger}{fewer}write them without compression "
    "({reshard} --format {shard_format} --compression none), or more ranks per host"
)
_READING = (
    "the disk is the limit, for mapped shards are read while they are checked: put them on a faster one, "
    "{compressed}or try {fetch_threads}"
)
_OPENING = "opening files is the limit, for what is in them comes from memory: {larger}try {fetch_threads}{unset}"
_AHEAD = "too little is fetched ahead of need to keep {threads} threads busy: try {prefetch_bytes}, or leave that out"
_LINK = ("the link is full", "bring the data nearer")
_THREADS = 4  # that fetch at least, unless their number is given
_AHEAD_BYTES = 64 << 20  # as a loader does by itself, of a remote store
_MORE_THREADS = {True: 8, False: 32}  # than the loader takes by itself, of a local disk or a remote store
# Of smaller shards, and more of them, most of the time goes to opening them and to requests, not to their bytes.
_SMALL_BYTES, _FEW_SHARDS = 256 << 10, 32
_STARVED = 0.5  # waiting for windows, as a share of gathering: from here on, what brings the windows is the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """One stage: what passed through it, and for how long it worked and waited.

    Attributes:
        name: ``fetch``, ``verify``, ``open``, ``plan``, ``gather`` or ``deliver``; with a cache also ``cache``,
            ``fill`` and ``evict``.
        items: files, shards or samples; see `StageStats`.
        bytes: that passed, where the stage counts them.
        busy_seconds: over all threads.
        wait_seconds: for other stages; in ``deliver``, until the next chunk was asked for.
        share: busy seconds / seconds of the whole measurement.
    """

    name: str
    items: int
    bytes: int
    busy_seconds: float
    wait_seconds: float
    share: float


def name_bottleneck(stages: tuple[StageProfile, ...], *, parses: bool) -> str:
    """The stage that holds the loader back.

    The consumer's thread gathers, waits for windows (``gather`` waits) or waits to be asked (``deliver`` waits).
    Where it mostly waits for windows, the busiest of the stages that bring them is to blame; where it mostly waits to
    be asked, what comes after it.

    Args:
        stages: as measured.
        parses: whether TensorFlow parses each record after delivery.
    """
    by_name = {stage.name: stage for stage in stages}
    gathering, starved = by_name["gather"].busy_seconds, by_name["gather"].wait_seconds
    idle = by_name["deliver"].wait_seconds
    if idle > max(starved, gathering):
        return "parse" if parses else "deliver"
    if starved > gathering * _STARVED:
        bringing = [name for name in by_name if name not in ("gather", "deliver", "evict")]
        return max(bringing, key=lambda name: by_name[name].busy_seconds)
    return "gather"


def name_knob(bottleneck: str, stages: tuple[StageProfile, ...], loader: Loader, disk_bytes: int) -> str:
    """What to do about a bottleneck.

    Args:
        bottleneck: as `name_bottleneck` says.
        stages: as measured.
        loader: that was measured.
        disk_bytes: that came from a local disk and not from the system's memory.
    """
    manifest, given = loader.manifest, loader.arguments
    is_local, cached = given["url"].local_path is not None, given["cache"] is not None
    columns, cache = _as_option("columns", ["A", "B"]), _as_option("cache", "FOLDER")
    unused = f"drop columns you do not use, {columns}, or " if given["columns"] is None else ""
    fewer = unused.removesuffix("or ") if manifest.shard_format == "parquet" else ""
    lacking = ", which lack fewer classes; fewer classes plan faster"
    end, closer = ("the disk gives no more", "put the shards on a faster one") if is_local else _LINK
    near = f"keep what comes again on a local disk, {cache}, " if not is_local and not cached else ""
    reshard = "shard-dataset reshard SRC DST" + " --split-column split" * (len(manifest.splits) > 1)
    compressible = manifest.compression == "none" and not any(feature.is_image for feature in manifest.schema.features)
    smaller = f"compress the shards ({reshard} --format {manifest.shard_format} --compression gzip), or "
    threads = given["fetch_threads"] or _THREADS
    shards = manifest.split(given["split"]).shards
    mean_bytes = sum(loader.plan().bytes_per_rank) // shards  # with their indexes
    larger = (
        f"write larger shards, these hold {human_bytes(mean_bytes)} each ({reshard} --format {manifest.shard_format}), "
    )
    busy_threads = sum(stage.share for stage in stages if stage.name == "fetch")
    fetched_bytes, checked_bytes = (
        sum(stage.bytes for stage in stages if stage.name == name) for name in ("fetch", "verify")
    )
    if bottleneck == "open" and manifest.compression != "none":
        knob = _UNPACKING
    elif bottleneck == "verify" and disk_bytes > checked_bytes / 2:
        knob = _READING
    elif bottleneck == "fetch" and given["prefetch_bytes"] is not None and busy_threads < threads / 2:
        knob = _AHEAD
    elif bottleneck == "fetch" and is_local and disk_bytes < fetched_bytes / 2:
        knob = _OPENING
    else:
        knob = _KNOBS[bottleneck]
    return knob.format(
        shard_format=manifest.shard_format,
        unfilled=" as long as the cache is not filled" if cached else "",
        fewer="" if cached and bottleneck == "fetch" else fewer,  # which keeps whole files
        near=near,
        larger=larger if given["where"] is None and shards > _FEW_SHARDS and mean_bytes < _SMALL_BYTES else "",
        unset=", or leave that out" if given["fetch_threads"] else "",
        smaller=smaller if compressible else "",
        compressed=smaller.removesuffix("or ") if compressible else "",
        end=end,
        closer=closer,
        reshard=reshard,
        cache=cache,
        columns=columns,
        fetch_threads=_as_option("fetch_threads", 2 * (given["fetch_threads"] or 0) or _MORE_THREADS[is_local]),
        threads=threads,
        prefetch_bytes=_as_option("prefetch_bytes", max(2 * (given["prefetch_bytes"] or 0), _AHEAD_BYTES)),
        unused=unused,
        lacking="" if given["balance"] == "natural" else lacking,
        window_shards=_as_option("window_shards", 2 * given["window_shards"]),
        batch_size=_as_option("batch_size", min(2 * given["batch_size"], loader.records)),
    )


def _as_option(name: str, value: int | str | list[str]) -> str:
    """An option of the command, and what it is to a program of one's own.

    >>> _as_option("columns", ["A", "B"])
    "--columns A,B (Loader(columns=['A', 'B']))"
    """
    word = ",".join(value) if isinstance(value, list) else value
    return f"--{name.replace('_', '-')} {word} (Loader({name}={value!r}))"
