"""The command `ringfeed train`: parses arguments and reports errors.

TensorFlow is imported only once the configuration is valid.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.temporary_folder import end_process, process_folder

from .config.backend import HOROVOD, MULTI_WORKER, PARAMETER_SERVER
from .config.config_file import apply_overrides, load_config, parse_config
from .config.keys import describe_keys
from .config.rules import check_pairs
from .elastic.members import Members, open_members
from .reports.console import configure_logging
from .ring.launched import end_with_launcher, is_launched
from .ring.tf_config import multi_worker_world, worker_world
from .ring.world import World, refuse_settings, world_from_environment
from .run.leaving import leave as leave_ring
from .run.leaving import leave_after, print_ending
from .run.state.outputs import check_writable, encode_metrics
from .run.stopping import INTERRUPTED, Stopped
from .servers.cluster import CHIEF, cluster_from_environment

if TYPE_CHECKING:
    from .checkpoint.background import Memory
    from .config.train_config import TrainConfig
    from .ring.horovod_ring import HorovodRing
    from .ring.ring import Ring

DESCRIPTION = "Train a model on a dataset that shard-dataset wrote, alone or as one of several ranks."

EPILOG = """\
example:
  shard-dataset build flights.parquet /data/flights --label late --split train=0.9,test=0.1
  cat > flights.yaml <<END
  data: {url: /data/flights, batch_size: 2048, balance: uniform}
  model: {name: tabular, hidden: [256, 128]}
  optimizer: {name: lars, learning_rate: 0.5, base_batch_size: 256, weight_decay: 1e-4}
  schedule: {decay: cosine, warmup_epochs: 1}
  precision: bfloat16
  epochs: 5
  checkpoint: {url: /data/run-1, every_steps: 200}
  output: {metrics: /data/run-1.json}
  END
  horovodrun -np 2 --gloo ringfeed train --config flights.yaml --set epochs=3

A killed run resumes from its last checkpoint when the same command is run again. SIGTERM ends the step, writes a
checkpoint and exits with status 75 (without checkpoint.url 143); Ctrl-C ends at once with status 130.

keys of the configuration and of --set [default]:
"""

_SHORT_RUNS = (  # flags that set keys
    ("--max-steps", "N", "stop after N steps; the same as --set max_steps=N"),
    ("--max-time", "TIME", "stop after a time such as 90s, 30m or 1h30m, with a checkpoint and status 0"),
    ("--overfit-batches", "N", "train on the same N batches in each epoch, whose loss a sound model brings near 0"),
)
_PROGRAM = "ringfeed train"
_PLOTS = (".png", ".svg", ".pdf", ".json")
_TIMELINE = "HOROVOD_TIMELINE"
_CALLS_BEFORE_A_STEP = 1  # the trainer calls it before each batch, the first time before step 0
_SAVE_SECONDS = 60.0  # after SIGTERM; a run that still goes on then hangs. horovodrun kills after 5 seconds


class TerminationSignals(Protocol):
    """What ends the process on a signal: `ringfeed` sets it as ``args.watch``."""

    is_silent: bool
    is_terminating: bool
    advice: str

    def check(self) -> None:
        """Raise a KeyboardInterrupt if a signal has come that was not deferred."""

    def defer_termination(self, seconds: float) -> None:
        """Let SIGTERM set `is_terminating`, and end the process only if it still runs after `seconds`."""


class _SignalCheck:
    """Whether SIGTERM has come; from the first step on, before which there is nothing to save. Calls `beat`, too."""

    def __init__(self, watch: TerminationSignals | None, beat: Callable[[], object]) -> None:
        self._watch, self._beat = watch, beat
        self._calls = 0

    def __call__(self) -> bool:
        self._beat()
        if self._watch is None:
            return False
        self._watch.check()
        self._calls += 1
        if self._calls == _CALLS_BEFORE_A_STEP + 1:
            self._watch.defer_termination(_SAVE_SECONDS)
        return self._watch.is_terminating


class _SetKey(argparse.Action):
    """Overrides the key of the flag's name: `--max-time 2h` is `--set max_time=2h`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.overrides = [*namespace.overrides, f"{self.dest}={values}"]


class _PrintSchema(argparse.Action):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "nargs": 0, "default": argparse.SUPPRESS})

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        from .config.json_schema import config_schema

        sys.stdout.write(json.dumps(config_schema(), indent=1) + "\n")
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed train`, with all keys of the configuration."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG + describe_keys()
    parser.add_argument("--config", metavar="FILE.yaml", help="configuration of the run (default: what --set says)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a key of the configuration, such as optimizer.learning_rate=0.5; may be repeated",
    )
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--print-config",
        action="store_true",
        help="do not train, but print the whole configuration as YAML, with a comment for each key",
    )
    modes.add_argument(
        "--dry-run",
        action="store_true",
        help="do not train, but print what the run would do: steps, parameters, memory, bytes that ranks exchange",
    )
    modes.add_argument(
        "--lr-find",
        metavar="FILE",
        help="do not train, but try 100 steps with a rising learning rate, print where the loss falls most steeply, "
        "and write a plot (.png, .svg, .pdf) or the figures (.json)",
    )
    for flag, unit, text in _SHORT_RUNS:
        parser.add_argument(flag, metavar=unit, action=_SetKey, default=argparse.SUPPRESS, help=text)
    parser.add_argument("--print-schema", action=_PrintSchema, help="print the JSON schema of the file, for editors")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the metrics as JSON on standard output (rank 0), and events on standard error, one JSON object a "
        "line: progress (stage, done, total, loss, ...), evaluation, stopped_early, test, warning, info and error",
    )
    parser.set_defaults(ranks=0)  # `ringfeed launch` sets it for --dry-run
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="print no progress; warnings remain")
    group.add_argument("-v", "--verbose", action="store_true", help="print details, of all ranks")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ringfeed train", formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    return run(parser.parse_args(argv))


@process_folder()
def run(args: argparse.Namespace) -> int:
    """Train and return the exit status; one of several ranks ends the process at an error: see `leave`."""
    leave = functools.partial(leave_ring, _PROGRAM, as_json=args.json)
    watch: TerminationSignals | None = getattr(args, "watch", None)
    try:
        _train(args, watch)
    except KeyboardInterrupt:
        if watch is not None:  # which reports it
            raise
        return leave("interrupted", INTERRUPTED)
    except Stopped as stopped:  # all ranks raise it
        if stopped.status == 0:
            _say_stopped(str(stopped), as_json=args.json)
            return 0
        return leave(str(stopped), stopped.status)
    except Exception as error:
        remedy = "lower data.batch_size, or the sizes in model"
        return leave_after(error, _PROGRAM, as_json=args.json, memory_remedy=remedy)
    return 0


def _say_stopped(message: str, *, as_json: bool) -> None:
    """Say on rank 0 that the time of the run was over."""
    world = world_from_environment(os.environ) or worker_world(os.environ)
    if world is None or world.rank == 0:
        print_ending(_PROGRAM, message, 0, as_json=as_json)


def _config(args: argparse.Namespace) -> TrainConfig:
    if args.config is not None:
        return load_config(args.config, args.overrides)
    if not args.overrides:
        raise ConfigError("there is no run; give --config FILE.yaml, or its keys, such as --set data.url=shards")
    return parse_config(apply_overrides({}, args.overrides), "--set")


def _train(args: argparse.Namespace, watch: TerminationSignals | None) -> None:
    config = _config(args)
    if args.print_config or args.dry_run:
        _describe(config, args)
        return
    if args.lr_find and not args.lr_find.endswith(_PLOTS):
        raise ConfigError(f"--lr-find: {args.lr_find} must end in one of {', '.join(_PLOTS)}")
    if watch is not None and not args.lr_find:
        watch.advice = config.checkpoint.after_interrupt
    if config.backend == PARAMETER_SERVER:
        _train_on_servers(config, args, watch)
        return
    world = _world(config.backend)
    if watch is not None:
        watch.is_silent = (world is not None and world.rank > 0) or is_launched()
    end_with_launcher()
    if world is not None and config.backend == HOROVOD:
        refuse_settings(os.environ)
    if world is None or world.rank == 0:  # the rank that writes outputs
        _check_outputs(config, args)
    if config.track.timeline is not None and not args.lr_find:
        _write_timeline(config.track.timeline, world)
    members = open_members()
    if members is not None and not args.lr_find:
        check_pairs(config, {"--host-discovery-script": True})  # `launch --elastic` has checked its own
        _train_elastically(config, members, watch, args)
        return
    if config.backend == MULTI_WORKER:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it would log the end of a worker several times
    with quiet_tensorflow():
        from .ring.connect import connect

        hierarchical, devices = config.sync.hierarchical, config.mirrored.devices
        ring = connect(backend=config.backend, hierarchical=hierarchical, devices=devices)
    with _watching(config, ring, watch, args) as check:
        if args.lr_find:
            _find_learning_rate(config, ring, check, args)
            return
        from .run.trainer import Trainer

        _print_metrics(Trainer(config, ring, check).run(), ring, args)


def _describe(config: TrainConfig, args: argparse.Namespace) -> None:
    """Print the configuration, or the plan of the run, on rank 0 alone."""
    world = world_from_environment(os.environ) or worker_world(os.environ)
    if world is not None and world.rank > 0:
        return
    if args.print_config:
        from .config.printed import print_config

        sys.stdout.write(print_config(config))
        return
    check_pairs(config, {"--dry-run": True})
    _check_outputs(config, args)
    configure_logging(0, quiet=args.quiet, verbose=args.verbose, as_json=args.json)
    with quiet_tensorflow():
        from .planning.plan import plan_json, plan_run, plan_text
    plan = plan_run(config, args.ranks or (world.size if world else 1))
    sys.stdout.write(plan_json(plan) if args.json else plan_text(plan))


def _world(backend: str) -> World | None:
    """Return this process's place among the ranks of a backend; None if it is alone.

    A ConfigError says that the backend is one process, but a launcher started several, or that it needs several.
    """
    if backend == MULTI_WORKER:
        return multi_worker_world(os.environ)
    world = world_from_environment(os.environ)
    if backend == HOROVOD:
        return world
    if world is not None and world.size > 1:
        raise ConfigError(
            f"backend={backend} is one process, but a launcher started {world.size}, each of which would train alone: "
            "start ringfeed train without a launcher, or set backend=horovod"
        )
    return None


def _write_timeline(path: str, world: World | None) -> None:
    """Make Horovod, which is yet to start, write its timeline; rank 0 does. A ConfigError if there is no ring."""
    if world is None or world.size == 1:
        raise ConfigError("track.timeline is of a ring of several ranks: start them by ringfeed launch -n 2")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    os.environ[_TIMELINE] = os.path.abspath(path)


def _check_outputs(config: TrainConfig, args: argparse.Namespace) -> None:
    for output in filter(None, (config.output.model, config.output.metrics, args.lr_find)):
        check_writable(output)
    if config.checkpoint.url:  # the trainer checks stores itself, unless the run has ended
        check_writable(f"{config.checkpoint.url.rstrip('/')}/checkpoint", in_stores=False)
    track = config.track
    for file in filter(None, (track.jsonl, track.timeline)):
        check_writable(file)
    for folder in filter(None, (track.csv, track.tensorboard, track.profile)):
        check_writable(f"{folder.rstrip('/')}/steps.csv")
    if config.output.records:
        check_writable(f"{config.output.records.rstrip('/')}/rank")


def _train_on_servers(config: TrainConfig, args: argparse.Namespace, watch: TerminationSignals | None) -> None:
    """Do this process's task in a cluster with parameter servers: train as the chief, or serve until it ends."""
    cluster = cluster_from_environment(os.environ)
    if args.lr_find:
        raise ConfigError("--lr-find does not go with backend=parameter_server; use it with backend=horovod")
    is_chief = cluster.kind == CHIEF
    if watch is not None:
        watch.is_silent = not is_chief or is_launched()
    end_with_launcher()
    if is_chief:
        _check_outputs(config, args)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it would log a task's error as pages of traces
    with quiet_tensorflow():
        from .ring.connect import share_cores

        share_cores(cluster.local_tasks)
    configure_logging(0 if is_chief else cluster.index + 1, quiet=args.quiet, verbose=args.verbose, as_json=args.json)
    if not is_chief:
        from .servers.task import serve_task

        serve_task(config, cluster, _SignalCheck(watch, int))
    from .ring.ring import SoloRing
    from .servers.parameter_server import ServerTrainer

    stalled = functools.partial(_stalled, as_json=args.json)
    trainer = ServerTrainer(config, cluster, _SignalCheck(watch, int), stalled)
    _print_metrics(trainer.run(), SoloRing(), args)
    trainer.dismiss()
    end_process(0)  # TensorFlow would complain of tasks that are gone


def _train_elastically(
    config: TrainConfig, members: Members, watch: TerminationSignals | None, args: argparse.Namespace
) -> None:
    with quiet_tensorflow():
        from .elastic.survive import survive
        from .run.trainer import Trainer

    def run(ring: HorovodRing, memory: Memory) -> dict[str, Any]:
        def lose(ranks: list[int]) -> None:
            members.lost(ranks)
            ring.hang_up()

        ring.expect_answers(config.lost_seconds)
        with _watching(config, ring, watch, args, lose) as check:
            metrics = Trainer(config, ring, lambda: check() or members.is_change_due(), memory).run()
        _print_metrics(metrics, ring, args)
        return metrics

    survive(members, run, lambda: watch is not None and watch.is_terminating)


@contextmanager
def _watching(
    config: TrainConfig,
    ring: Ring,
    watch: TerminationSignals | None,
    args: argparse.Namespace,
    lose: Callable[[list[int]], None] | None = None,
) -> Iterator[_SignalCheck]:
    """Log, and watch for signals, stalled and lost ranks, while a ring trains."""
    from .ring.watchdog import Watchdog

    configure_logging(ring.rank, quiet=args.quiet, verbose=args.verbose, as_json=args.json)
    if ring.size == 1 or not (config.watchdog_seconds or lose):
        yield _SignalCheck(watch, int)  # does nothing
        return
    stalled = functools.partial(_stalled, as_json=args.json)
    lost_seconds = config.lost_seconds if lose else None
    watchdog = Watchdog(ring, config.watchdog_seconds or math.inf, stalled, lost_seconds=lost_seconds, lose=lose)
    try:
        yield _SignalCheck(watch, watchdog.beat)
    finally:
        watchdog.close()


def _print_metrics(metrics: dict[str, Any], ring: Ring, args: argparse.Namespace) -> None:
    if args.json and ring.rank == 0:
        sys.stdout.write(encode_metrics(metrics).decode())
        sys.stdout.flush()


def _find_learning_rate(config: TrainConfig, ring: Ring, check: Callable[[], bool], args: argparse.Namespace) -> None:
    from .run.find_rate import find_learning_rate, write_range_test

    found = find_learning_rate(config, ring, check)
    if ring.rank:
        return
    write_range_test(args.lr_find, found)
    if args.json:
        sys.stdout.write(json.dumps({"suggestion": found.suggestion, "lowest": found.lowest}) + "\n")
    elif found.suggestion is None:
        tried = f"with rates from {found.rates[0]:.3g} to {found.rates[-1]:.3g}"
        sys.stdout.write(f"the loss never falls, {tried}: change optimizer.learning_rate, around which they lie\n")
    else:
        sys.stdout.write(
            f"the loss falls most steeply at optimizer.learning_rate={found.suggestion:.3g}, and is lowest at "
            f"{found.lowest:.3g}: {args.lr_find}\n"
        )


def _stalled(message: str, *, as_json: bool) -> NoReturn:
    leave_ring(_PROGRAM, message, 1, as_json=as_json, is_stall=True)
    end_process(1)  # the chief of a cluster is no rank
