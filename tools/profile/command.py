"""`ringfeed profile`: measure a dataset's loader, or read the records of a run, from the command line.

Tested in tests/tools/profile/test_measure.py and tests/tools/profile/test_run_command.py.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from inspect import signature
from typing import Any

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.pipeline.select.selected_columns import describe_missing, features_without_fill
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.prepare.comma_lists import split_names
from ringfeed.sharding.schema import Schema
from ringfeed.sharding.storage.temporary_folder import process_folder
from ringfeed.sharding.storage.untrusted_files import guarded
from ringfeed.tools.argument_types import add_verbosity, checked_type, parse_bytes
from ringfeed.tools.console import print_text, print_warnings
from ringfeed.tools.measure.run_records import holds_records, read_run
from ringfeed.tools.measure.step_trace import find_trace, read_trace
from ringfeed.tools.measure.workloads import add_shared, check_source, parse_size, user_functions
from ringfeed.tools.report.profile_result import Profile, TraceProfile
from ringfeed.tools.report.run_result import profile_records
from ringfeed.tools.report.trace import write_step_trace, write_trace
from ringfeed.training.config.class_names import shares_by_class
from ringfeed.training.run.state.outputs import check_writable

from .measure import profile, profile_run
from .watch import follow

_EPILOG = """\
examples:
  ringfeed profile data/flights
  ringfeed profile s3://bucket/flights --split train --batch-size 4096 --balance uniform --json
  ringfeed profile data/flights --step model:train_step --transform model:prepare   # would training wait for input?
  ringfeed profile s3://bucket/flights --try              # reads again with the option that it suggests
  ringfeed profile --config train.yaml --set data.batch_size=4096                   # the same of a configured run,
  ringfeed profile --config train.yaml --trace step.json  # and the longest operations of its step
  ringfeed profile runs/1/records                         # a run of ringfeed train, by what output.records wrote
  ringfeed profile runs/1/records --watch                 # the same while it is under way
  ringfeed profile runs/1/trace                           # its longest operations, by what track.profile wrote
  ringfeed profile data/flights --fill tail=unknown --rank 0 --world-size 8
  ringfeed profile data/flights --columns hour,distance --where "carrier in ('AA', 'UA')"
  ringfeed profile s3://bucket/flights --cache /mnt/nvme/cache   # first fills it, then reads it

Options are named after the arguments of Loader (docs/loader.md); --cache-bytes is data.cache_bytes of `ringfeed train`.
In Python, ringfeed.tools.profile.profile(URL, ...) takes all of them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed profile`; a flag's `dest` is a parameter of `profile`."""
    parser.description = (
        "Read a dataset as training would, as fast as possible, and name the stage that holds it back. With a step, or "
        "the configuration of a run, say whether training would wait for its input."
    )
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "url", nargs="?",
        help="dataset: a path, s3://, hdfs://, whatever fsspec opens; or folder of a run's records, or of its trace; "
        "or give --config",
    )  # fmt: skip
    add_shared(parser, "--step", "--transform", "--config", "--set")
    add(
        "--seconds", type=float, default=30.0, metavar="S",
        help="time for all measurements, after what is compiled (default: 30)",
    )  # fmt: skip
    add(
        "--try", action="store_true", dest="try_knob",
        help="measure epochs with the option that the bottleneck suggests, in turn, and say what it brings",
    )  # fmt: skip
    add(
        "--watch", action="store_true", dest="follow",
        help="of a run's records: show the last 30 s of the run each second, until it ends, and then all of it",
    )  # fmt: skip
    add(
        "--trace", metavar="FILE.json",
        help="also write a trace for https://ui.perfetto.dev: of a run's records, or of a few steps, whose "
        "longest operations are then shown",
    )  # fmt: skip
    add_shared(parser, "--html", "--json")
    add_verbosity(parser)
    _add_loader_arguments(parser.add_argument_group("loader"))


def _add_loader_arguments(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add_shared(group, "--split", "--batch-size", "--streams", "--window-shards", "--fetch-threads", "--seed")
    add(
        "--balance", default="natural", metavar="HOW",
        help="natural, uniform, power:A, X->Y:EPOCHS, or JSON weights by class (default: natural)",
    )  # fmt: skip
    add("--steps", type=int, metavar="N", help="batches to read, at least 2 (default: one epoch)")
    add(
        "--fill", action="append", default=[], metavar="FEATURE=VALUE",
        help="value in place of missing ones; may be repeated",
    )  # fmt: skip
    add("--rank", type=int, default=0, metavar="R", help="rank whose share is measured (default: 0)")
    add("--world-size", type=int, default=1, metavar="N", help="number of ranks (default: 1)")
    add("--columns", type=checked_type(split_names), metavar="A,B", help="features to decode (default: all)")
    add(
        "--where", metavar="EXPR",
        help="only records for which this is true, in the syntax of shard-dataset's --filter; they are counted first",
    )  # fmt: skip
    add(
        "--prefetch-bytes", type=checked_type(parse_size), metavar="SIZE",
        help="bytes of shards to fetch ahead of need",
    )  # fmt: skip
    add(
        "--cache", metavar="FOLDER",
        help="where to keep copies of shards: none, memory, or a folder on a local disk (default: none)",
    )  # fmt: skip
    add("--cache-bytes", type=checked_type(parse_bytes), metavar="SIZE", help="size limit of the cache, such as 200GB")


@process_folder()
def run(args: argparse.Namespace) -> int:
    """Run `ringfeed profile`."""
    if args.url is not None and (args.follow or holds_records(args.url)):
        _refuse_others(args, {"url", "follow", "trace", "html", "json", "quiet", "verbose"}, "a run's records")
        return _profile_records(args)
    if args.url is not None and (path := find_trace(args.url)) is not None:
        _refuse_others(args, {"url", "trace", "json", "quiet", "verbose"}, "a run's trace")
        return _profile_trace(args, path)
    if args.follow or (args.trace and not (args.step or args.config)):
        raise ConfigError(
            "--watch and --trace are for a run's records: name their folder (output.records); --trace is for a step, "
            "too: give --step or --config"
        )
    if args.html is not None:
        from ringfeed.tools.report.pages import write_page  # now, for an error if matplotlib is not installed

        check_writable(args.html)
    with print_warnings("ringfeed profile", events=args.json, verbose=args.verbose):
        result = _profile_url(args) if args.config is None else _profile_config(args)
    if args.html is not None:
        write_page(result, args.html)
    print_text(json.dumps(asdict(result) | {"ceilings": result.ceilings}, indent=2) if args.json else result)
    return 0


def _profile_records(args: argparse.Namespace) -> int:
    """Read or follow the records of a run in `args.url`, and print and write what is asked for."""
    for file in filter(None, (args.html, args.trace)):
        check_writable(file)
    if args.html is not None:
        from ringfeed.tools.report.pages import write_run_page  # now, for an error if matplotlib is not installed
    watch = getattr(args, "watch", None)
    records = follow(args.url, watch.check if watch else lambda: None) if args.follow else read_run(args.url)
    with guarded(args.url, "records of a run"):
        result = profile_records(records)
    if args.trace is not None:
        write_trace(records, args.trace)
    if args.html is not None:
        write_run_page(result, records, args.html)
    print_text(json.dumps(asdict(result), indent=2) if args.json else result)
    return 0


def _profile_trace(args: argparse.Namespace, path: str) -> int:
    """Name the longest operations in a trace that a run wrote."""
    if args.trace is not None:
        check_writable(args.trace)
    with quiet_tensorflow():
        inside, spans = read_trace(path)
    if args.trace is not None:
        write_step_trace(spans, args.trace)
    result = TraceProfile(path=path, inside=inside)
    print_text(json.dumps(asdict(result), indent=2) if args.json else result)
    return 0


def _shows_progress(args: argparse.Namespace) -> bool:
    return not (args.json or args.quiet)


def _profile_config(args: argparse.Namespace) -> Profile:
    """Profile a configured run, whose configuration has all other options."""
    taken = {"config", "overrides", "seconds", "try_knob", "trace", "html", "json", "quiet", "verbose"}
    _refuse_others(args, taken, "--config, whose file has all options; use --set KEY=VALUE to override")
    with quiet_tensorflow():
        import tensorflow  # noqa: F401

        return profile_run(
            args.config, args.overrides, seconds=args.seconds, try_knob=args.try_knob, trace=args.trace,
            progress=_shows_progress(args),
        )  # fmt: skip


def _refuse_others(args: argparse.Namespace, taken: set[str], what: str) -> None:
    """Refuse arguments that mean nothing for what is profiled."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    for action in parser._actions:
        if action.dest not in taken and getattr(args, action.dest) != action.default:
            raise ConfigError(f"{next(iter(action.option_strings), 'URL')} is not for {what}")


def _profile_url(args: argparse.Namespace) -> Profile:
    check_source(args)
    manifest = open_dataset(args.url).manifest
    balance = _parse_balance(args.balance, manifest.classes)
    fill = dict(_parse_fill(text, manifest.schema) for text in args.fill)
    wanted = manifest.schema if args.columns is None else manifest.schema.only(args.columns)
    if lacking := features_without_fill(manifest, args.split, wanted, fill):
        flags = " ".join(f"--fill {shlex.quote(name)}=VALUE" for name in lacking)
        raise ConfigError(f"{describe_missing(lacking, args.split)}: {flags}")
    with quiet_tensorflow():
        import tensorflow  # noqa: F401
    given = {name: value for name, value in vars(args).items() if name in signature(profile).parameters}
    functions = user_functions(args)
    return profile(**given | functions | {"balance": balance, "fill": fill, "progress": _shows_progress(args)})


def _parse_balance(text: str, classes: Sequence[Any]) -> str | dict[Any, float]:
    """Parse a word, or shares by class; a class is named by its text, since keys of JSON are strings."""
    if not text.startswith("{"):
        return text
    try:
        shares = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f'--balance takes a word or JSON such as \'{{"late": 0.5, "on time": 0.5}}\': {error}'
        ) from error
    by_class: dict[Any, float] = shares_by_class("--balance", shares, classes)
    return by_class


def _parse_fill(text: str, schema: Schema) -> tuple[str, Any]:
    """Parse a feature and its value; a text that is no value of the feature's dtype stays text."""
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
