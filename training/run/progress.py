"""How far a run has come, whether it goes on, and what its metrics say of that: on a ring or on parameter servers.

Tested in tests/training/test_train.py and tests/training/run/state/test_best.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringfeed.training.config.config_file import to_tree
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.reports.reports import History

from .state.best import best_evaluations, is_patience_over
from .state.outputs import METRICS_FORMAT
from .state.resume import Start


class RunProgress:
    """The position of one run between its start and its end, `total_steps`."""

    def __init__(self, config: TrainConfig, start: Start, steps_per_epoch: int, history: History) -> None:
        self._config, self._history = config, history
        self.position, self.first_step, self._resumed_from = start.position, start.position.step, start.resumed_from
        self.steps_per_epoch, self.total_steps = steps_per_epoch, config.total_steps(steps_per_epoch)
        self.evaluated_step = start.evaluated_step
        self.is_early = False
        if self.improves_no_more:
            self.end_early()

    @property
    def is_over(self) -> bool:
        return self.position.step >= self.total_steps

    @property
    def is_evaluated(self) -> bool:
        return self.evaluated_step == self.position.step

    @property
    def missed_evaluation(self) -> int | None:
        """Epoch whose end the run stands at without its evaluation: an earlier process stopped there."""
        at_end = self.position.epoch_step == 0 and self.position.step > 0
        return self.position.epoch - 1 if at_end and not self.is_evaluated else None

    @property
    def last_epoch(self) -> int:
        return self.position.epoch - (self.position.epoch_step == 0)

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The best evaluation, by the metric of the best checkpoint, if one is kept, or of early stopping."""
        options, early = self._config.checkpoint, self._config.early_stopping.metric
        metric = early if early and not options.best else options.metric
        return next(iter(best_evaluations(self._history.evaluations, metric)), None)

    @property
    def last_evaluation(self) -> Mapping[str, Any] | None:
        return self._history.evaluations[-1] if self._history.evaluations and self.is_evaluated else None

    @property
    def improves_no_more(self) -> bool:
        """Whether the evaluations have not improved for as long as early stopping waits."""
        return is_patience_over(self._history.evaluations, self._config.early_stopping)

    def advance(self) -> None:
        self.position = self.position.advanced(self.steps_per_epoch)

    def is_evaluation_due(self, epoch: int) -> bool:
        """Whether to evaluate after a step of an epoch: at the end of some epochs, and of the run."""
        is_end = self.position.epoch != epoch and self.position.epoch % self._config.eval_every_epochs == 0
        return is_end or self.is_over

    def end_early(self) -> None:
        """End the run here."""
        self.total_steps, self.is_early = self.position.step, True

    def metrics(self, seconds: float, step_samples: float, *, is_chief: bool) -> dict[str, Any]:
        """Return what the metrics file says of any run, after some seconds of this process with such steps."""
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
            "history": self._history.tree(),
            "final": self.last_evaluation if is_chief else None,
        }
