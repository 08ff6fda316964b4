"""`ringfeed profile`: measure the loader stage by stage, name what holds it back, and the knob that helps.

`profile()` is for notebooks: its result shows itself as a table.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from ..pipeline import Loader, StageStats
from ..pipeline.cache import Cache, MemoryCache, ShardCache, open_cache
from ..pipeline.counters import CACHE_STAGES, FAULT_STAGES
from ..pipeline.features import lacking_fill, say_lacking
from ..pipeline.quiet import quiet_tensorflow
from ..sharding.dataset import open_dataset
from ..sharding.errors import ConfigError
from ..sharding.prepare.items import split_names
from ..sharding.schema import Schema
from .arguments import checked_type, parse_bytes
from .bottleneck import StageProfile, name_bottleneck, name_knob
from .console import align, human_bytes, stage_progress
from .ending import tidy_when_told_to_end

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Profile", "StageProfile", "add_parser", "profile", "run"]

_BLOCK_BYTES = 512  # of those that the system counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measurement of the loader.

    Attributes:
        world_size: ranks, of which `rank` was measured; samples and rates are of this one alone.
        first_batch_seconds: from asking for an epoch to its first batch.
        seconds: from the first to the last batch, at full speed, with nothing done to them.
        samples_per_second: in these seconds.
        overall_samples_per_second: the same with the wait for the first batch, which each epoch begins with.
        bytes_per_second: of decoded tensors; those of strings as in the first batch.
        bottleneck: the stage that holds the loader back.
        knob: what to do about it.
        options: other arguments of `Loader` that were given, and ``cache_bytes``, by name.
    """

    url: str
    split: str
    batch_size: int
    balance: Any
    rank: int
    world_size: int
    steps: int
    samples: int
    seconds: float
    first_batch_seconds: float
    samples_per_second: float
    overall_samples_per_second: float
    bytes_per_second: float
    stages: tuple[StageProfile, ...]
    bottleneck: str
    knob: str
    options: dict[str, Any]

    def _rows(self) -> list[list[str]]:
        return [
            [
                stage.name,
                f"{stage.items:,}",
                human_bytes(stage.bytes) if stage.bytes else "",
                f"{stage.busy_seconds:.3f}",
                f"{stage.wait_seconds:.3f}",
                f"{stage.share:.0%}",
            ]
            for stage in self.stages
        ]

    def __str__(self) -> str:
        lines = align(_HEADER, self._rows())
        return "\n".join([self._headline(), "", *lines, "", f"bottleneck: {self.bottleneck}: {self.knob}"])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in _HEADER)
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        return (
            f"<p>{escape(self._headline())}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
            f"<p><b>bottleneck: {escape(self.bottleneck)}</b>: {escape(self.knob)}</p>"
        )

    def _headline(self) -> str:
        of_rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return (
            f"{self.url}: {self.samples_per_second:,.0f} samples/s, {human_bytes(self.bytes_per_second)}/s decoded, "
            f"first batch after {self.first_batch_seconds:.2f} s, with which {self.overall_samples_per_second:,.0f} "
            f"samples/s ({self.steps} batches of {self.batch_size}{of_rank}, split {self.split}, "
            f"balance {self.balance}{options})"
        )


_HEADER = ("stage", "items", "bytes", "busy s", "wait s", "busy")


def profile(
    url: str,
    *,
    split: str = "train",
    batch_size: int = 1024,
    balance: str | Mapping[Any, float] = "natural",
    steps: int | None = None,
    seed: int = 0,
    fill: Mapping[str, Any] | None = None,
    rank: int = 0,
    world_size: int = 1,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    streams: int | None = None,
    window_shards: int = 1,
    fetch_threads: int | None = None,
    prefetch_bytes: int | None = None,
    cache: str | os.PathLike[str] | ShardCache | None = None,
    cache_bytes: int | None = None,
    progress: bool = False,
) -> Profile:
    """Read an epoch, or some steps of it, as fast as the loader gives it.

    Args:
        url: of the dataset.
        split, batch_size, balance, seed, fill, rank, world_size: as for `Loader`.
        columns, where, streams, window_shards, fetch_threads, prefetch_bytes, cache: as for `Loader`. What `where` lets
            through is counted before the measurement begins.
        cache_bytes: limit of the cache that is named.
        steps: how many; default: one epoch, and 2 at least. More than an epoch goes on with the next ones.
        progress: show a bar on standard error.

    Raises:
        RingfeedError: the dataset cannot be read so.
    """
    if steps is not None and steps < 2:
        raise ConfigError(f"a profile needs at least 2 steps, got {steps}")
    records = open_dataset(url).manifest.split(split).records
    if records < batch_size:
        raise ConfigError(
            f"batch_size={batch_size} is more than the {records} records of {split!r}; use at most {records}"
        )
    if cache_bytes is not None and not (isinstance(cache, str | os.PathLike) and cache != "none"):
        raise ConfigError(f"cache_bytes is the limit of a cache that is named, got {cache_bytes} with cache={cache!r}")
    loader = Loader(
        url,
        split=split,
        batch_size=batch_size,
        balance=balance,
        seed=seed,
        fill=fill,
        rank=rank,
        world_size=world_size,
        columns=columns,
        where=where,
        streams=streams,
        window_shards=window_shards,
        fetch_threads=fetch_threads,
        prefetch_bytes=prefetch_bytes,
        cache=open_cache(cache, cache_bytes),
    )
    total = max(steps or loader.steps_per_epoch, 2)
    drained = _drain(loader, total, progress)
    seconds = drained.first_batch_seconds + drained.seconds
    stages = _stages(loader.stats(), seconds)
    bottleneck = name_bottleneck(stages, parses=loader.undecoded and not loader.finds)
    samples = total * loader.local_batch_size
    return Profile(
        url=url,
        split=split,
        batch_size=batch_size,
        balance=balance,
        rank=rank,
        world_size=world_size,
        steps=total,
        samples=samples,
        seconds=drained.seconds,
        first_batch_seconds=drained.first_batch_seconds,
        samples_per_second=(samples - loader.local_batch_size) / drained.seconds,
        overall_samples_per_second=samples / seconds,
        bytes_per_second=drained.decoded_bytes / drained.seconds,
        stages=stages,
        bottleneck=bottleneck,
        knob=name_knob(bottleneck, stages, loader, drained.disk_bytes),
        options=_options(loader, cache_bytes),
    )


def _options(loader: Loader, cache_bytes: int | None) -> dict[str, Any]:
    """What was given beside that which the headline tells anyway, as JSON can hold it."""
    given = loader.arguments
    columns, where, cache = given["columns"], given["where"], given["cache"]
    options = {
        "columns": None if columns is None else list(columns),
        "where": None if where is None else str(where),
        "streams": None if given["streams"] is None else int(given["streams"]),
        "window_shards": None if given["window_shards"] == 1 else given["window_shards"],
        "fetch_threads": given["fetch_threads"],
        "prefetch_bytes": given["prefetch_bytes"],
        "cache": None if cache is None else _name_cache(cache),
        "cache_bytes": cache_bytes,
    }
    return {name: value for name, value in options.items() if value is not None}


def _name_cache(cache: ShardCache) -> str:
    if isinstance(cache, MemoryCache):
        return "memory"
    return str(cache.path) if isinstance(cache, Cache) else type(cache).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drained:
    """Seconds until the first batch and after it, bytes of all batches after it, and those read from local disks."""

    first_batch_seconds: float
    seconds: float
    decoded_bytes: int
    disk_bytes: int


def _drain(loader: Loader, total: int, progress: bool) -> _Drained:
    dataset = loader.epoch(0).take(total)  # TensorFlow is imported here, before the clock starts
    done = epoch = decoded_bytes = 0
    first_batch: Mapping[str, Any] = {}
    read = _disk_bytes()
    start = first = time.perf_counter()
    with loader.own_errors(), stage_progress({"read": "read"}, silent=not progress) as report:
        report("read", 0, total, 0)  # from here on it counts the seconds
        while done < total:
            for batch in dataset:
                done += 1
                if done == 1:
                    first, first_batch = time.perf_counter(), batch
                    continue
                decoded_bytes += sum(map(_tensor_bytes, batch.values()))
                if done % 64 == 0 or done == total:
                    report("read", done, total, done * loader.local_batch_size)
            epoch += 1
            dataset = loader.epoch(epoch).take(total - done)
    end = time.perf_counter()
    return _Drained(
        first_batch_seconds=first - start,
        seconds=end - first,
        decoded_bytes=decoded_bytes + (total - 1) * sum(map(_string_bytes, first_batch.values())),
        disk_bytes=_disk_bytes() - read,
    )


def _tensor_bytes(values: Any) -> int:
    """Of fixed-size elements."""
    flat = getattr(values, "flat_values", values)
    return int(flat.shape.num_elements() or 0) * int(flat.dtype.size)


def _string_bytes(values: Any) -> int:
    """Of strings: to look at those of each batch would take as long as to read small ones."""
    import tensorflow as tf

    flat = getattr(values, "flat_values", values)
    return int(tf.reduce_sum(tf.cast(tf.strings.length(flat), tf.int64))) if flat.dtype == tf.string else 0


def _disk_bytes() -> int:
    """That this process has read from local disks, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK_BYTES


def _stages(stats: Mapping[str, StageStats], seconds: float) -> tuple[StageProfile, ...]:
    return tuple(
        StageProfile(
            name=name,
            items=entry.items,
            bytes=entry.bytes,
            busy_seconds=entry.busy_seconds,
            wait_seconds=entry.wait_seconds,
            share=entry.busy_seconds / seconds,
        )
        for name, entry in stats.items()
        if entry.items or name not in CACHE_STAGES + FAULT_STAGES
    )


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ringfeed profile`."""
    parser = subparsers.add_parser(
        "profile",
        help="measure the loader stage by stage and say what holds it back",
        description="Read a dataset as training would, as fast as possible, and say which stage holds it back.",
        epilog="examples:\n  ringfeed profile data/flights\n"
        "  ringfeed profile s3://bucket/flights --split train --batch-size 4096 --balance uniform --json\n"
        "  ringfeed profile data/flights --fill tail=unknown --rank 0 --world-size 8\n"
        "  ringfeed profile data/flights --columns hour,distance --where \"carrier in ('AA', 'UA')\"\n"
        "  ringfeed profile s3://bucket/flights --cache /mnt/nvme/cache   # fills it; once more reads from it\n\n"
        "Options are called as the arguments of Loader are (docs/loader.md); --cache-bytes is the limit of its Cache,\n"
        "data.cache_bytes of ringfeed train. ringfeed.tools.profile.profile(URL, ...) takes them all in Python.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", help="of the dataset: local, s3://, hdfs://, whatever fsspec opens")
    parser.add_argument("--split", default="train", help="which split (default: train)")
    parser.add_argument("--batch-size", type=int, default=1024, metavar="N", help="GLOBAL batch (default: 1024)")
    parser.add_argument(
        "--balance",
        default="natural",
        metavar="HOW",
        help="natural, uniform, power:A, X->Y:EPOCHS, or JSON shares by class (default: natural)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="batches to read, at least 2 (default: one epoch)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order (default: 0)")
    parser.add_argument(
        "--fill", action="append", default=[], metavar="FEATURE=VALUE", help="what stands for missing values"
    )
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="measure the share of this rank (default: 0)")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="of so many ranks (default: 1)")
    parser.add_argument(
        "--columns", type=checked_type(split_names), metavar="A,B", help="deliver, and decode, these features alone"
    )
    parser.add_argument(
        "--where",
        metavar="EXPR",
        help="only records for which this is true, as shard-dataset build --filter takes it; they are counted first",
    )
    parser.add_argument("--streams", type=int, metavar="N", help="canonical streams (default: up to 16)")
    parser.add_argument(
        "--window-shards", type=int, default=1, metavar="N", help="shards that a stream shuffles together (default: 1)"
    )
    parser.add_argument(
        "--fetch-threads", type=int, metavar="N", help="that fetch and open shards (default: 4; remote: 4 to 24)"
    )
    parser.add_argument(
        "--prefetch-bytes", type=checked_type(_parse_prefetch), metavar="SIZE", help="of shards that are fetched ahead"
    )
    parser.add_argument(
        "--cache",
        metavar="FOLDER",
        help="keep copies of shards there, on a local disk, or in memory: none, memory or a path (default: none)",
    )
    parser.add_argument(
        "--cache-bytes", type=checked_type(parse_bytes), metavar="SIZE", help="limit of the cache, such as 200GB"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Run `ringfeed profile`."""
    with tidy_when_told_to_end():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    manifest = open_dataset(args.url).manifest
    balance = _parse_balance(args.balance, manifest.classes)
    fill = dict(_parse_fill(text, manifest.schema) for text in args.fill)
    wanted = manifest.schema if args.columns is None else manifest.schema.only(args.columns)
    if lacking := lacking_fill(manifest, args.split, wanted, fill):
        flags = " ".join(f"--fill {shlex.quote(name)}=VALUE" for name in lacking)
        raise ConfigError(f"{say_lacking(lacking, args.split)}: {flags}")
    with quiet_tensorflow():
        import tensorflow  # noqa: F401
    result = profile(
        args.url,
        split=args.split,
        batch_size=args.batch_size,
        balance=balance,
        steps=args.steps,
        seed=args.seed,
        fill=fill,
        rank=args.rank,
        world_size=args.world_size,
        columns=args.columns,
        where=args.where,
        streams=args.streams,
        window_shards=args.window_shards,
        fetch_threads=args.fetch_threads,
        prefetch_bytes=args.prefetch_bytes,
        cache=args.cache,
        cache_bytes=args.cache_bytes,
        progress=not args.json,
    )
    print(json.dumps(asdict(result), indent=2) if args.json else result)
    return 0


def _parse_balance(text: str, classes: Sequence[Any]) -> str | dict[Any, float]:
    """A word, or shares by class: JSON has no keys but strings, so a class is named as it is written."""
    if not text.startswith("{"):
        return text
    try:
        shares = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f'--balance takes a word or JSON such as \'{{"late": 0.5, "on time": 0.5}}\': {error}'
        ) from error
    named = {str(value).lower() if isinstance(value, bool) else str(value): value for value in classes}
    return {named.get(key, key): share for key, share in shares.items()}


def _parse_prefetch(text: str) -> int:
    """A size, or none at all."""
    return 0 if text == "0" else parse_bytes(text)


def _parse_fill(text: str, schema: Schema) -> tuple[str, Any]:
    """A feature, and a value of its dtype if the text is one."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--fill takes FEATURE=VALUE, got {text!r}")
    dtype = schema[name].dtype if name in schema.names else "string"
    if dtype == "binary":
        return name, value.encode()
    if dtype == "bool":
        return name, {"true": True, "false": False}.get(value.lower(), value)
    for kind in () if dtype == "string" else (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value
