"""The command `ringfeed launch`: starts the ranks of a run, here or on several hosts, and reports how they end.

No prefixes, no traces of the launcher: rank 0 writes to the terminal as if it were alone. A rank that fails
says why through a pipe, and the launcher then ends the others. With `--elastic` the others go on.
"""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.temporary_folder import remove_killed_folders

from .config.backend import HOROVOD, MULTI_WORKER, PARAMETER_SERVER
from .config.config_file import load_config
from .config.rules import check_pairs
from .config.train_config import TrainConfig
from .launching.endings import Ending, LauncherSignals
from .launching.host_group import HostGroup
from .launching.hosts import WantedHosts
from .launching.local_cluster import LocalCluster
from .launching.process_group import ProcessGroup, ringfeed_command, run_together
from .launching.ray_ranks import run_on_ray
from .launching.restarts import Restarts
from .launching.supervisor import Supervisor
from .ring.horovod import ranks_on
from .ring.tf_config import local_workers
from .ring.world import host_groups, refuse_settings
from .run.leaving import print_ending
from .run.stopping import INTERRUPTED, TERMINATED
from .train import add_arguments as add_train_arguments
from .train import run as run_train

_LOST_SECONDS = 20.0  # of what does not train

DESCRIPTION = "Start the ranks of a run on this machine or on several hosts, and report in one line how they ended."

EPILOG = """\
examples:
  ringfeed launch -n 2 train --config flights.yaml
  ringfeed launch -n 4 --elastic train --config flights.yaml --set checkpoint.every_steps=100
  ringfeed launch --ps 1 --workers 4 train --config flights.yaml --set backend=parameter_server
  ringfeed launch -H node1:4,node2:4 --elastic train --config flights.yaml --set checkpoint.every_steps=100
  ringfeed launch --ray ray://head:10001 -n 8 train --config flights.yaml

Rank 0 writes to the terminal as if it were alone. A rank that fails, is killed, or lets the others wait for
watchdog_seconds ends the run, with one line that names it and the cause. SIGTERM saves a checkpoint (status 75: the
same command resumes), Ctrl-C ends at once. The ranks end with the launcher, however it ends.

--elastic replaces a rank that dies. The others keep their processes: they go on from the last commit in memory, which
loses at most checkpoint.commit_steps steps (null: every_steps), and let the new rank in when it is ready. Where all
die or stall, they start again from the newest checkpoint. Three failures without progress, or three in one place within
a minute after the rank joined, lower the number of ranks by one, down to --min-ranks. A --hosts-file, also one with a
line such as localhost:4, may change: ranks then join or leave, which loses no step. Every sample counts once an epoch,
on any number of ranks.

-n starts the workers of backend=multi_worker, too, which needs no Horovod.

--workers starts workers, parameter servers and a chief for backend=parameter_server (docs/asynchronous.md). A worker
that dies is started again, and the others go on meanwhile.

--ray starts the ranks on a Ray cluster, wherever that has a free processor for each (docs/clusters.md).

-H starts the ranks on several machines: ssh must reach them without a password, and the folder in which you run the
command, with the same environment, must be there (docs/ranks.md). For Slurm and Kubernetes see docs/clusters.md.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument("-n", "--ranks", type=int, default=0, metavar="N", help="number of ranks")
    parser.add_argument(
        "-H", "--hosts", metavar="HOST:N,...", help="start N ranks on each of these hosts, by ssh, in place of -n"
    )
    parser.add_argument(
        "--hosts-file", metavar="FILE", help="a file with a line HOST:N for each host; with --elastic it may change"
    )
    parser.add_argument("--ps", type=int, metavar="P", help="number of parameter servers, with --workers [1]")
    parser.add_argument("--workers", type=int, metavar="W", help="workers of parameter servers, in place of -n")
    parser.add_argument("--elastic", action="store_true", help="replace ranks that die, while the others go on")
    parser.add_argument(
        "--min-ranks", type=int, default=1, metavar="M", help="with --elastic: fewest ranks to go on with [1]"
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
        train.ranks = args.ranks if args.workers is not None else _wanted_hosts(args).number
        return run_train(train)
    signals = LauncherSignals()
    with signals.listening():
        ending = _launched(args, config, signals)
    remove_killed_folders()  # ranks that were killed, because another one failed, have left some
    if ending.line:
        line = "; ".join(filter(None, [ending.line, _advice(ending, config)]))
        print_ending("ringfeed launch", line, ending.status, as_json="--json" in args.program)
    return ending.status


def _advice(ending: Ending, config: TrainConfig | None) -> str:
    """Return what the user can do after a run that did not end by itself."""
    if config is None:
        return ""
    if ending.was_killed:
        return config.checkpoint.remedy
    return config.checkpoint.after_interrupt if ending.status in (INTERRUPTED, TERMINATED) else ""


def _launched(args: argparse.Namespace, config: TrainConfig | None, signals: LauncherSignals) -> Ending:
    """Run the processes of a command to their end."""
    if args.ray is not None:
        return run_on_ray(args.ray, args.ranks, args.program, signals)
    command = ringfeed_command(args.program)
    if args.workers is not None:
        return LocalCluster(args.ps or 1, args.workers, command, signals).run()
    wanted, group = _wanted_hosts(args), ProcessGroup[int](command)
    places: Callable[[Sequence[str]], AbstractContextManager[Sequence[dict[str, str]]]] = ranks_on
    if args.hosts or args.hosts_file:
        lost_seconds = config.lost_seconds if config else _LOST_SECONDS
        group = remote = HostGroup[int](command, list(wanted.hosts), lost_seconds)
        places = functools.partial(ranks_on, address=remote.address, peers=remote.peers)
    elif config is not None and config.backend == MULTI_WORKER:
        places = local_workers
    if not args.elastic or config is None:
        return run_together(group, places(wanted.by_rank()), signals)
    return Supervisor(
        processes=group,
        places=places,
        wanted=wanted,
        restarts=Restarts(ranks=wanted.number, least=args.min_ranks, url=str(config.checkpoint.url)),
        signals=signals,
        patience_seconds=config.watchdog_seconds,
    ).run()


def _train_arguments(args: argparse.Namespace) -> argparse.Namespace | None:
    """Return the arguments of the ranks, if they train."""
    if args.program[:1] != ["train"]:
        return None
    parser = argparse.ArgumentParser(prog="ringfeed train", formatter_class=argparse.RawDescriptionHelpFormatter)
    add_train_arguments(parser)
    return parser.parse_args(args.program[1:])


def _wanted_hosts(args: argparse.Namespace) -> WantedHosts:
    """The hosts of a run; with -n alone this machine."""
    here = args.hosts_file is None and args.hosts is None
    return WantedHosts(args.hosts_file, f"localhost:{args.ranks}" if here else args.hosts or "", args.ranks or None)


def _check_hosts(args: argparse.Namespace) -> None:
    if args.hosts and args.hosts_file:
        raise ConfigError("-H and --hosts-file both name the hosts: leave one out")
    if args.ray is not None or args.workers is not None:
        raise ConfigError("-H and --hosts-file go with -n and --elastic, not with --ray or --workers")
    number = _wanted_hosts(args).number
    if args.ranks < 0 or args.ranks > number or not 1 <= args.min_ranks <= number:
        raise ConfigError(f"1 <= --min-ranks <= -n <= {number} must hold, the number of ranks that the hosts take")


def _checked(args: argparse.Namespace, train: argparse.Namespace | None) -> TrainConfig | None:
    """Return the configuration of the run, if it has one, after a check of everything that needs no rank."""
    if args.ps is not None and args.workers is None:
        raise ConfigError("--ps needs --workers: ringfeed launch --ps 1 --workers 2 train --config FILE.yaml")
    if args.hosts or args.hosts_file:
        _check_hosts(args)
    elif args.workers is not None:
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
    check_pairs(config, {"--elastic": args.elastic, "--ray": args.ray is not None, "--lr-find": bool(train.lr_find)})
    has_hosts = bool(args.hosts or args.hosts_file)
    if has_hosts and config.backend != HOROVOD:
        raise ConfigError(f"-H goes with backend=horovod; start backend={config.backend} by TF_CONFIG: docs/ranks.md")
    if config.sync.hierarchical:
        host_groups(_wanted_hosts(args).by_rank())
    return config
