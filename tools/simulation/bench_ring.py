"""The command `ringfeed bench-ring`: how long the ranks take to average tensors, by size, and the costs that fit.

Sizes, columns and definitions are as in nccl-tests (doc/PERFORMANCE.md), so that rings can be compared.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ringfeed.sharding.errors import TrainingError
from ringfeed.tools.argument_types import checked_type, parse_bytes

if TYPE_CHECKING:
    from ringfeed.tools.measure.costs import RingCosts
    from ringfeed.training.ring.ring import Ring

DESCRIPTION = "Measure how long the ranks take to average tensors of 8 B to 128 MB, and fit latency and bandwidth."

EPILOG = """\
examples:
  ringfeed launch -n 4 bench-ring                          # ranks of this machine
  horovodrun -np 16 -H node1:8,node2:8 --gloo ringfeed bench-ring
  ringfeed launch -n 2 bench-ring --max-size 8MiB --json

algbw is size / time; busbw = algbw * 2 (n - 1) / n is comparable between numbers of ranks n, and with the bandwidth of
the network. The last line fits t = 2 (n - 1) (alpha + size / (n B)); its command has the lowest and the highest alpha
and B that single sizes imply.
"""

_SMALLEST = 8  # bytes
_STEP = 2  # factor between sizes
_LEAST_CALLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTrial:
    """The time of one size.

    Attributes:
        size: bytes of the tensor.
        count: number of float32 values in it.
        seconds: of one all-reduce, the mean over ranks.
        algbw: bytes/s, size / seconds.
        busbw: bytes/s, algbw * 2 (ranks - 1) / ranks.
        wrong: number of values that are not the mean, over all ranks.
    """

    size: int
    count: int
    seconds: float
    algbw: float
    busbw: float
    wrong: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and the help of `ringfeed bench-ring`."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.add_argument(
        "--max-size", type=checked_type(parse_bytes), default=128 << 20, metavar="SIZE",
        help="largest tensor (default: 128MiB)",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=0.3, metavar="S", help="time for each size (default: 0.3)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")


def run(args: argparse.Namespace) -> int:
    """Measure; rank 0 prints."""
    from ringfeed.pipeline.deliver.quiet_tensorflow import quiet_tensorflow

    with quiet_tensorflow():
        from ringfeed.tools.measure.costs import fit_ring, ring_range
        from ringfeed.training.ring.connect import connect

        ring = connect()
    if ring.size == 1:
        raise TrainingError("one rank has nothing to exchange: start several, as in: ringfeed launch -n 2 bench-ring")
    trials = []
    size = _SMALLEST
    while size <= args.max_size:
        trials.append(try_ring(ring, size, args.seconds))
        size *= _STEP
    if ring.rank:
        return 0
    seconds = {(ring.size, trial.size): trial.seconds for trial in trials}
    costs = fit_ring(seconds, trials[-1].size)
    fast, slow = ring_range(seconds, costs)
    latencies = fast.latency_seconds, slow.latency_seconds
    rates = slow.bytes_per_second, fast.bytes_per_second
    quality = fit_quality(trials, costs, ring.size)
    if args.json:
        document = {
            "ranks": ring.size, "trials": [asdict(trial) for trial in trials],
            "latency_seconds": costs.latency_seconds, "bytes_per_second": costs.bytes_per_second,
            "latency_seconds_between": latencies, "bytes_per_second_between": rates, "r_squared": quality,
        }  # fmt: skip
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        sys.stdout.write(_text(trials, costs, quality, ring.size, simulate_flags(latencies, rates)))
    return 1 if any(trial.wrong for trial in trials) else 0


def try_ring(ring: Ring, size: int, seconds: float) -> RingTrial:
    """Average a float32 tensor again and again, inside one graph (a collective).

    Args:
        ring: the ranks.
        size: bytes of the tensor, a multiple of 4.
        seconds: about how long.
    """
    import tensorflow as tf

    count = size // 4

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow ships no types
    def repeated(tensor: Any, calls: Any) -> Any:
        """The mean, over and over: it is the same from the first call on."""
        return tf.while_loop(
            lambda i, _: i < calls,
            lambda i, values: (i + 1, tf.ensure_shape(ring.allreduce_mean([values])[0], [count])),
            (tf.constant(0), tensor),
            parallel_iterations=1,
        )[1]

    averaged = repeated.get_concrete_function(tf.TensorSpec([count]), tf.TensorSpec([], tf.int32))

    def timed(calls: int) -> tuple[float, Any]:
        tensor = tf.fill([count], tf.constant(float(ring.rank + 1)))
        ring.barrier()
        started = time.perf_counter()
        result = averaged(tensor, tf.constant(calls)).numpy()
        return time.perf_counter() - started, result

    timed(1)  # the ranks agree on a new tensor
    first, _ = timed(_LEAST_CALLS)
    calls = int(ring.allgather_object(max(_LEAST_CALLS, round(seconds * _LEAST_CALLS / first)))[0])
    elapsed, result = timed(calls)
    gathered = ring.allgather_object([elapsed / calls, int((result != (ring.size + 1) / 2).sum())])
    mean = sum(taken for taken, _ in gathered) / ring.size
    algbw = size / mean
    return RingTrial(
        size=size, count=count, seconds=mean, algbw=algbw, busbw=algbw * 2 * (ring.size - 1) / ring.size,
        wrong=sum(wrong for _, wrong in gathered),
    )  # fmt: skip


def fit_quality(trials: Sequence[RingTrial], costs: RingCosts, ranks: int) -> float:
    """Return R^2 of the fitted times: 1 is a perfect fit, 0 no better than their mean."""
    mean = sum(trial.seconds for trial in trials) / len(trials)
    expected = [replace(costs, gradient_bytes=trial.size).seconds(ranks) for trial in trials]
    residual = sum((trial.seconds - time) ** 2 for trial, time in zip(trials, expected, strict=True))
    return 1 - residual / sum((trial.seconds - mean) ** 2 for trial in trials)


def _text(trials: Sequence[RingTrial], costs: RingCosts, quality: float, ranks: int, command: str) -> str:
    lines = [f"{'size':>10} {'count':>10} {'type':>6} {'time':>11} {'algbw':>8} {'busbw':>8} {'#wrong':>6}"]
    lines.append(f"{'(B)':>10} {'':>10} {'':>6} {'(us)':>11} {'(GB/s)':>8} {'(GB/s)':>8}")
    lines += [
        f"{t.size:>10} {t.count:>10} {'float':>6} {t.seconds * 1e6:>11.1f} {t.algbw / 1e9:>8.3f} {t.busbw / 1e9:>8.3f} "
        f"{t.wrong:>6}"
        for t in trials
    ]
    lines.append(
        f"{ranks} ranks: alpha {costs.latency_seconds * 1e6:.1f} us, B {costs.bytes_per_second / 1e9:.3f} GB/s "
        f"(R^2 {quality:.3f}); {command}"
    )
    return "\n".join(lines) + "\n"


def simulate_flags(latencies: tuple[float, float], rates: tuple[float, float]) -> str:
    """Return the command that simulates a ring whose alpha and B lie within these.

    >>> simulate_flags((1e-3, 1.25e-3), (11.2e6, 12e6))
    'ringfeed simulate --ring-latency 1000us..1250us --ring-bandwidth 11.2MB..12MB'
    """
    alphas = "..".join(f"{each * 1e6:.0f}us" for each in latencies)
    widths = "..".join(f"{each / 1e6:.4g}MB" for each in rates)
    return f"ringfeed simulate --ring-latency {alphas} --ring-bandwidth {widths}"
