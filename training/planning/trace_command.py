"""The command `ringfeed trace`: the records of a step, the steps of a record, the records behind a spike of the loss.

Tested in tests/training/planning/test_trace.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.prepare import split_columns
from ringfeed.sharding.storage.temporary_folder import process_folder
from ringfeed.sharding.storage.untrusted_files import load_json, read_untrusted
from ringfeed.training.config.config_file import load_config
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.run.state.outputs import write_file

if TYPE_CHECKING:
    from .trace import RunTrace, TracedRecord

DESCRIPTION = (
    "Show the records that a run reads in each step. No log is needed: the order follows from the configuration."
)

EPILOG = """\
examples:
  ringfeed trace --config flights.yaml --step 1200 --show id,carrier
  ringfeed trace --config flights.yaml --ranks 4 --step 1200 --json
  ringfeed trace --config flights.yaml --step 1200 --with-source
  ringfeed trace --config flights.yaml --record train-00003-of-00016.tfrecord:17
  ringfeed trace --config flights.yaml --spike --metrics run/metrics.json
  ringfeed trace --config photos.yaml --step 40 --save step-40

Give the configuration, --set and the number of ranks that the run had. Steps count from 0. Resumes change nothing. The
damaged shards that a run left out (data.on_bad_shard) are taken from its newest checkpoint, if checkpoint.url is set.

--with-source adds each record's file in the source, and its place in the file. Both are computed: the columns that
decide where a record goes, such as the label, are read again. The source must be where it was, and unchanged. Lines
count from 1, records from 0.

--spike reads the losses of a run (output.metrics, or --metrics), and takes the report whose loss is highest beside the
ten reports before it. It shows all steps that the report is the mean of: track.every sets how many.
"""

_MOST_BYTES = 256 << 20  # of a metrics file
_SHOWN_CHARACTERS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("--config", required=True, metavar="FILE.yaml", help="configuration of the run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="as for ringfeed train"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=int, metavar="N", help="show the records of this step of the run")
    what.add_argument("--record", metavar="SHARD:N", help="show the steps that read this record of a shard")
    what.add_argument("--spike", action="store_true", help="show the records behind the largest spike of the loss")
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="number of ranks of the run [1]")
    parser.add_argument("--metrics", metavar="FILE", help="metrics file of the run, for --spike [output.metrics]")
    parser.add_argument("--show", action="append", default=[], metavar="COLUMN,...", help="show columns of the records")
    parser.add_argument(
        "--with-source", action="store_true", help="show the file and place in the source of each record"
    )
    parser.add_argument(
        "--trust-code", action="store_true", help="with --with-source: call the functions of --map that a dataset names"
    )
    parser.add_argument("--save", metavar="FOLDER", help="write the images of the records to a folder (path or URL)")
    parser.add_argument("--limit", type=int, default=1000, metavar="N", help="show at most N records [1000]")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each record")


@process_folder()
def run(args: argparse.Namespace) -> int:
    config = load_config(args.config, args.overrides)
    if args.limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {args.limit}")
    try:
        shown = [name for words in args.show for name in split_columns(words)]
    except ValueError as error:
        raise ConfigError(f"--show: {error}") from error
    with quiet_tensorflow():
        from .trace import RunTrace
    trace = RunTrace(config, args.ranks)
    found = list(islice(_records(args, config, trace), args.limit + 1))
    records = found[: args.limit]
    values = trace.values(records, shown)
    if args.with_source:
        sources = trace.sources(records, trust_code=args.trust_code)
        values = [
            {"file": source.file, "place": source.place, **value} for source, value in zip(sources, values, strict=True)
        ]
    rows = [_row(record, value) for record, value in zip(records, values, strict=True)]
    if args.save is not None:
        _save_images(trace, records, args.save)
    if args.json:
        sys.stdout.writelines(json.dumps(row, default=_text) + "\n" for row in rows)
        return 0
    _print_table(rows)
    if len(found) > len(records):
        sys.stdout.write(f"... and more; --limit {2 * args.limit} shows them\n")
    return 0


def _records(args: argparse.Namespace, config: TrainConfig, trace: RunTrace) -> Iterator[TracedRecord]:
    if args.step is not None:
        return iter(trace.records(args.step))
    if args.record is not None:
        shard, _, number = args.record.rpartition(":")
        if not shard or not number.isdecimal():
            raise ConfigError(
                f"--record: name SHARD:NUMBER, such as train-00000-of-00004.tfrecord:17, got {args.record!r}"
            )
        return trace.uses(shard, int(number))
    return chain.from_iterable(map(trace.records, _spike(args, config)))


def _spike(args: argparse.Namespace, config: TrainConfig) -> range:
    """Return the steps of the largest spike, and report it."""
    from .trace import find_spikes

    path = args.metrics or config.output.metrics
    if path is None:
        raise ConfigError("--spike needs the metrics of the run: name them with --metrics FILE, or set output.metrics")
    try:
        metrics = load_json(read_untrusted(path, _MOST_BYTES, "metrics file"))
        entries = metrics["history"]["steps"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--metrics: {path} holds no history of a run ({error}); name what output.metrics wrote"
        ) from error
    spikes = find_spikes(entries, 1)
    if not spikes:
        raise ConfigError(f"--spike: in {path} no loss is above the ones before it")
    steps, loss, usual = spikes[0]
    sys.stderr.write(f"steps {steps.start} to {steps.stop - 1}: mean loss {loss:.4g}, before {usual:.4g}\n")
    return steps


def _row(record: TracedRecord, values: Mapping[str, Any]) -> dict[str, Any]:
    place = {"step": record.step, "epoch": record.epoch, "rank": record.rank, "position": record.position}
    origin = record.origin
    return {**place, "dataset": origin.dataset, "shard": origin.shard, "record": origin.record, **values}


def _print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        sys.stdout.write("the run reads it in no step\n")
        return
    several = len({row["dataset"] for row in rows}) > 1
    names = [name for name in rows[0] if several or name != "dataset"]
    most = {"file": None}  # characters of a cell
    cells = [names, *([_text(row[name])[: most.get(name, _SHOWN_CHARACTERS)] for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"({len(value):,} bytes)"
    return "" if value is None else str(value).replace("\n", " ")


def _save_images(trace: RunTrace, records: Sequence[TracedRecord], folder: str) -> None:
    """Write the images of records, as files named by step, rank and position."""
    names = trace.image_columns
    if not names:
        raise ConfigError("--save: the records have no column of images; show other columns with --show")
    for record, values in zip(records, trace.values(records, names), strict=True):
        for name in names:
            if values[name] is not None:
                suffix = _SUFFIXES.get(values[name][:2], ".bin")
                stem = f"step-{record.step}-rank-{record.rank}-{record.position:04d}"
                write_file(f"{folder}/{stem}-{name.replace('/', '_')}{suffix}", values[name])


_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"RI": ".webp", b"GI": ".gif", b"BM": ".bmp"}
