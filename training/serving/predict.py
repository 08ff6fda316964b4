"""The command `ringfeed predict`: applies a trained model to a dataset, in one process or on all ranks of a ring."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.storage import Storage
from ringfeed.sharding.storage.temporary_folder import process_folder
from ringfeed.training.reports.console import configure_logging
from ringfeed.training.ring.launched import end_with_launcher, is_launched
from ringfeed.training.ring.world import world_from_environment
from ringfeed.training.run.leaving import leave, leave_after
from ringfeed.training.run.stopping import INTERRUPTED

__all__ = ["add_arguments", "run"]

_PROGRAM = "ringfeed predict"

DESCRIPTION = "Predict classes, labels or numbers for a dataset's records, alone or as one rank of a Horovod ring."

EPILOG = """\
examples:
  ringfeed predict model.keras flights --split test --out predictions
  ringfeed predict runs/1 s3://bucket/flights --split new --out s3://bucket/scores --keep id --keep carrier
  ringfeed launch -n 4 predict model.keras flights --split test --out predictions
  horovodrun -np 2 --gloo ringfeed predict model.keras flights --split test --out predictions

Each rank writes one Parquet file, part-RANK-of-RANKS.parquet, of its part of the split, in the order of the dataset:

  record      int64, the number of the record in the split, as Loader.sample takes it
  ...         the columns of --keep
  predicted   the likeliest class; all labels with a probability from 0.5 on; or the number of a regression, float64
  score       float32, the probability of the class
  scores      float32 [classes], all probabilities, in the order of the classes in _predictions.json

_predictions.json comes last: where it is, all records are there. Readers of Parquet folders pass over it. The
predictions are the same on any number of ranks. The same command again finds them there and succeeds; a folder that
holds those of another model, dataset or options is refused. A record whose scores are NaN has no prediction, and the
command says how many there are.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed predict`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "model", metavar="RUN_OR_MODEL", help="file that output.model named, or a run's folder of checkpoints"
    )
    parser.add_argument("url", metavar="URL", help="dataset that shard-dataset wrote, with the columns the model takes")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="empty folder to write to: a path or URL")
    parser.add_argument("--split", metavar="NAME", help="split to predict [the only one]")
    parser.add_argument(
        "--keep", action="append", default=[], metavar="COLUMN", help="copy a column, such as a key; may be repeated"
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
    manifest = open_dataset(args.url).manifest
    split = _split(args, manifest)
    with quiet_tensorflow():
        from ringfeed.training.ring.connect import connect

        from .predictions import Predictor, hold_predictions, read_summary
        from .trained import open_trained

        ring = connect()
    model = open_trained(args.model, args.data, trust_code=args.trust_code)
    predictor = Predictor(
        model=model, url=args.url, manifest=manifest, split=split, keep=args.keep, batch_size=args.batch_size
    )
    started, folder = time.perf_counter(), Storage(args.out)
    held = hold_predictions(args.out, predictor.digest) if ring.rank == 0 else nullcontext(folder)
    with held as storage:
        is_new: bool = ring.allgather_object(storage is not None)[0]
        if is_new:
            with _Bar(is_shown=ring.rank == 0 and not args.quiet and sys.stderr.isatty()) as show:
                summary = predictor.run(ring, folder if storage is None else storage, show)
            ring.barrier()
        elif ring.rank == 0:
            summary = read_summary(folder)
    if ring.rank:
        return
    seconds = time.perf_counter() - started
    records = f"{summary['records']:,} records of {split!r}"
    if args.json:
        sys.stdout.write(json.dumps({**summary, "seconds": seconds}) + "\n")
    elif not args.quiet:
        done = f"predicted {records} ({summary['records'] / seconds:,.0f}/s)"
        sys.stdout.write(f"{done if is_new else f'the predictions of {records} are there already'}: {args.out}\n")


def _split(args: argparse.Namespace, manifest: Manifest) -> str:
    names = list(manifest.splits)
    if args.split is None and len(names) == 1:
        return names[0]
    if args.split not in names:
        given = "choose a split" if args.split is None else f"there is no split {args.split!r}"
        raise ConfigError(f"--split: {given}; {args.url} has {', '.join(names)}")
    return str(args.split)


class _Bar:
    """A progress bar on a terminal; shows nothing elsewhere."""

    def __init__(self, *, is_shown: bool) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True)) if is_shown else None

    def __enter__(self) -> Callable[[int, int], None]:
        if self._progress is None:
            return lambda *_: None
        progress, task = self._progress, self._progress.add_task("")
        progress.start()
        return lambda done, total: progress.update(task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
