"""`ringfeed profile`: measure the loader stage by stage, name what holds it back, and the knob that helps.

`profile()` is for notebooks: its result shows itself as a table.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ..pipeline import Loader, StageStats
from ..pipeline.counters import CACHE_STAGES, FAULT_STAGES
from ..pipeline.features import lacking_fill, say_lacking
from ..pipeline.quiet import quiet_tensorflow
from ..sharding.dataset import open_dataset
from ..sharding.errors import ConfigError
from ..sharding.manifest import Manifest
from ..sharding.schema import Schema
from .console import align, human_bytes, stage_progress

__all__ = ["Profile", "StageProfile", "add_parser", "profile", "run"]

_KNOBS = {
    "fetch": "the storage is the limit: raise Loader(fetch_threads=...), bring the data nearer, or compress the shards",
    "cache": "the cache is the limit: put it on a faster disk; if this waits, other ranks bring the same shards",
    "fill": "writing the cache is the limit: put it on a faster disk, or read past it with no cache",
    "verify": "checksums are the limit: the shards come from memory; more ranks per host share the work",
    "open": "decoding whole shards is the limit: drop columns you do not use, or more ranks per host",
    "plan": "planning windows is the limit: larger ones, Loader(window_shards=2) or more, lack fewer classes; fewer "
    "classes plan faster",
    "gather": "gathering samples is the limit: smaller records or more ranks per host",
    "deliver": "TensorFlow takes batches as fast as it can: a larger batch_size, or a lighter map after the loader",
    "parse": "tf.io.parse_example is the limit: drop columns you do not use; records of one layout (no nulls, strings, "
    "lists) need none, nor does Parquet, which is faster where most columns are numbers",
}
_UNPACKING = (
    "decompressing shards is the limit: write them without compression "
    "(shard-dataset reshard SRC DST --format {shard_format} --compression none), or more ranks per host"
)
_READING = (
    "the disk is the limit, for mapped shards are read while they are checked: put them on a faster one, raise "
    "Loader(fetch_threads=...), or compress them"
)
_BLOCK_BYTES = 512  # of those that the system counts
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
        return (
            f"{self.url}: {self.samples_per_second:,.0f} samples/s, {human_bytes(self.bytes_per_second)}/s decoded, "
            f"first batch after {self.first_batch_seconds:.2f} s, with which {self.overall_samples_per_second:,.0f} "
            f"samples/s ({self.steps} batches of {self.batch_size}{of_rank}, split {self.split}, "
            f"balance {self.balance})"
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
    progress: bool = False,
) -> Profile:
    """Read an epoch, or some steps of it, as fast as the loader gives it.

    Args:
        url: of the dataset.
        split, batch_size, balance, seed, fill, rank, world_size: as for `Loader`.
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
    loader = Loader(
        url, split=split, batch_size=batch_size, balance=balance, seed=seed, fill=fill, rank=rank, world_size=world_size
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
        knob=_knob(bottleneck, stages, loader.manifest, drained.disk_bytes),
    )


def _knob(bottleneck: str, stages: tuple[StageProfile, ...], manifest: Manifest, disk_bytes: int) -> str:
    """What to do about a bottleneck, where so many bytes came from a local disk and not from the system's memory."""
    if bottleneck == "open" and manifest.compression != "none":
        return _UNPACKING.format(shard_format=manifest.shard_format)
    checked_bytes = sum(stage.bytes for stage in stages if stage.name == "verify")
    if bottleneck == "verify" and disk_bytes > checked_bytes / 2:
        return _READING
    return _KNOBS[bottleneck]


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


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ringfeed profile`."""
    parser = subparsers.add_parser(
        "profile",
        help="measure the loader stage by stage and say what holds it back",
        description="Read a dataset as training would, as fast as possible, and say which stage holds it back.",
        epilog="examples:\n  ringfeed profile data/flights\n"
        "  ringfeed profile s3://bucket/flights --split train --batch-size 4096 --balance uniform --json\n"
        "  ringfeed profile data/flights --fill tail=unknown --rank 0 --world-size 8",
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
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Run `ringfeed profile`."""
    manifest = open_dataset(args.url).manifest
    balance = _parse_balance(args.balance, manifest.classes)
    fill = dict(_parse_fill(text, manifest.schema) for text in args.fill)
    if lacking := lacking_fill(manifest, args.split, manifest.schema, fill):
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
