"""How far a run has come, whether it goes on, and what its metrics say of that: on a ring or on parameter servers.

Tested in tests/training/test_train.py and tests/training/loop/state/test_best.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ringfeed.training.config.config_file import to_tree
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.trackers.open import open_trackers
from ringfeed.training.trackers.tracker import Tracker

from .reporting import Reporter
from .state.best import best_evaluations, is_patience_over
from .state.outputs import METRICS_FORMAT
from .state.resume import Start

__all__ = ["Progress"]


class Progress:
    """The position of one run between its start and its end.

    Args:
        config: configuration of the run.
        start: where it starts.
        steps_per_epoch: number of steps of an epoch.
        is_chief: whether this process reports.
        trackers: what follows the run, beside what the configuration names.

    Attributes:
        position: the present position.
        first_step: number of steps done before this process began.
        total_steps: number of steps at whose end the run ends.
        evaluated_step: step of the last evaluation.
        is_early: whether the run ends since its evaluations no longer improve.
        reporter: shows and keeps what is reported.
    """

    def __init__(
        self,
        config: TrainConfig,
        start: Start,
        steps_per_epoch: int,
        *,
        is_chief: bool = True,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        self._config, self._is_chief = config, is_chief
        self.position, self.first_step, self._resumed_from = start.position, start.position.step, start.resumed_from
        self.steps_per_epoch, self.total_steps = steps_per_epoch, config.total_steps(steps_per_epoch)
        self.evaluated_step = start.evaluated_step
        self.reporter = Reporter(
            is_chief=is_chief,
            total_steps=self.total_steps,
            done_steps=self.first_step,
            trackers=[*open_trackers(config.track), *trackers] if is_chief else (),
            mixture=[] if config.data.mixture is None else list(config.data.urls.values()),
        )
        if start.history:
            self.reporter.restore(start.history)
        self.is_early = self._improves_no_more()

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self.position.step >= self.total_steps

    @property
    def is_evaluated(self) -> bool:
        """Whether the last evaluation is of the present step."""
        return self.evaluated_step == self.position.step

    @property
    def missed_evaluation(self) -> int | None:
        """Epoch whose end the run stands at without its evaluation, in which an earlier process stopped."""
        at_end = self.position.epoch_step == 0 and self.position.step > 0
        return self.position.epoch - 1 if at_end and not self.is_evaluated else None

    @property
    def last_epoch(self) -> int:
        """Epoch of the last step done."""
        return self.position.epoch - (self.position.epoch_step == 0)

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best evaluation, by the metric of the best checkpoint, if one is kept, or of early stopping."""
        options, early = self._config.checkpoint, self._config.early_stopping.metric
        metric = early if early and not options.best else options.metric
        return next(iter(best_evaluations(self.reporter.evaluations, metric)), None)

    def advance(self) -> None:
        """Note that a step is done."""
        self.position = self.position.advanced(self.steps_per_epoch)

    def is_evaluation_due(self, epoch: int) -> bool:
        """Whether to evaluate after a step of an epoch: at the end of some epochs, and of the run."""
        is_end = self.position.epoch != epoch and self.position.epoch % self._config.eval_every_epochs == 0
        return is_end or self.is_over

    def add_evaluation(self, epoch: int, result: Mapping[str, Any]) -> None:
        """Report an evaluation, and end the run here if they no longer improve."""
        self.reporter.add_evaluation({"epoch": epoch, "step": self.position.step, **result})
        self.evaluated_step = self.position.step
        if not self.is_over and self._improves_no_more():
            self.is_early = True
            self.reporter.end_early(self.position.step, self.best, "the evaluations no longer improve")

    def end_early(self) -> None:
        """End the run here, since a callback asks for it."""
        self.total_steps, self.is_early = self.position.step, True
        self.reporter.end_early(self.position.step, self.best, "a callback asks for it")

    def _improves_no_more(self) -> bool:
        is_early = is_patience_over(self.reporter.evaluations, self._config.early_stopping)
        if is_early:
            self.total_steps = self.position.step
        return is_early

    def metrics(self, seconds: float, step_samples: float) -> dict[str, Any]:
        """Return what the metrics file says of any run.

        Args:
            seconds: time that this process has trained.
            step_samples: mean number of samples of a step.
        """
        return {
            "format": METRICS_FORMAT,
            "config": to_tree(self._config),
            "steps_per_epoch": self.steps_per_epoch,
            "total_steps": self.total_steps,
            "resumed_from_step": self._resumed_from,
            "train_seconds": seconds,
            "train_samples": round((self.position.step - self.first_step) * step_samples),
            "stopped_early": self.is_early,
            "best": self.best,
            "history": self.reporter.history(),
            "final": self.reporter.evaluations[-1] if self._is_chief and self.is_evaluated else None,
        }
