"""The result of a profile: its figures, and how a terminal and a notebook show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ...pipeline.order.plan_table import html_table
from ..console import align, human_bytes, human_seconds
from .bottleneck import StageProfile
from .store_trial import StoreTrial
from .training_trials import TrainingTrials
from .verdict import Verdict

__all__ = ["Profile", "TriedKnob"]

_SHORT_SECONDS = 0.2  # a loader read for less is hardly judged
_OTHER_LOAD = 0.25  # other programs' share of the cores from which figures are said to be too low


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedKnob:
    """An epoch of the loader with other options: its rate, and the gain over the rate without them."""

    options: Mapping[str, Any]
    epoch_samples_per_second: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measurement of the loader, and of training with it.

    Attributes:
        world_size: number of ranks; samples and rates are those of the measured `rank` alone.
        first_batch_seconds: seconds from the request of an epoch to its first batch.
        seconds: seconds from the first to the last batch, which are read at full speed and discarded.
        samples_per_second: rate in `seconds`.
        epoch_seconds: seconds that an epoch takes at these rates, from its request to its last batch.
        epoch_samples_per_second: rate of such an epoch.
        bytes_per_second: decoded bytes per second in `seconds`; strings count as those of the first batch.
        bottleneck: stage that holds the loader back.
        knob: what to do about the bottleneck.
        knob_options: the arguments of `Loader` in `knob` that can be tried at once.
        tried: what `knob_options` brought, if they were tried.
        store: what a remote store gives without the loader; None for a local one.
        options: other arguments of `Loader` that differ from their defaults, and ``cache_bytes``, by name.
        other_load: share of the cores that other programs took meanwhile, in [0, 1].
        training: what was measured of a step and its input; None without a step.
        verdict: what limits training; None without a step.
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
    stages: tuple[StageProfile, ...]
    bottleneck: str
    knob: str
    options: dict[str, Any]
    knob_options: dict[str, Any]
    tried: TriedKnob | None = None
    store: StoreTrial | None = None
    other_load: float = 0.0
    training: TrainingTrials | None = None
    verdict: Verdict | None = None

    def __str__(self) -> str:
        tables = [line for header, rows in self._tables() for line in (*align(header, rows), "")]
        return "\n".join([*self._headlines(), "", *tables, *self._conclusions()])

    def _repr_html_(self) -> str:
        return "".join(
            [
                *(f"<p>{escape(line)}</p>" for line in self._headlines()),
                *(html_table(header, rows) for header, rows in self._tables()),
                *(f"<p><b>{escape(line)}</b></p>" for line in self._conclusions()),
            ]
        )

    def _headlines(self) -> list[str]:
        of_rank = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        loader = (
            f"{self.url}: an epoch of the loader takes {human_seconds(self.epoch_seconds)}, "
            f"{self.epoch_samples_per_second:,.0f} samples/s: the first batch comes after "
            f"{self.first_batch_seconds:.2f} s, then {self.samples_per_second:,.0f} samples/s, "
            f"{human_bytes(self.bytes_per_second)}/s decoded ({self.steps} batches of {self.batch_size}{of_rank}, "
            f"split {self.split}, balance {self.balance}{options})"
        )
        return [loader] if self.verdict is None else [self.verdict.headline, loader]

    def _tables(self) -> list[tuple[Sequence[str], list[list[str]]]]:
        stages = [
            [
                stage.name,
                f"{stage.items:,}",
                human_bytes(stage.bytes) if stage.bytes else "",
                f"{stage.busy_seconds:.3f}",
                f"{stage.wait_seconds:.3f}",
                f"{stage.share:.0%}",
            ]
            for stage in self.stages
        ]
        tables: list[tuple[Sequence[str], list[list[str]]]] = [(_STAGE_HEADER, stages)]
        if self.store is not None:
            rates = [[f"{n}", f"{human_bytes(rate)}/s"] for n, rate in self.store.bytes_per_second.items()]
            tables.append(
                (("reads of the store at once", f"latency {self.store.latency_seconds * 1000:,.1f} ms"), rates)
            )
        if self.training is not None:
            tables.insert(0, (_PART_HEADER, self._parts(self.training)))
        return tables

    def _parts(self, trials: TrainingTrials) -> list[list[str]]:
        rates = [("loader alone", self.samples_per_second, "")]
        if trials.transform is not None:
            rates += [
                (f"{trials.transform_name} alone", trials.transform.samples_per_second, ""),
                ("loader and transform", trials.input.samples_per_second, ""),
            ]
        rates += [
            (f"{trials.step_name} alone", trials.step.samples_per_second, ""),
            ("training", trials.together.samples_per_second, f"{trials.utilisation:.0%}"),
        ]
        return [[name, f"{rate:,.0f}", utilisation] for name, rate, utilisation in rates]

    def _conclusions(self) -> list[str]:
        lines = []
        if self.other_load > _OTHER_LOAD:
            lines.append(f"other programs took {self.other_load:.0%} of the cores meanwhile: expect more without them")
        if self.verdict is None:
            seconds = self.first_batch_seconds + self.seconds
            short = f"; read for {seconds:.2f} s only, too short to be sure" if seconds < _SHORT_SECONDS else ""
            lines.append(f"bottleneck: {self.bottleneck}: {self.knob}{short}")
        else:
            name = f"loader ({self.bottleneck})" if self.verdict.bottleneck == "loader" else self.verdict.bottleneck
            gain = "" if self.verdict.gain is None else f" (up to {self.verdict.gain:.2f} x the epoch's rate)"
            lines.append(f"bottleneck: {name}: {self.verdict.advice}{gain}")
        if self.tried is not None:
            options = ", ".join(f"{name}={value!r}" for name, value in self.tried.options.items())
            lines.append(
                f"tried Loader({options}): an epoch of the loader has {self.tried.epoch_samples_per_second:,.0f} "
                f"samples/s, {self.tried.gain:.2f} x as many"
            )
        if self.verdict is None:
            lines.append("whether training would wait for this input: profile it with --step or --config")
        return lines


_STAGE_HEADER = ("stage of the loader", "items", "bytes", "busy s", "wait s", "busy")
_PART_HEADER = ("part of training", "samples/s", "utilisation")
