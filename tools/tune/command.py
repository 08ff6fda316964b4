"""`ringfeed tune`: search for better options of a loader or a run from the command line.

Tested in tests/tools/tune/test_tune.py.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import yaml

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.temporary_folder import process_folder
from ringfeed.tools.argument_types import add_verbosity, at_least, checked_type, parse_bytes
from ringfeed.tools.console import print_text, print_warnings, stage_progress
from ringfeed.tools.measure.workloads import add_shared, check_source, user_functions
from ringfeed.training.run.state.outputs import check_writable, write_file

if TYPE_CHECKING:
    from ringfeed.tools.report.tuning_result import Tuning

_COUNT = checked_type(at_least(1))
_EPILOG = """\
examples:
  ringfeed tune s3://bucket/flights                                  # the loader alone
  ringfeed tune s3://bucket/flights --step model:train_step --out tuned.yaml
  ringfeed tune --config train.yaml --out tuned.yaml                 # a run of ringfeed train
  ringfeed tune s3://bucket/flights --cache /mnt/nvme/cache --epochs 20
  ringfeed tune s3://bucket/flights --keep-order --memory 2GiB

It measures what the store, the cores and the step give (about a third of --seconds), simulates some sixty combinations
of streams, windows, fetch threads, prefetched bytes, cache and shard size, and measures the best three beside the
defaults, in turn. It proposes only what was faster in every round, and else the defaults: docs/simulation.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed tune`."""
    parser.description = (
        "Search for options of the loader with which an epoch takes less time, and confirm the best by measurement."
    )
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("url", nargs="?", help="dataset: a path, s3://, hdfs://, whatever fsspec opens; or give --config")
    add_shared(parser, "--split", "--batch-size", "--step", "--transform", "--config", "--set", "--json")
    add("--world-size", type=_COUNT, default=1, metavar="N", help="number of ranks; the first is measured")
    add("--seconds", type=float, default=60.0, metavar="S", help="time for measurements (default: 60)")
    add(
        "--cache", metavar="FOLDER",
        help="where a cache may be: a folder on a local disk, or memory; it is tried beside that (default: no cache)",
    )  # fmt: skip
    add(
        "--epochs", type=_COUNT, default=3, metavar="N",
        help="epochs of the run: a cache pays from the second on (default: 3)",
    )  # fmt: skip
    add("--memory", type=checked_type(parse_bytes), metavar="SIZE", help="most of shards and batches in each rank")
    add("--keep-order", action="store_true", help="search only options that leave every batch as it is")
    add("--out", metavar="FILE.yaml", help="write the options as a configuration for ringfeed train")
    add_verbosity(parser)


@process_folder()
def run(args: argparse.Namespace) -> int:
    """Run `ringfeed tune`."""
    if args.out is not None:
        check_writable(args.out)
    with (
        print_warnings("ringfeed tune", events=args.json, verbose=args.verbose),
        stage_progress({}, silent=args.json or args.quiet) as report,
    ):
        result = _tuned(args, report)
    if args.out is not None:
        write_file(args.out, _configuration(args, result).encode())
    print_text(json.dumps(result.to_json(), indent=2) if args.json else result)
    return 0


def _tuned(args: argparse.Namespace, report: Any) -> Tuning:
    with quiet_tensorflow():
        import tensorflow  # noqa: F401
    from .tune import tune, tune_run

    options: dict[str, Any] = {
        "cache": args.cache, "epochs": args.epochs, "keep_order": args.keep_order, "memory": args.memory,
        "seconds": args.seconds, "report": report,
    }  # fmt: skip
    check_source(args)
    if args.config is not None:
        if args.url is not None or args.step or args.transform:
            raise ConfigError("URL, --step and --transform are not for --config, whose file names dataset and model")
        return tune_run(args.config, args.overrides, **options)
    options |= user_functions(args)
    return tune(args.url, split=args.split, batch_size=args.batch_size, world_size=args.world_size, **options)


def _configuration(args: argparse.Namespace, result: Tuning) -> str:
    """The configuration of a run with the chosen options: --config with them added, or the keys of the dataset."""
    if args.config is None:
        tree: dict[str, Any] = {"data": {"url": args.url, "batch_size": args.batch_size}}
    else:
        from ringfeed.training.config.config_file import load_tree
        from ringfeed.training.config.paths import absolute_paths

        tree = absolute_paths(load_tree(args.config, args.overrides))  # --out may be in another folder
    tree["data"] = {**tree.get("data", {}), **result.options}
    if args.config is None and args.split != "train":
        tree["data"]["train_split"] = args.split
    note = f"{result.gain:.2f} x the rate of the defaults" if result.chosen else "the defaults"
    return f"# ringfeed tune: {note}\n" + yaml.safe_dump(tree, sort_keys=False)
