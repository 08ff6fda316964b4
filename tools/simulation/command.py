"""`ringfeed simulate`: predict epochs on other ranks, hosts, stores, shards and options from the command line.

Tested in tests/tools/measure/test_loader_costs.py.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.storage.temporary_folder import process_folder
from ringfeed.sharding.storage.untrusted_files import guarded, load_json, read_untrusted
from ringfeed.tools.argument_types import add_verbosity, at_least, checked_type, parse_bytes
from ringfeed.tools.console import align, print_stderr, print_text, print_warnings
from ringfeed.tools.measure.workloads import add_shared, parse_size, user_functions
from ringfeed.training.run.state.outputs import check_writable, write_file

if TYPE_CHECKING:
    from ringfeed.tools.measure.costs import Costs
    from ringfeed.tools.measure.dataset_shape import DatasetShape
    from ringfeed.tools.measure.loader_costs import MeasuredDataset
    from ringfeed.tools.predict.setup import Setup

_MOST_COSTS_BYTES = 64 << 20
_COUNT = checked_type(at_least(1))
_EPILOG = """\
examples:
  ringfeed simulate s3://bucket/flights                                 # one rank, as it is
  ringfeed simulate s3://bucket/flights --ranks 1,2,4,8,64 --ranks-per-host 8 --local-batch 256
  ringfeed simulate s3://bucket/flights --step model:train_step --streams 4 --prefetch 256MiB
  ringfeed simulate data/flights --latency 30ms --bandwidth 1GB          # as if it were on such a store
  ringfeed simulate data/flights --step-seconds 0.09..0.1 --records 10000000 --shard-size 64MiB
  ringfeed simulate s3://bucket/flights --cache 500GB --epochs 3         # cold, then warm
  ringfeed simulate s3://bucket/flights --save-costs costs.json          # measured once,
  ringfeed simulate s3://bucket/flights --costs costs.json --ranks 1024  # simulated as often as you like

It reads some shards and batches first, to measure what they cost on this machine (--seconds), and then simulates shard
by shard what the loader, the store, the cores and the ring of ranks would do: docs/simulation.md. Whatever an option
does not change is as measured. Times of steps and of the ring may be ranges: the epoch is then simulated with both
ends, too. `ringfeed tune` searches with it for better options.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed simulate`."""
    parser.description = (
        "Predict rate, waits for input, memory, bytes and cost of an epoch: for other numbers of ranks and hosts, "
        "another store, other shards, other options of the loader."
    )
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("url", help="dataset: a path, s3://, hdfs://, whatever fsspec opens")
    add("--seconds", type=float, default=10.0, metavar="S", help="time to measure costs for (default: 10)")
    add("--costs", metavar="FILE", help="use the costs in this file, and measure nothing")
    add("--save-costs", metavar="FILE", help="write the measured costs, as JSON")
    add_shared(parser, "--split", "--html", "--json")
    add_verbosity(parser)
    _add_machines(parser.add_argument_group("machines"))
    _add_reading(parser.add_argument_group("dataset and loader"))
    _add_training(parser.add_argument_group("training"))


def _add_machines(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--ranks", type=checked_type(_parse_counts), default=(1,), metavar="N,N", help="numbers of ranks (default: 1)")
    add("--ranks-per-host", type=_COUNT, default=8, metavar="N", help="most ranks of one host (default: 8)")
    add("--cores", type=_COUNT, metavar="N", help="cores of a host (default: as this machine)")
    add("--latency", type=checked_type(_parse_seconds), metavar="TIME", help="of the store for a file, such as 30ms")
    add("--bandwidth", type=checked_type(parse_bytes), metavar="SIZE", help="of a host's link, a second, such as 1GB")
    add(
        "--connection-bandwidth", type=checked_type(parse_bytes), metavar="SIZE",
        help="of one fetch, a second, such as 80MB",
    )  # fmt: skip
    add("--price-per-gb", type=float, default=0.0, metavar="P", help="price of 10^9 bytes fetched")
    add("--price-per-1000-requests", type=float, default=0.0, metavar="P", help="price of 1,000 requests to the store")
    add("--price-per-host-hour", type=float, default=0.0, metavar="P", help="price of a host for an hour")


def _add_reading(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add_shared(group, "--batch-size", "--streams", "--window-shards", "--fetch-threads", "--seed")
    add("--local-batch", type=_COUNT, metavar="N", help="samples of each rank instead: the batch grows with the ranks")
    add("--prefetch", type=checked_type(parse_size), metavar="SIZE", help="bytes of shards to fetch ahead of need")
    add("--cache", type=checked_type(parse_bytes), metavar="SIZE", help="size of a cache on the disk of each host")
    add("--warm", action="store_true", help="the cache holds the dataset at first, as far as it fits")
    add("--shard-size", type=checked_type(parse_bytes), metavar="SIZE", help="as if shards had this size")
    add("--records", type=_COUNT, metavar="N", help="as if the split had so many records, in shards like its own")
    add("--epochs", type=_COUNT, default=1, metavar="N", help="epochs to simulate (default: 1)")


def _add_training(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add_shared(group, "--step", "--transform")
    add(
        "--step-seconds", type=checked_type(_range_of(_parse_seconds)), metavar="TIME",
        help="of a step on a device, for a rank's batch, instead",
    )  # fmt: skip
    add("--gradients", type=checked_type(parse_bytes), metavar="SIZE", help="bytes that an all-reduce sums")
    add(
        "--ring-latency", type=checked_type(_range_of(_parse_seconds)), default=(5e-5, 5e-5), metavar="TIME",
        help="of one exchange between neighbours in the ring (default: 50us)",
    )  # fmt: skip
    add(
        "--ring-bandwidth", type=checked_type(_range_of(parse_bytes)), default=(1_250_000_000,) * 2, metavar="SIZE",
        help="between neighbours in the ring, a second (default: 1.25GB)",
    )  # fmt: skip


@process_folder()
def run(args: argparse.Namespace) -> int:
    """Run `ringfeed simulate`."""
    for path in (args.html, args.save_costs):
        if path is not None:
            check_writable(path)
    with print_warnings("ringfeed simulate", events=args.json, verbose=args.verbose):
        from ringfeed.tools.predict.setup import Prices
        from ringfeed.tools.predict.simulation import advice_on, table_of
        from ringfeed.tools.predict.simulator import simulate_ranks

        prices = Prices(
            per_gb=args.price_per_gb, per_thousand_requests=args.price_per_1000_requests,
            per_host_hour=args.price_per_host_hour,
        )  # fmt: skip
        measured = _measured(args)
        if args.save_costs:
            write_file(args.save_costs, json.dumps(measured.costs.to_json(), indent=2).encode())
        simulations = simulate_ranks(
            _shape(measured.shape, args), _costs(measured.costs, args, 0.5), _setup(args), args.ranks,
            report=_reporter(args, "simulating"), ranks_per_host=args.ranks_per_host, local_batch=args.local_batch,
            prices=prices, bounds=[_costs(measured.costs, args, end) for end in (0.0, 1.0)] if _is_ranged(args) else (),
        )  # fmt: skip
    if args.html is not None:
        from ringfeed.tools.report.pages import write_simulation_page

        write_simulation_page(simulations, args.url, args.html)
    if args.json:
        document = {"costs": measured.costs.to_json(), "simulations": [each.to_json() for each in simulations]}
        print(json.dumps(document, indent=2))
    else:
        print_text("\n".join([*align(*table_of(simulations)), *advice_on(simulations)]))
    return 0


def _measured(args: argparse.Namespace) -> MeasuredDataset:
    """Measure, or take the costs that were measured before."""
    with quiet_tensorflow():
        import tensorflow  # noqa: F401
    from ringfeed.pipeline import Loader
    from ringfeed.tools.measure.costs import Costs
    from ringfeed.tools.measure.loader_costs import MeasuredDataset, measure_costs, shape_of
    from ringfeed.tools.measure.workloads import function_workload

    if args.transform and not args.step:
        raise ConfigError("--transform is measured with a step; give --step, too")
    if args.step and args.step_seconds is not None:
        raise ConfigError("--step measures a step, and --step-seconds gives its time; leave one out")
    loader = Loader(args.url, split=args.split, batch_size=args.local_batch or args.batch_size, seed=args.seed)
    if args.costs:
        with guarded(args.costs, "costs as `ringfeed simulate --save-costs` writes them", prefix="--costs: "):
            costs = Costs.from_json(load_json(read_untrusted(args.costs, _MOST_COSTS_BYTES)))
        return MeasuredDataset(shape=shape_of(loader), costs=costs)
    functions = user_functions(args)
    workload = function_workload(loader, functions["step"], functions.get("transform")) if functions else None
    return measure_costs(loader, args.seconds, workload=workload, report=_reporter(args, "measuring"))


def _reporter(args: argparse.Namespace, doing: str) -> Callable[[str], None]:
    """A function that prints what is done next, unless it is to be silent."""
    is_silent = args.json or args.quiet
    return lambda part: None if is_silent else print_stderr(f"{doing} {part}")


def _shape(shape: DatasetShape, args: argparse.Namespace) -> DatasetShape:
    if args.shard_size is not None:
        shape = shape.resharded(max(round(shape.bytes / args.shard_size), 1))
    return shape if args.records is None else shape.repeated(args.records)


def _is_ranged(args: argparse.Namespace) -> bool:
    ranges = (args.step_seconds, args.ring_latency, args.ring_bandwidth)
    return any(each and each[0] < each[1] for each in ranges)


def _costs(costs: Costs, args: argparse.Namespace, place: float) -> Costs:
    """The measured costs, with what the command line says instead: from the lowest, at 0, to the highest, at 1."""
    from ringfeed.tools.measure.costs import RingCosts, StepCosts

    store = costs.store
    if args.latency is not None:
        store = replace(store, latency_seconds=(args.latency,), is_local=False)
    if args.bandwidth is not None:
        each = min(store.connection_bytes_per_second, args.bandwidth)
        store = replace(store, bytes_per_second=args.bandwidth, connection_bytes_per_second=each, is_local=False)
    if args.connection_bandwidth is not None:
        store = replace(store, connection_bytes_per_second=args.connection_bandwidth, is_local=False)
    step = costs.step
    if args.step_seconds is not None:
        samples = args.local_batch or args.batch_size
        step = StepCosts(seconds=(_at(place, args.step_seconds),), core_seconds=0.0, samples=samples)
    latency, rate = _at(place, args.ring_latency), _at(1 - place, args.ring_bandwidth)
    ring = RingCosts(latency_seconds=latency, bytes_per_second=rate, gradient_bytes=args.gradients or 0)
    return replace(costs, store=store, step=step, ring=ring)


def _setup(args: argparse.Namespace) -> Setup:
    from ringfeed.tools.predict.setup import Setup

    names = ("batch_size", "streams", "window_shards", "fetch_threads", "epochs", "seed")
    cores = {} if args.cores is None else {"cores": args.cores}
    return Setup(
        **{name: getattr(args, name) for name in names}, **cores,
        prefetch_bytes=args.prefetch, cache_bytes=args.cache, is_warm=args.warm,
    )  # fmt: skip


def _parse_counts(text: str) -> tuple[int, ...]:
    """Parse numbers of ranks.

    >>> _parse_counts("1,2,64")
    (1, 2, 64)
    """
    counts = tuple(int(word) for word in text.split(",") if word.strip().isdigit())
    if not counts or len(counts) != len(text.split(",")) or min(counts) < 1:
        raise ConfigError(f"--ranks takes numbers such as 1,2,4,8, got {text!r}")
    return counts


def _range_of(parse: Callable[[str], float]) -> Callable[[str], tuple[float, float]]:
    """Parse one value, or a range.

    >>> _range_of(_parse_seconds)("1ms..2ms"), _range_of(_parse_seconds)("3")
    ((0.001, 0.002), (3.0, 3.0))
    """

    def parsed(text: str) -> tuple[float, float]:
        low, dots, high = text.partition("..")
        ends = parse(low), parse(high if dots else low)
        if ends[0] > ends[1]:
            raise ConfigError(f"a range begins with its lower end, as in 1ms..2ms, got {text!r}")
        return ends

    return parsed


def _at(place: float, ends: tuple[float, float]) -> float:
    return ends[0] + place * (ends[1] - ends[0])


_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def _parse_seconds(text: str) -> float:
    """Parse a short time.

    >>> _parse_seconds("30ms"), _parse_seconds("0.5")
    (0.03, 0.5)
    """
    found = re.fullmatch(r"([0-9.]+(?:e-?\d+)?)\s*(s|ms|us)?", text.strip())
    try:
        seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"a time such as 30ms, 50us or 0.2s is needed, got {text!r}")
    return seconds
