"""The result of a profile: its figures, and how a terminal and a notebook show them.

Tested in tests/tools/profile/test_measure.py and tests/tools/report/test_plots.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringfeed.tools.charts.bars import Bars
from ringfeed.tools.charts.shown import Shown, Table
from ringfeed.tools.console import human_bytes, human_seconds
from ringfeed.tools.measure.estimates import Estimate, around, exactly
from ringfeed.tools.measure.slow_records import SlowRecords
from ringfeed.tools.measure.step_trace import StepInside
from ringfeed.tools.measure.training_trials import TrainingTrials
from ringfeed.tools.predict.gains import ExpectedGain
from ringfeed.tools.predict.settings import LoaderTrials
from ringfeed.tools.verdict.bottleneck import StageProfile
from ringfeed.tools.verdict.verdict import Verdict

UNKNOWN_GAIN = "its gain cannot be told from these measurements: try it (--try), or measure for longer (--seconds)"
_OTHER_LOAD = 0.25  # other programs' share of the cores from which figures are said to be too low


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedKnob:
    """An epoch with other options, of training, or of the loader without a step.

    Attributes:
        options: the arguments of `Loader` that were changed.
        epoch_samples_per_second: its rate.
        first_batch_seconds: seconds until its first batch.
        gain: its rate / the rate without the options.
    """

    options: Mapping[str, Any]
    epoch_samples_per_second: float
    first_batch_seconds: float
    gain: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile(Shown):
    """A measurement of the loader, and of training with it.

    Attributes:
        world_size: number of ranks; samples and rates are of the measured `rank` alone.
        first_batch_seconds: seconds from the request of an epoch to its first batch.
        seconds: seconds from the first to the last batch, which are read at full speed and discarded.
        samples_per_second: rate in `seconds`.
        epoch_seconds: seconds that an epoch takes at these rates, from its request to its last batch.
        epoch_samples_per_second: rate of such an epoch.
        bytes_per_second: decoded bytes per second in `seconds`; strings count as those of the first batch.
        stored_bytes: bytes of a sample in the shards.
        stages: the loader's stages.
        slowest_stage: the one that holds the loader back.
        loader_advice: what to do about that stage.
        options: other arguments of `Loader` that differ from their defaults, and ``cache_bytes``, by name.
        verdict: what limits training; without a step, the loader.
        parts: what was measured of the loader's parts alone.
        training: what was measured of a step and its input; None without a step.
        slow: records that hold up all others, if there are any.
        tried: what the verdict's knob brought, if it was tried.
        inside: the step from inside, if a trace was asked for.
        queue_depths: seconds since the epoch was requested, and the shards that were being fetched or waited to be.
        other_load: share of the cores that other programs took meanwhile, in [0, 1].
        own_share: share of the loader's time that measuring it took.
        loader_rate: `samples_per_second` with its interval.

    >>> from ringfeed.tools.profile import profile
    >>> profile("flights", batch_size=64, steps=5).samples  # doctest: +SKIP
    320
    """

    url: str
    split: str
    batch_size: int
    balance: Any
    rank: int
    world_size: int
    steps: int
    samples: int
    seconds: float
    first_batch_seconds: float
    samples_per_second: float
    epoch_seconds: float
    epoch_samples_per_second: float
    bytes_per_second: float
    stored_bytes: float
    stages: tuple[StageProfile, ...]
    slowest_stage: str
    loader_advice: str
    options: dict[str, Any]
    verdict: Verdict
    parts: LoaderTrials
    training: TrainingTrials | None = None
    slow: SlowRecords | None = None
    tried: TriedKnob | None = None
    inside: StepInside | None = None
    queue_depths: tuple[tuple[float, int], ...] = ()
    other_load: float = 0.0
    own_share: float = 0.0
    loader_rate: Estimate | None = None

    @property
    def steady_rate(self) -> Estimate:
        """Samples a second after the first batch, of training, or of the loader without a step."""
        if self.training is not None:
            return self.training.together.estimate
        return self.loader_rate or exactly(self.samples_per_second)

    @property
    def epoch_rate(self) -> Estimate:
        """Samples a second of a whole epoch, of training, or of the loader without a step."""
        steady, samples = self.steady_rate, self.epoch_samples_per_second * self.epoch_seconds
        seconds = self.first_batch_seconds + samples / steady.value
        return around(samples / max(seconds, self.epoch_seconds), steady)

    @property
    def ceilings(self) -> dict[str, float]:
        """The rate of each part alone, in samples a second, in the order samples pass them."""
        parts, rates = self.parts, {}
        if parts.store is not None:
            rates["store"] = parts.store.best_bytes_per_second / self.stored_bytes
        if parts.opening is not None:
            rates |= {"checksums": parts.opening.verify, "decoding": parts.opening.decode}
        if parts.hand_over is not None:
            rates["hand-over"] = parts.hand_over.samples_per_second
        if parts.warm is not None:
            rates["loader, shards at hand"] = parts.warm.rate.value
        rates["loader"] = self.samples_per_second
        rates["loader, whole epoch"] = self.epoch_samples_per_second
        trials = self.training
        if trials is None:
            return rates
        if trials.transform is not None:
            rates[f"{trials.transform_name} alone"] = trials.transform.samples_per_second
        if trials.input is not None:
            rates["loader and transform"] = trials.input.samples_per_second
        rates[f"{trials.step_name} alone"] = trials.step.samples_per_second
        rates["training"] = trials.together.samples_per_second
        return rates

    @property
    def chart(self) -> Bars:
        """The rate of each part alone, against the step's."""
        rates = self.ceilings
        slowest = min((name for name in rates if name != "training"), key=rates.__getitem__)
        return Bars(
            title=f"The slowest part is {slowest}" + ("; dashed: the step" if self.training is not None else ""),
            values=rates,
            texts=[f"{rate:,.0f} = {self._megabytes(rate)} MB/s" for rate in rates.values()],
            highlighted=slowest,
            x_label="samples a second, each part alone",
            is_log=True,
            marked=None if self.training is None else self.training.step.samples_per_second,
        )

    def _repr_html_(self) -> str:
        return self.html() + self.chart.html()

    def headlines(self) -> list[str]:
        of_rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        loader = (
            f"{self.url}: an epoch of the loader takes {human_seconds(self.epoch_seconds)}, "
            f"{self.epoch_samples_per_second:,.0f} samples/s: the first batch comes after "
            f"{self.first_batch_seconds:.2f} s, then {self.samples_per_second:,.0f} samples/s, "
            f"{human_bytes(self.bytes_per_second)}/s decoded ({self.steps} batches of {self.batch_size}{of_rank}, "
            f"split {self.split}, balance {self.balance}{options})"
        )
        return [self.verdict.headline, loader] if self.verdict.headline else [loader]

    def tables(self) -> list[Table]:
        stages = [
            [
                stage.name, f"{stage.items:,}", human_bytes(stage.bytes) if stage.bytes else "",
                f"{stage.busy_seconds:.3f}", f"{stage.wait_seconds:.3f}", f"{stage.share:.2f}",
            ]
            for stage in self.stages
        ]  # fmt: skip
        tables: list[Table] = [(_PART_HEADER, self._part_rows()), (_STAGE_HEADER, stages)]
        store = self.parts.store
        if store is not None:
            rates = [[f"{n}", f"{human_bytes(rate)}/s"] for n, rate in store.bytes_per_second.items()]
            tables.append((("reads of the store at once", f"latency {store.latency_seconds * 1000:,.1f} ms"), rates))
            sizes = [
                [
                    human_bytes(size), f"{each.latency_seconds * 1000:,.1f} ms", f"{human_bytes(each.one)}/s",
                    f"{human_bytes(each.best)}/s",
                ]
                for size, each in store.sizes.items()
            ]  # fmt: skip
            if sizes:
                tables.append((("size of a read", "takes", "one at a time", f"{store.best_threads} at once"), sizes))
        return tables if self.inside is None else [*tables, _operation_table(self.inside, "a step")]

    def _megabytes(self, rate: float) -> str:
        """Decoded MB of so many samples."""
        return f"{rate * self.bytes_per_second / max(self.samples_per_second, 1e-9) / 1e6:,.1f}"

    def _part_rows(self) -> list[list[str]]:
        rows = [[name, f"{rate:,.0f}", self._megabytes(rate), ""] for name, rate in self.ceilings.items()]
        if self.training is not None:
            rows[-1][-1] = f"{self.training.utilisation:.0%}"
        return rows

    def conclusions(self) -> list[str]:
        lines = []
        if self.other_load > _OTHER_LOAD:
            lines.append(f"other programs took {self.other_load:.0%} of the cores meanwhile: expect more without them")
        if self.slowest_stage == "none":
            lines.append("stages whose work explains the loader's waits: none")
        if self.training is None:
            lines.append("whether training would wait for this input: profile it with --step or --config")
        lines += _longest_operation(self.inside, "the step") if self.inside is not None else []
        verdict = self.verdict
        evidence = ", ".join(map(str, verdict.evidence))
        shown = f" ({evidence})" if evidence else ""
        last = f"bottleneck: {verdict.bottleneck}{shown}: {verdict.advice}{self._gain}"
        if verdict.knob is not None:
            last += f". Try {describe_knob(verdict.knob)}"
        elif verdict.bottleneck not in ("step", "none", "unknown"):
            last += ". No option of the loader is expected to gain 5 %"
        if self.tried is not None:
            last += f". Tried: {self.tried.gain}, {self.tried.epoch_samples_per_second:,.0f} samples/s"
        return [*lines, last]

    @property
    def _gain(self) -> str:
        """What an epoch gains without the bottleneck, and what limits it then."""
        verdict = self.verdict
        if not verdict.next_limit or verdict.bottleneck in ("step", "none", "unknown"):
            return ""
        rate = verdict.next_samples_per_second
        following = f"{verdict.next_limit} limits it" + ("" if rate is None else f" ({rate:,.0f} samples/s)")
        if verdict.gain is None:
            return f"; without it {following}: to know the gain, measure for longer (--seconds)"
        return f"; without it an epoch is {verdict.gain} as fast, then {following}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProfile(Shown):
    """What a trace of a run, by TensorFlow's profiler, holds: see `StepInside`, whose step is all of the trace."""

    path: str
    inside: StepInside

    def headlines(self) -> list[str]:
        return [f"{self.path}: {human_seconds(self.inside.seconds)} of a run"]

    def tables(self) -> list[Table]:
        return [_operation_table(self.inside, "the trace")]

    def conclusions(self) -> list[str]:
        return _longest_operation(self.inside, "the trace")


def _operation_table(inside: StepInside, what: str) -> Table:
    rows = [
        [_shortened(each.name), f"{each.calls:,.3g}", f"{each.seconds * 1000:,.3f}", f"{each.share:.0%}"]
        for each in (*inside.longest, inside.copies, inside.gaps)
    ]
    whole = what.replace("a ", "the ")
    return (f"in {what} ({inside.profiler}'s profiler, {inside.kind})", "times", "ms", f"of {whole}"), rows


def _longest_operation(inside: StepInside, what: str) -> list[str]:
    """A line that names it, if there is one."""
    if not inside.longest:
        return []
    name, share = _shortened(inside.longest[0].name), inside.longest[0].share
    return [f"{what}'s longest operation: {name}, {share:.0%}; none runs for {inside.gaps.share:.0%} of it"]


def _shortened(name: str) -> str:
    """Shorten a name to 60 characters: a kernel on a GPU has hundreds."""
    return name if len(name) <= 60 else f"{name[:37]}...{name[-20:]}"


def describe_knob(knob: ExpectedGain) -> str:
    """A knob, its predicted gain, and what it costs, in one phrase."""
    before, after = knob.first_batch_seconds
    gain = UNKNOWN_GAIN if knob.gain is None else f"predicted {knob.gain}"
    words = [f"{gain}{' from the second epoch on' if knob.later else ''}"]
    if abs(before - after) > 0.1 * before:
        words.append(f"first batch {before:.2f} s -> {after:.2f} s")
    sign = "-" if knob.memory_bytes < 0 else "+"
    words.append(f"memory {sign}{human_bytes(abs(knob.memory_bytes))}")
    if knob.disk_bytes:
        words.append(f"disk {human_bytes(knob.disk_bytes)}")
    python = f" (Loader({', '.join(f'{name}={value!r}' for name, value in knob.options.items())}))" * bool(knob.options)
    return f"{knob.text}{python}: {', '.join(words)}"


_STAGE_HEADER = ("stage of the loader", "items", "bytes", "busy s", "wait s", "threads busy")
_PART_HEADER = ("part", "samples/s", "MB/s", "utilisation")
