"""The command `ringfeed launch`: starts the ranks of a run on one machine, and reports in one line how they ended.

No ssh, no prefixes, no traces of the launcher: rank 0 writes to the terminal as if it were alone. A rank that fails
says why through a pipe, and the launcher then ends the others. With `--elastic` the others go on: `elastic`.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.messages import printable
from ringfeed.sharding.storage.temporary_folder import remove_killed_folders

from .backends.local_cluster import LocalCluster
from .config.backend import HOROVOD, MULTI_WORKER, PARAMETER_SERVER
from .config.config_file import load_config
from .config.synchronisation import refuse_elastic
from .config.train_config import TrainConfig
from .elastic.processes import SAVE_SECONDS, Asked, Ending, ending_of, start_rank
from .elastic.ray_ranks import run_on_ray
from .elastic.restarts import Restarts, WantedRanks
from .elastic.supervisor import Supervisor
from .loop.stopping import INTERRUPTED
from .ring.horovod import local_ranks
from .ring.host_groups import host_groups
from .ring.launched import Report
from .ring.workers import local_workers
from .ring.world import refuse_settings
from .train import add_arguments as add_train_arguments
from .train import run as run_train

__all__ = ["add_arguments", "run"]

DESCRIPTION = "Start the ranks of a run on this machine, and report in one line how they ended."

EPILOG = """\
examples:
  ringfeed launch -n 2 train --config flights.yaml
  ringfeed launch -n 4 --elastic train --config flights.yaml --set checkpoint.every_steps=100
  ringfeed launch --ps 1 --workers 4 train --config flights.yaml --set backend=parameter_server
  ringfeed launch --ray ray://head:10001 -n 8 train --config flights.yaml

Rank 0 writes to the terminal as if it were alone. A rank that fails, is killed, or lets the others wait for
watchdog_seconds ends the run, with one line that names it and the cause. SIGTERM saves a checkpoint (status 75: the
same command resumes), Ctrl-C ends at once. The ranks end with the launcher, however it ends.

--elastic replaces a rank that dies. The others keep their processes: they go on from the last commit in memory, which
loses at most checkpoint.commit_steps steps (null: every_steps), and let the new rank in when it is ready. Where all
die or stall, they start again from the newest checkpoint. Three failures without progress, or three in one place within
a minute after the rank joined, lower the number of ranks by one, down to --min-ranks. The number in --ranks-file may
change: ranks then join or leave, which loses no step. Every sample counts once an epoch, on any number of ranks.

-n starts the workers of backend=multi_worker, too, which needs no Horovod.

--workers starts workers, parameter servers and a chief for backend=parameter_server (docs/asynchronous.md). A worker
that dies is started again, and the others go on meanwhile.

--ray starts the ranks on a Ray cluster, wherever that has a free processor for each (docs/clusters.md).

For several machines without Ray use horovodrun: see docs/ranks.md. For Slurm and Kubernetes see docs/clusters.md.
"""

_POLL_SECONDS = 0.1
_REPORT_SECONDS = 1.0  # in which a rank that ends tells why


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed launch`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("-n", "--ranks", type=int, default=0, metavar="N", help="number of ranks")
    parser.add_argument("--ps", type=int, metavar="P", help="number of parameter servers, with --workers [1]")
    parser.add_argument("--workers", type=int, metavar="W", help="workers of parameter servers, in place of -n")
    parser.add_argument("--elastic", action="store_true", help="replace ranks that die, while the others go on")
    parser.add_argument(
        "--min-ranks", type=int, default=1, metavar="M", help="with --elastic: fewest ranks to go on with [1]"
    )
    parser.add_argument(
        "--ranks-file", metavar="FILE", help="with --elastic: a file with the number of ranks, which may change"
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="start the ranks on the Ray cluster at ray://HOST:PORT, or on `auto`"
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="train ...",
        help="the command of each rank: train, predict or bench-ring",
    )


def run(args: argparse.Namespace) -> int:
    """Start the ranks, wait for their end, and return the exit status."""
    train = _train_arguments(args)
    config = _checked(args, train)
    if train is not None and (train.print_config or train.dry_run):
        train.ranks = args.ranks
        return run_train(train)
    asked = Asked()
    with asked.listening():
        if args.ray is not None:
            ending = run_on_ray(args.ray, args.ranks, args.program, asked)
        elif args.workers is not None:
            ending = LocalCluster(args.ps or 1, args.workers, args.program, asked).run()
        else:
            ranks = _Ranks(args, asked, config.backend if config else HOROVOD)
            ending = _run_elastic(args, config, asked) if args.elastic and config else ranks.run()
    remove_killed_folders()  # those of ranks that were killed because another one failed
    if ending.line:
        event = {"event": "error" if ending.status == 1 else "interrupted"}
        as_json = json.dumps({**event, "message": ending.line, "status": ending.status})
        kind = "error: " if ending.status == 1 else ""
        sys.stderr.write(
            f"{as_json if '--json' in args.program else f'ringfeed launch: {kind}{printable(ending.line)}'}\n"
        )
    return ending.status


def _run_elastic(args: argparse.Namespace, config: TrainConfig, asked: Asked) -> Ending:
    wanted = WantedRanks(args.ranks_file, args.ranks)
    restarts = Restarts(ranks=wanted.number, least=args.min_ranks, url=str(config.checkpoint.url))
    return Supervisor(
        command=args.program,
        wanted=wanted,
        restarts=restarts,
        asked=asked,
        patience_seconds=config.watchdog_seconds,
    ).run()


def _train_arguments(args: argparse.Namespace) -> argparse.Namespace | None:
    """Return the arguments of the ranks, if they train."""
    if args.program[:1] != ["train"]:
        return None
    parser = argparse.ArgumentParser(prog="ringfeed train")
    add_train_arguments(parser)
    return parser.parse_args(args.program[1:])


def _checked(args: argparse.Namespace, train: argparse.Namespace | None) -> TrainConfig | None:
    """Return the configuration of the run, if it has one, after a check of everything that needs no rank.

    Raises:
        ConfigError: the command is wrong, or cannot be elastic.
    """
    if args.ps is not None and args.workers is None:
        raise ConfigError("--ps needs --workers: ringfeed launch --ps 1 --workers 2 train --config FILE.yaml")
    if args.workers is not None:
        if args.ranks or args.elastic or min(args.workers, args.ps or 1) < 1:
            raise ConfigError("--workers and --ps are at least 1, and go without -n and --elastic")
    elif args.ranks < 1 or not 1 <= args.min_ranks <= args.ranks:
        raise ConfigError(f"1 <= --min-ranks <= -n must hold, got -n {args.ranks} and --min-ranks {args.min_ranks}")
    if args.program[:1] not in (["train"], ["predict"], ["bench-ring"]):
        raise ConfigError("the ranks run train, predict or bench-ring: ringfeed launch -n 2 train --config FILE.yaml")
    if args.ray is not None and (args.elastic or args.workers is not None):
        raise ConfigError(
            "--ray goes with -n, not with --elastic or --workers: ringfeed launch --ray auto -n 2 train ..."
        )
    if args.ranks_file and not args.elastic:
        raise ConfigError("--ranks-file needs --elastic")
    refuse_settings(os.environ)
    if train is None:
        if args.workers is not None:
            raise ConfigError(f"{args.program[0]} runs on a ring: ringfeed launch -n 2 {args.program[0]} ...")
        if args.elastic:
            raise ConfigError(f"--elastic goes on from checkpoints, which {args.program[0]} has not; leave it out")
        return None
    config = load_config(train.config, train.overrides)
    if config.backend not in (HOROVOD, MULTI_WORKER, PARAMETER_SERVER):
        raise ConfigError(
            f"backend={config.backend} is one process, without a launcher: ringfeed train --config FILE.yaml"
        )
    if (config.backend == PARAMETER_SERVER) != (args.workers is not None):
        flags = "--ps 1 --workers 2" if config.backend == PARAMETER_SERVER else "-n 2"
        raise ConfigError(f"backend={config.backend} is started by: ringfeed launch {flags} train --config FILE.yaml")
    if args.ray is not None and config.backend != HOROVOD:
        raise ConfigError(f"--ray needs backend={HOROVOD}, got backend={config.backend}")
    if args.elastic and config.backend != HOROVOD:
        raise ConfigError(f"--elastic needs backend={HOROVOD}, got backend={config.backend}")
    if args.elastic and (config.checkpoint.url is None or config.checkpoint.every_steps is None):
        raise ConfigError("--elastic goes on from checkpoints: set checkpoint.url and checkpoint.every_steps")
    if args.elastic and not config.checkpoint.resume:
        raise ConfigError("--elastic goes on from checkpoints, which checkpoint.resume=false forbids; leave it out")
    if args.elastic and config.sync.clients is not None:
        raise ConfigError("sync.clients gives each rank a part of its own, so none can come or go: leave out --elastic")
    if args.elastic:
        refuse_elastic(config.sync)
    if config.sync.hierarchical:
        host_groups(["here"] * args.ranks)
    if args.elastic and config.max_time is not None:
        raise ConfigError("--elastic keeps a run going, and max_time ends it: leave one out")
    if args.elastic and train.lr_find:
        raise ConfigError("--lr-find runs 100 steps, and has no checkpoint to go on from: leave out --elastic")
    return config


class _Ranks:
    """The processes of a run in which all ranks live or end together.

    Args:
        args: the command line.
        asked: the launcher's signals.
        backend: what connects them.
    """

    def __init__(self, args: argparse.Namespace, asked: Asked, backend: str) -> None:
        self._size: int = args.ranks
        self._environments = local_workers if backend == MULTI_WORKER else local_ranks
        self._command: Sequence[str] = args.program
        self._asked = asked
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reports: dict[int, Report] = {}
        self._selector = selectors.DefaultSelector()
        self._deadline = float("inf")

    def run(self) -> Ending:
        """Start the ranks and wait for their end."""
        holder, held = os.pipe()  # the ranks end when the launcher's end of it closes
        try:
            with self._environments(self._size) as environments:
                for environment in environments:
                    process, reader = start_rank(self._command, environment, holder)
                    self._selector.register(reader, selectors.EVENT_READ, len(self._processes))
                    self._processes.append(process)
                os.close(holder)
                return self._wait()
        finally:
            self._kill()
            os.close(held)
            if os.isatty(2):
                sys.stderr.write("\x1b[?25h")  # the progress bar of rank 0 hid the cursor

    def _wait(self) -> Ending:
        told = False
        while True:
            self._listen(_POLL_SECONDS)
            codes = [process.poll() for process in self._processes]
            if any(codes):
                return self._ended(codes)
            if all(code == 0 for code in codes):
                return Ending(status=0)
            if self._asked.number == signal.SIGINT:
                return Ending(status=INTERRUPTED, line="interrupted")
            now = time.monotonic()
            if not told and self._asked.number:
                told, self._deadline = True, now + SAVE_SECONDS
                for process in self._processes:
                    process.send_signal(signal.SIGTERM)
            if now > self._deadline:
                return Ending(status=143, line=f"killed, since the ranks still ran {SAVE_SECONDS:.0f} s after SIGTERM")

    def _listen(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            text = os.read(key.fd, 65536)  # a report is smaller than what a pipe writes at once
            if text:
                self._reports.setdefault(key.data, Report.decode(text))
            else:
                self._selector.unregister(key.fileobj)
                os.close(key.fd)

    def _ended(self, codes: list[int | None]) -> Ending:
        """Return how the ranks ended, of which one has with an error: by its own report, or by a signal."""
        until = time.monotonic() + _REPORT_SECONDS
        first = next(rank for rank, code in enumerate(codes) if code)
        while time.monotonic() < until and not any(not report.is_echo for report in self._reports.values()):
            self._listen(_POLL_SECONDS)
        codes = [process.poll() for process in self._processes]
        return ending_of(codes, self._reports, first=first, was_asked=self._deadline != float("inf"))

    def _kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
