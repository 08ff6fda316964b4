"""What every run does, whoever takes its steps: begin, train, evaluate, save, stop, finish.

A `Trainer` is a rank that takes the steps; a `ServerTrainer` hands them out to workers.
Tested in tests/training/test_train.py and tests/training/servers/test_parameter_server.py.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import tensorflow as tf

from ringfeed.pipeline import Loader, Mixture
from ringfeed.sharding.messages import counted
from ringfeed.training.checkpoint.background import Memory
from ringfeed.training.checkpoint.snapshot import Parts, Position
from ringfeed.training.config.config_file import to_tree
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.records.record_format import CHECKPOINT, EVALUATION
from ringfeed.training.reports.console import metrics_text
from ringfeed.training.reports.events import EvaluationBegan, EvaluationDone, RunBegan, RunEnded, StoppedEarly
from ringfeed.training.reports.open import open_reports
from ringfeed.training.reports.reports import History, Reports
from ringfeed.training.reports.tracker import Tracker
from ringfeed.training.ring.ring import Ring

from .evaluator import Evaluator
from .progress import RunProgress
from .state.outputs import encode_metrics, write_file
from .state.resume import Start
from .state.saving import Saver
from .stopping import Stopped, StopRequest

log = logging.getLogger(__name__)


class BaseTrainer(ABC):
    """One run in one process.

    The ranks of the ring report, evaluate and save together; `ranks` is the number of processes that train.
    """

    parts: Parts
    loader: Loader | Mixture
    evaluator: Evaluator
    tester: Evaluator
    history: History
    reports: Reports
    _step_samples: float  # of all that train; the mean if steps differ

    def __init__(self, config: TrainConfig, ring: Ring, ranks: int, stop_request: StopRequest) -> None:
        self.config, self.ring, self._ranks, self._stop_request = config, ring, ranks, stop_request
        self._wants_stop = False  # this process

    def _start(
        self,
        start: Start,
        steps_per_epoch: int,
        memory: Memory | None = None,
        trackers: Sequence[Tracker] = (),
        callbacks: Sequence[Tracker] = (),
    ) -> None:
        """Take the place where the run starts, and open what follows it.

        `trackers` follow the run on rank 0, beside those that the configuration names; `callbacks` get each event on
        every rank, after all others.
        """
        self.history = History(start.history)
        self._progress = RunProgress(self.config, start, steps_per_epoch, self.history)
        self._saver = Saver(self.config, self.ring, self.parts, memory, start.run)
        opened = open_reports(self.config, is_chief=self.ring.rank == 0, others=trackers)
        self.reports = Reports([self.history, *opened, *callbacks])

    @property
    def position(self) -> Position:
        return self._progress.position

    def run(self) -> dict[str, Any]:
        """Train to the end and return the metrics, with the same keys on every rank (histories on rank 0 only).

        Raises `Stopped` if a rank was asked to stop.
        """
        with self._saver.hold(is_over=self._progress.is_over), self._explained():
            started = time.perf_counter()
            self._run()
            return self._finish(time.perf_counter() - started)

    def _run(self) -> None:
        is_finished = False
        try:
            self._begin()
            if (epoch := self._progress.missed_evaluation) is not None:
                self._evaluate(epoch)
            while not self._progress.is_over:
                self._train()
            if not self._progress.is_evaluated:  # the run had ended, and only its evaluation is missing
                self._evaluate(self._progress.last_epoch)
            is_finished = True
        finally:
            try:
                self.reports.emit(RunEnded(self.position.step, self.position.epoch, is_finished))
            finally:
                self._saver.writer.join()

    def _begin(self) -> None:
        self.reports.emit(
            RunBegan(
                config=to_tree(self.config),
                rank=self.ring.rank,
                ranks=self._ranks,
                epoch=self.position.epoch,
                first_step=self.position.step,
                total_steps=self._progress.total_steps,
                batch_size=self.config.data.batch_size,
                history=self.history.tree(),
                states=self.history.states,
            )
        )
        states = self.history.states | self.reports.states()
        self.history.states = self.ring.allgather_object(states)[0]  # another rank may write the next checkpoint
        self._saver.check_folder(self.position.step)  # rank 0 holds it by now

    @abstractmethod
    def _train(self) -> None:
        """Train to the next checkpoint or the end of the epoch, evaluate what is due, and save."""

    # -- evaluation, checkpoints, end ------------------------------------------------------------------------------

    def _evaluate(self, epoch: int) -> None:
        """Evaluate, if that is due after a step of an epoch (a collective)."""
        if not self.evaluator.loaders or not self._progress.is_evaluation_due(epoch):
            return
        self.reports.emit(EvaluationBegan())
        with self.reports.timed(EVALUATION, self.position), self._evaluated_weights():
            result = self.evaluator(self.config, self.ring, self._is_stopping)
            (stop_votes,) = self.ring.allreduce_sum([tf.constant(float(self._wants_stop))])
        if stop_votes > 0.0:  # then this evaluation is not whole; a resumed run makes it
            self._stop()
        self.reports.emit(EvaluationDone({"epoch": epoch, "step": self.position.step, **result}))
        self._progress.evaluated_step = self.position.step
        if not self._progress.is_over and self._progress.improves_no_more:
            self._end_early("the evaluations no longer improve")

    def _is_stopping(self) -> bool:
        self._wants_stop = self._stop_request()
        return self._wants_stop

    def _end_early(self, reason: str) -> None:
        self._progress.end_early()
        self.reports.emit(StoppedEarly(self.position.step, self._progress.best, reason))

    def _stop(self) -> NoReturn:
        self._saver.settle()
        self._save()
        self._saver.writer.wait()
        self.ring.barrier()
        by_signal = any(self.ring.allgather_object(self._stop_request.is_signalled))
        max_time = None if by_signal else self.config.max_time
        raise Stopped(self.position.step, self._progress.first_step, self.config.checkpoint.url, max_time)

    def _save(self, *, to_store: bool = True) -> None:
        """Commit to memory and, if asked, to the store, as far as there are any, after a check of the weights."""
        if not self._saver.keeps(to_store=to_store):
            return
        if self._progress.is_over:
            self._saver.settle()
        with self.reports.timed(CHECKPOINT, self.position), self._agreed():
            self._check_weights()
            self._commit(to_store=to_store)
            self.ring.barrier()

    def _commit(self, *, to_store: bool) -> None:
        history = self.history.tree() | {"skipped_steps": self.skipped_steps}
        self._saver.commit(self.position, self.loader, history, to_store=to_store)

    def _finish(self, seconds: float) -> dict[str, Any]:
        self._saver.writer.wait()
        figures = self._figures()
        is_chief = self.ring.rank == 0
        metrics = self._progress.metrics(seconds, self._step_samples, is_chief=is_chief) | figures | {"test": None}
        output = self.config.output
        try:
            step = self._saver.use_output_weights(self.position.step, self.history.evaluations)
            metrics["test"] = self._test(step)
            if is_chief and output.model is not None:
                write_file(output.model, self._saver.encode_model(step, self.loader))
        finally:  # a store that refuses the model may accept the metrics
            if is_chief and output.metrics is not None:
                write_file(output.metrics, encode_metrics(metrics))
        self.ring.barrier()
        return metrics

    def _test(self, step: int) -> dict[str, Any] | None:
        """Evaluate the output's weights, those of a step, on the split that nothing was chosen by (a collective)."""
        if not self.tester.loaders:
            return None
        with self.parts.exported():
            result = self.tester(self.config, self.ring, lambda: False)
        if self.ring.rank == 0:
            of = f"{counted(result['samples'], 'sample')} of {self.config.data.test_split!r}"
            text = f"tested the weights of step {step} on {of}: {metrics_text(result)}"
            log.info(text, extra={"event": {"event": "test", "step": step, **result}})
        return {"step": step, **result}

    # -- what differs ----------------------------------------------------------------------------------------------

    @property
    def skipped_steps(self) -> int:
        """Steps so far whose gradients were not finite."""
        return 0

    @abstractmethod
    def _figures(self) -> dict[str, Any]:
        """The metrics of this kind of run, after a last check of its weights (a collective)."""

    @abstractmethod
    def _check_weights(self) -> object:
        """Refuse to save weights that are not finite, or that ranks do not share."""

    @abstractmethod
    def _evaluated_weights(self) -> AbstractContextManager[Any]:
        """Give the network the weights to evaluate in the body."""

    def _agreed(self) -> AbstractContextManager[None]:
        """Give all ranks the same weights and statistics in the body."""
        return nullcontext()

    def _explained(self) -> AbstractContextManager[None]:
        """Say what an error in the body comes from."""
        return nullcontext()
