"""The two figures that show a verdict, from what was measured.

Tested in tests/tools/verdict/test_verdict.py.
"""

from __future__ import annotations

from ringfeed.tools.measure.estimates import Estimate, around, exactly
from ringfeed.tools.measure.slow_records import SlowRecords
from ringfeed.tools.measure.store_trial import PIECE_BYTES
from ringfeed.tools.predict.gains import MeasuredEpoch
from ringfeed.tools.predict.settings import LoaderFacts, LoaderTrials

from .verdict import Evidence

__all__ = ["confirmed_limit", "find_evidence", "rest_of_loader"]

_STORE_LIMITS = ("store_latency", "store_bandwidth", "too_few_fetches")
_FAST_ENOUGH = 4  # times the loader's rate over an epoch: such a part is no limit


def find_evidence(
    bottleneck: str,
    figures: MeasuredEpoch,
    facts: LoaderFacts,
    trials: LoaderTrials,
    slow: SlowRecords | None,
    cpu_share: float,
) -> tuple[Evidence, ...]:
    """The figures that show a bottleneck.

    Args:
        bottleneck: one of `LIMITS`.
        figures: the epoch as measured.
        facts: the loader's sizes.
        trials: its parts as measured.
        slow: records that held up their batches.
        cpu_share: share of the cores that training used.
    """
    loader = Evidence(name="the loader", value=figures.samples / figures.loader_seconds, unit="samples/s")
    epoch = Evidence(name="an epoch", value=figures.samples / figures.seconds, unit="samples/s")
    if bottleneck in _STORE_LIMITS:
        return _of_store(bottleneck, facts, trials) or (loader,)
    if bottleneck == "shuffle_fill":
        first = Evidence(name="the first batch", value=figures.first_batch_seconds, unit="s")
        return first, Evidence(name="an epoch", value=figures.seconds, unit="s")
    if bottleneck == "slow_records" and slow is not None:
        one = Evidence(name="the slowest record", value=slow.records[0].seconds, unit="s")
        return one, Evidence(name="a batch without such", value=slow.batch_seconds, unit="s")
    if bottleneck == "cores":
        return Evidence(name="training uses of the cores", value=cpu_share, unit="share"), epoch
    if bottleneck == "framework_overhead":
        slowest = max(figures.parts.values())
        return Evidence(name="the slowest part alone", value=figures.samples / slowest, unit="samples/s"), epoch
    if bottleneck in ("step", "none") and figures.step is not None:
        return Evidence(name="the step alone", value=figures.step.value, unit="samples/s"), loader
    alone = _rates_alone(trials)
    if figures.transform is not None:
        alone["transform"] = figures.transform.value
        if bottleneck == "decode" and figures.transform.value < loader.value:
            alone["decode"] = figures.transform.value
    if value := alone.get(bottleneck):
        return Evidence(name=f"{bottleneck.replace('_', ' ')} alone", value=value, unit="samples/s"), (
            loader if figures.step is None or bottleneck not in ("transform",) else epoch
        )
    return (loader,)


def confirmed_limit(limit: str, figures: MeasuredEpoch, trials: LoaderTrials, *, is_local: bool = False) -> str:
    """Return what limits the loader: a part, or the first batch, if that takes most of the epoch and the part does not.

    In an epoch of a few small shards some stage is the busiest, though all of them are fast enough.

    Args:
        limit: the part, as the loader's stages tell it.
        figures: the epoch as measured.
        trials: the loader's parts as measured.
        is_local: whether the dataset is on a local disk.
    """
    alone = _rates_alone(trials).get(limit)
    needed = figures.samples / figures.loader_seconds
    waits = figures.first_batch_seconds > figures.loader_seconds / 2
    fast = limit == "unknown" or (is_local and limit == "store_latency")  # nothing, or opening files in memory
    return "shuffle_fill" if waits and (fast or (alone or 0.0) > _FAST_ENOUGH * needed) else limit


def rest_of_loader(limit: str, figures: MeasuredEpoch, facts: LoaderFacts, trials: LoaderTrials) -> dict[str, Estimate]:
    """The rate of the loader's epoch without what limits it, by the part that would limit it then; empty if unknown.

    Args:
        limit: what limits the loader.
        figures: the epoch as measured.
        facts: the loader's sizes.
        trials: its parts as measured.
    """
    if limit == "shuffle_fill":
        return {"hand_over": figures.loader}
    alone = {name: exactly(rate) for name, rate in _rates_alone(trials).items()}
    if trials.hand_over is not None:
        alone["hand_over"] = trials.hand_over.estimate
    if limit in _STORE_LIMITS:
        following = min(alone, key=lambda name: alone[name].value, default="hand_over")
        if (warm := trials.warm) is None:
            return {following: alone[following]} if alone else {}
        seconds = min(warm.first_batch_seconds, figures.first_batch_seconds) + figures.samples / warm.rate.value
        return {following: around(figures.samples / seconds, warm.rate)}
    if trials.store is not None:
        alone["store_bandwidth"] = exactly(trials.store.best_bytes_per_second / facts.record_bytes)
    alone.pop(limit, None)
    return dict(sorted(alone.items(), key=lambda item: item[1].value)[:1])


def _rates_alone(trials: LoaderTrials) -> dict[str, float]:
    """Samples per second of each part that was measured alone."""
    rates = {} if trials.hand_over is None else {"hand_over": trials.hand_over.samples_per_second}
    if trials.opening is not None:
        rates |= {"verification": trials.opening.verify, "decode": trials.opening.decode}
    return rates


def _of_store(bottleneck: str, facts: LoaderFacts, trials: LoaderTrials) -> tuple[Evidence, ...]:
    store = trials.store
    if store is None:
        return ()
    fetched = Evidence(name="the loader fetches", value=facts.fetch_bytes_per_second, unit="bytes/s")
    if bottleneck == "store_latency":
        size = min(facts.shard_bytes, PIECE_BYTES)
        each = size / store.best_bytes_per_second
        return (
            Evidence(name="a request takes", value=store.latency_seconds, unit="s"),
            Evidence(name="the bytes of a shard take", value=each, unit="s"),
        )
    return Evidence(name="the store gives", value=store.best_bytes_per_second, unit="bytes/s"), fetched
