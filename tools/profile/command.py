"""`ringfeed profile`: measure a dataset's loader from the command line."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ...pipeline.select.selected_columns import describe_missing, features_without_fill
from ...sharding.dataset.dataset import open_dataset
from ...sharding.errors import ConfigError
from ...sharding.prepare.comma_lists import split_names
from ...sharding.schema import Schema
from ..argument_types import checked_type, parse_bytes
from ..signals import raise_on_termination
from .measure import profile

__all__ = ["add_arguments", "run"]

_EPILOG = """\
examples:
  ringfeed profile data/flights
  ringfeed profile s3://bucket/flights --split train --batch-size 4096 --balance uniform --json
  ringfeed profile data/flights --fill tail=unknown --rank 0 --world-size 8
  ringfeed profile data/flights --columns hour,distance --where "carrier in ('AA', 'UA')"
  ringfeed profile s3://bucket/flights --cache /mnt/nvme/cache   # first fills it, then reads it

Options have the names of the arguments of Loader (docs/loader.md); --cache-bytes is data.cache_bytes of
`ringfeed train`. In Python, ringfeed.tools.profile.profile(URL, ...) takes all of them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `ringfeed profile`, and its help."""
    parser.description = "Read a dataset as training would, as fast as possible, and say which stage holds it back."
    parser.epilog = _EPILOG
    parser.add_argument("url", help="dataset: a path, s3://, hdfs://, whatever fsspec opens")
    parser.add_argument("--split", default="train", help="which split (default: train)")
    parser.add_argument("--batch-size", type=int, default=1024, metavar="N", help="GLOBAL batch (default: 1024)")
    parser.add_argument(
        "--balance",
        default="natural",
        metavar="HOW",
        help="natural, uniform, power:A, X->Y:EPOCHS, or JSON shares by class (default: natural)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="batches to read, at least 2 (default: one epoch)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the order (default: 0)")
    parser.add_argument(
        "--fill",
        action="append",
        default=[],
        metavar="FEATURE=VALUE",
        help="value in place of missing ones; may be repeated",
    )
    parser.add_argument("--rank", type=int, default=0, metavar="R", help="measure the share of this rank (default: 0)")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="number of ranks (default: 1)")
    parser.add_argument(
        "--columns", type=checked_type(split_names), metavar="A,B", help="decode and deliver only these features"
    )
    parser.add_argument(
        "--where",
        metavar="EXPR",
        help="only records for which this is true, in the syntax of --filter of shard-dataset; they are counted first",
    )
    parser.add_argument(
        "--streams",
        type=int,
        metavar="N",
        help="streams that a batch is drawn from, of all ranks together; a divisor of the batch (default: up to 16)",
    )
    parser.add_argument(
        "--window-shards", type=int, default=1, metavar="N", help="shards that a stream shuffles together (default: 1)"
    )
    parser.add_argument(
        "--fetch-threads",
        type=int,
        metavar="N",
        help="threads that fetch and open shards (default: 4; remote: 4 to 24)",
    )
    parser.add_argument(
        "--prefetch-bytes",
        type=checked_type(_parse_prefetch),
        metavar="SIZE",
        help="bytes of shards to fetch ahead of need",
    )
    parser.add_argument(
        "--cache",
        metavar="FOLDER",
        help="where to keep copies of shards: none, memory, or a folder on a local disk (default: none)",
    )
    parser.add_argument(
        "--cache-bytes", type=checked_type(parse_bytes), metavar="SIZE", help="limit of the cache, such as 200GB"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Run `ringfeed profile`."""
    with raise_on_termination():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    manifest = open_dataset(args.url).manifest
    balance = _parse_balance(args.balance, manifest.classes)
    fill = dict(_parse_fill(text, manifest.schema) for text in args.fill)
    wanted = manifest.schema if args.columns is None else manifest.schema.only(args.columns)
    if lacking := features_without_fill(manifest, args.split, wanted, fill):
        flags = " ".join(f"--fill {shlex.quote(name)}=VALUE" for name in lacking)
        raise ConfigError(f"{describe_missing(lacking, args.split)}: {flags}")
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
