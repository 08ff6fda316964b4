"""The command `ringfeed predict`: applies a trained model to a dataset, on all ranks of a ring, or to other records."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.messages import brief, counted
from ringfeed.sharding.prepare import PrepareOptions, split_columns
from ringfeed.sharding.prepare.comma_lists import ALL
from ringfeed.sharding.sources.records.in_memory import write_records
from ringfeed.sharding.sources.ringfeed import find_dataset, open_named_dataset, resolve_split
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.temporary_folder import process_folder, temporary_folder
from ringfeed.training.reports.console import configure_logging
from ringfeed.training.ring.launched import end_with_launcher, is_launched
from ringfeed.training.ring.world import world_from_environment
from ringfeed.training.run.leaving import leave, leave_after
from ringfeed.training.run.state.outputs import check_writable
from ringfeed.training.run.stopping import INTERRUPTED

_PROGRAM = "ringfeed predict"
_STDIN = "-"

DESCRIPTION = (
    "Predict classes, labels or numbers for the records of a file or a dataset; a dataset's also on the ranks of a "
    "Horovod ring."
)

EPILOG = """\
examples:
  ringfeed predict model.keras new.csv --out scored.csv --keep id,name
  echo '{"hours": 3.5, "miles": 1400, "carrier": "UA"}' | ringfeed predict model.keras -
  ringfeed predict model.keras flights --split test --out predictions
  ringfeed predict runs/1 s3://bucket/flights --split new --out s3://bucket/scores --keep id,carrier
  ringfeed launch -n 4 predict model.keras flights --split test --out predictions
  horovodrun -np 2 --gloo ringfeed predict model.keras flights --split test --out predictions

DATA is anything that shard-dataset build reads (CSV, JSON lines, Parquet, images, ...), a dataset that it wrote, or -
for JSON objects on standard input, one a line. New records are prepared as those that the model was trained on were
(types, names, --map, --resize), but none is filtered out. They need no label.

--out NAME.csv, .jsonl or .parquet is one file, in the order of the records; - is JSON lines on standard output. In CSV,
each class has a column of its own, score_CLASS. --out FOLDER is for a dataset: each rank writes one Parquet file,
part-RANK-of-RANKS.parquet, of its part of the split, in the order of the dataset. The columns:

  record      int64, the number of the record, in a dataset as Loader.sample takes it
  ...         the columns of --keep
  predicted   the likeliest class; all labels with a probability from 0.5 on; or the number of a regression, float64
  score       float32, the probability of the class
  scores      float32 [classes], all probabilities, in the order of the classes in _predictions.json

In a FOLDER, _predictions.json comes last: where it is, all records are there. Readers of Parquet folders pass over it.
The predictions are the same on any number of ranks. The same command again finds them there and succeeds; a folder that
holds predictions of another model, dataset or options is refused. A record whose scores are NaN has no prediction, and
the command says how many there are.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "model", metavar="RUN_OR_MODEL", help="file that output.model named, or a run's folder of checkpoints"
    )
    parser.add_argument("url", metavar="DATA", help="records with the columns the model takes: a path or URL, or -")
    parser.add_argument("--out", metavar="PATH", help="file or, for a dataset, empty folder to write [- if DATA is -]")
    parser.add_argument("--split", metavar="NAME", help="split of a dataset to predict [the only one]")
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN,...",
        help="copy columns, such as a key; '*' copies all [the path of image files, else none]",
    )
    parser.add_argument("--delimiter", metavar="CHAR", help="character between the fields of CSV [as in training]")
    parser.add_argument("--encoding", metavar="NAME", help="encoding of CSV [as in training]")
    parser.add_argument("--decimal", choices=(".", ","), help="what begins the fraction of a number [as in training]")
    parser.add_argument(
        "--source-kind", metavar="KIND", default="auto", help="kind of DATA, as shard-dataset build takes it"
    )
    parser.add_argument(
        "--batch-size", type=int, default=1024, metavar="N", help="records that a rank scores at once [1024]"
    )
    parser.add_argument(
        "--data", metavar="URL", help="for checkpoints: where the run's dataset is now [where the run found it]"
    )
    parser.add_argument(
        "--trust-code",
        action="store_true",
        help="import the module:function that the model names, and open a remote dataset that checkpoints name",
    )
    parser.add_argument("--json", action="store_true", help="print a summary as JSON on standard output (rank 0)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")


@process_folder()
def run(args: argparse.Namespace) -> int:
    """Predict and return the exit status; one of several ranks ends the process at an error."""
    watch: Any = getattr(args, "watch", None)
    try:
        _predict(args, watch)
    except KeyboardInterrupt:
        if watch is not None:  # which reports it
            raise
        return leave(_PROGRAM, "interrupted", INTERRUPTED, as_json=args.json)
    except Exception as error:
        return leave_after(error, _PROGRAM, as_json=args.json, memory_remedy="lower --batch-size")
    return 0


def _predict(args: argparse.Namespace, watch: Any) -> None:
    if args.batch_size < 1:
        raise ConfigError(f"--batch-size must be at least 1, got {args.batch_size}")
    world = world_from_environment(os.environ)
    rank = 0 if world is None else world.rank
    if watch is not None:
        watch.is_silent = rank > 0 or is_launched()
    end_with_launcher()
    configure_logging(rank, quiet=args.quiet)
    out = "-" if args.out is None and args.url == _STDIN else args.out
    if out is None:
        raise ConfigError("--out: name a file to write (scored.csv, .jsonl, .parquet), or a folder for a dataset")
    try:
        keep = [name for word in args.keep for name in split_columns(word) or (ALL,)]
    except ValueError as error:
        raise ConfigError(f"--keep: {error}") from error
    with quiet_tensorflow():
        from .prediction_file import is_file
    if not is_file(out):
        _predict_dataset(args, out, keep)
    elif world is not None and world.size > 1:
        raise ConfigError(f"--out: {out} is one file, and there are {world.size} ranks; name a folder")
    else:
        _score(args, out, keep)


def _score(args: argparse.Namespace, out: str, keep: list[str]) -> None:
    """Score records in their order, and write one file."""
    if out != "-":
        check_writable(out)
    started = time.perf_counter()
    with quiet_tensorflow():
        from .prediction_columns import warn_undefined
        from .prediction_file import write_predictions
        from .trained import open_trained
    model = open_trained(args.model, args.data, trust_code=args.trust_code)
    csv = {name: value for name in ("delimiter", "encoding", "decimal") if (value := getattr(args, name)) is not None}
    with _records_at(args.url, args.split) as (source, is_dataset):
        scorer = model.scorer(
            source,
            PrepareOptions() if is_dataset else model.preparation,
            keep=keep,
            kind="ringfeed" if is_dataset else args.source_kind,
            csv=csv,
            batch_size=args.batch_size,
        )
        records, undefined = write_predictions(out, scorer.schema, scorer.tables(), scorer.classes)
    warn_undefined(undefined)
    summary = {"records": records, "undefined": undefined, "seconds": time.perf_counter() - started, "file": out}
    if out != "-":
        _report(args, summary, counted(records, "record"), out)


def _report(
    args: argparse.Namespace, summary: Mapping[str, Any], records: str, out: str, *, is_new: bool = True
) -> None:
    rate = summary["records"] / max(summary["seconds"], 1e-9)
    done = f"predicted {records} ({rate:,.0f}/s)" if is_new else f"the predictions of {records} are there already"
    if args.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    elif not args.quiet:
        sys.stdout.write(f"{done}: {out}\n")


def _predict_dataset(args: argparse.Namespace, out: str, keep: list[str]) -> None:
    """Predict a split of a dataset on all ranks, and write a folder."""
    if args.url == _STDIN or Path(args.url).is_file():
        raise ConfigError(f"--out: the predictions for {args.url} go to one file; name it, such as --out scored.csv")
    manifest = open_dataset(args.url).manifest
    split = _split(args, manifest)
    with quiet_tensorflow():
        from ringfeed.training.ring.connect import connect

        from .predictions import Predictor, hold_predictions, read_summary
        from .trained import open_trained

        ring = connect()
    model = open_trained(args.model, args.data, trust_code=args.trust_code)
    keep = list(manifest.schema.names) if keep == [ALL] else keep
    predictor = Predictor(
        model=model, url=args.url, manifest=manifest, split=split, keep=keep, batch_size=args.batch_size
    )
    started, folder = time.perf_counter(), Storage(out)
    held = hold_predictions(out, predictor.digest) if ring.rank == 0 else nullcontext(folder)
    with held as storage:
        is_new: bool = ring.allgather_object(storage is not None)[0]
        if is_new:
            with _bar(is_shown=ring.rank == 0 and not args.quiet and sys.stderr.isatty()) as show:
                summary = predictor.run(ring, folder if storage is None else storage, show)
            ring.barrier()
        elif ring.rank == 0:
            summary = read_summary(folder)
    if ring.rank == 0:
        summary = {**summary, "seconds": time.perf_counter() - started}
        _report(args, summary, f"{summary['records']:,} records of {split!r}", out, is_new=is_new)


def _split(args: argparse.Namespace, manifest: Manifest) -> str:
    names = list(manifest.splits)
    if args.split is None and len(names) == 1:
        return names[0]
    if args.split not in names:
        given = "choose a split" if args.split is None else f"there is no split {args.split!r}"
        raise ConfigError(f"--split: {given}; {args.url} has {', '.join(names)}")
    return str(args.split)


@contextmanager
def _bar(*, is_shown: bool) -> Iterator[Callable[[int, int], object]]:
    """Yield what shows the records done and to do, as a progress bar on a terminal; elsewhere it shows nothing."""
    if not is_shown:
        yield lambda *_: None
        return
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("")
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def _records_at(url: str, split: str | None) -> Iterator[tuple[Any, bool]]:
    """Yield what `sources.open_source` opens at a path, a URL or ``-``, and whether it is a dataset's split.

    A ConfigError says that a split is missing, or is given for what has none; a SourceError that standard input holds
    no JSON objects.
    """
    found = None if url == _STDIN else find_dataset(url)
    if found is not None:
        folder, named = found
        dataset, _ = open_named_dataset(folder)
        own = resolve_split(folder, dataset, named if split is None else split)
        yield f"{folder}#{own}", True
        return
    if split is not None:
        raise ConfigError(f"--split: {url} is no dataset, so it has no splits; leave it out")
    if url != _STDIN:
        yield url, False
        return
    rows = list(_json_rows(sys.stdin.buffer))
    with temporary_folder() as temporary:
        yield write_records(rows, Storage(str(temporary))), False


def _json_rows(file: IO[bytes]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SourceError(f"standard input: line {number}: {brief(error)}; give one JSON object a line") from error
        if not isinstance(row, dict):
            raise SourceError(f"standard input: line {number}: it is no JSON object; give one a line, by column")
        yield row
