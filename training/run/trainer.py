"""The training loop: from a configuration to a trained model, checkpoints and metrics, on all ranks of a ring.

connect -> loaders -> model -> broadcast or resume -> steps and evaluations -> check that all ranks agree -> outputs

Tested in tests/training/test_train.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import islice
from typing import Any

import tensorflow as tf

from ringfeed.pipeline.epochs_ahead import EpochsAhead
from ringfeed.sharding.errors import TrainingError
from ringfeed.training.checkpoint.background import Memory
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.reports.events import EpochBegan, EpochEnded, StepDone, StepTimes
from ringfeed.training.reports.tracker import Tracker
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.same_weights import assert_same_weights

from .arguments import check_arguments, check_backend
from .assembly import MakeSynchronizer, Schedule, assemble
from .base_trainer import BaseTrainer
from .callbacks import Callbacks
from .clients import batches_of_steps
from .inputs import join_quarantine, restore_quarantine
from .overflows import check_some_counted, check_weights
from .state.resume import resume
from .step_log import StepLog
from .stopping import StopRequest

Batch = tuple[Any, Any, Any]
"""Inputs, target and weight of this rank's samples in a step."""


class Trainer(BaseTrainer):
    """One run on one rank.

    Args:
        config: configuration of the run.
        ring: the ranks; all of them construct a trainer with the same configuration.
        check: called before each step, and each batch of an evaluation: returns True to stop; any rank can stop all.
            Exceptions end the run.
        memory: where to keep commits, and to resume from; None: nowhere.
        trackers: what follows the run on rank 0, beside what the configuration names.
        synchronizer: makes of the ring what keeps the ranks in step, in place of `sync.method` and `compression`.
        schedule: the learning rate by step, in TensorFlow operations, in place of `schedule`.

    Raises:
        RingfeedError: the dataset, the model or a checkpoint does not fit the configuration.

    >>> from ringfeed.training import SoloRing, load_config
    >>> metrics = Trainer(load_config("flights.yaml"), SoloRing()).run()  # doctest: +SKIP
    >>> metrics["final"]["accuracy"]  # doctest: +SKIP
    """

    def __init__(
        self,
        config: TrainConfig,
        ring: Ring,
        check: Callable[[], bool] = lambda: False,
        memory: Memory | None = None,
        trackers: Sequence[Tracker] = (),
        synchronizer: MakeSynchronizer | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        given = {"memory": memory, "trackers": trackers, "synchronizer": synchronizer, "schedule": schedule}
        check_arguments(config, ring, {"check": check, **given})
        stop_request = StopRequest(check, None if ring.rank else config.max_time)  # one clock for all ranks
        self._assembly = assembly = assemble(config, ring, schedule, synchronizer)
        config = assembly.config
        super().__init__(config, ring, ring.size, stop_request)
        self._shares, self.parts, self.epoch_plan = assembly.shares, assembly.parts, assembly.epoch_plan
        assert self.parts.agreement is not None
        self._agreement, self.train_step = self.parts.agreement, assembly.train_step
        self.evaluator, self.tester = assembly.evaluator, assembly.tester
        manifest, steps = self._shares.loader.manifest, self.epoch_plan.steps
        start = resume(config, ring, self.parts, memory or Memory(), manifest, steps)
        restore_quarantine(config, ring, self._shares, start.quarantined)
        self.loader, self._step_samples = self._shares.loader, self.epoch_plan.step_samples
        self._callbacks = Callbacks(config, self.parts.network, ring, steps)
        self._start(start, steps, memory, trackers, [self._callbacks] if config.callbacks else [])
        self._log = StepLog(config, ring, assembly, self.reports, start.skipped_steps)
        self._ahead = EpochsAhead()
        self._agreed_stop = tf.constant(False)  # all ranks, as agreed in the last step

    @property
    def traced_preprocess(self) -> Any:
        """The `tf.function` from an element of `loader` to ``(inputs, target, weight)``, augmentation included."""
        return self._assembly.augment

    @property
    def skipped_steps(self) -> int:
        return self._log.skipped_steps

    # -- steps -----------------------------------------------------------------------------------------------------

    def batches(
        self, epoch: int, start_step: int = 0, ahead: EpochsAhead | None = None, stop_epoch: int = 0
    ) -> Iterator[Batch]:
        """Yield this rank's batches for the steps of an epoch, as `train_steps` takes them.

        With `ahead`, the next epoch before `stop_epoch` begins to be read before this one ends.
        """
        loader, preprocess = self.loader, self._assembly.augment

        def read(first: int) -> Iterator[Batch]:
            if self.epoch_plan.repeats:
                return islice(loader.batches(0, first, transform=preprocess), self.epoch_plan.steps - first)
            begin, steps = partial(loader.batches, epoch, first, transform=preprocess), loader.steps_per_epoch
            if ahead is None:
                return begin()
            return ahead.epoch(begin, loader, epoch, first, steps_per_epoch=steps, stop_epoch=stop_epoch)

        counts_samples = self.config.sync.method == "fedavg"  # its mean does
        factor = 1.0 if counts_samples else self._shares.sample_factor
        for inputs, target, weight in batches_of_steps(read, self.epoch_plan, start_step):
            yield inputs, target, weight if factor == 1.0 else weight * factor

    def train_steps(self, batches: Iterator[Batch]) -> None:
        """Train a step on each batch, until there is none, or the epoch or the run ends; then report the steps.

        All ranks call it with equally many batches. Raises `Stopped` if a rank was asked to stop.
        """
        epoch = self.position.epoch
        while self._is_within(epoch):
            requested = time.monotonic()
            if (batch := next(batches, None)) is None:
                break
            agreed_stop = self._agreed_stop  # of the step before: this one's would block until the step ends
            self._train_step(batch, requested)
            if bool(agreed_stop):
                self._report()
                self._stop()
            if self._is_within(epoch):
                self._report_and_save_if_due()
        self._report()

    def _is_within(self, epoch: int) -> bool:
        return self.position.epoch == epoch and not self._progress.is_over

    def _train_step(self, batch: Batch, requested: float) -> None:
        """Train a step on a batch that the loop asked for at a time."""
        position = self.position
        self._wants_stop = self._stop_request()
        received = time.monotonic()
        metrics = self.train_step(*batch, tf.constant(float(self._wants_stop)))
        returned = time.monotonic()
        self._agreed_stop = metrics.is_stopping
        self._log.add(metrics, batch[0], received - requested)
        self._progress.advance()
        self._agreement.after_step(self.position.step)
        times = StepTimes(requested, received, returned, time.monotonic(), metrics.stamps)
        self.reports.emit(StepDone(position.step + 1, position.epoch, position.epoch_step, metrics.loss, times))

    def _report_and_save_if_due(self) -> None:
        step, options = self.position.step, self.config.checkpoint
        to_store = options.every_steps is not None and step % options.every_steps == 0
        in_memory = options.commit_steps is not None and step % options.commit_steps == 0
        in_memory = in_memory and self._saver.keeps(to_store=False)
        if to_store or in_memory or self._log.is_due(step):
            self._report()
        if to_store or in_memory:
            self._save(to_store=to_store)
            self._log.restart()  # its clock starts after the checkpoint

    def _report(self) -> None:
        self._saver.writer.check()
        self._log.report(self.position.step, self._progress.last_epoch, self.loader)

    # -- epochs ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with closing(self._ahead):
            super()._run()

    def _begin(self) -> None:
        check_backend(self.config, self.ring)
        super()._begin()
        if self._saver.keeps(to_store=False):
            with self._agreed():
                self._commit(to_store=False)  # what another rank gave this one

    def _train(self) -> None:
        epoch, steps = self.position.epoch, self.epoch_plan.steps
        if self._shares.agree(epoch):
            self.loader = self._shares.loader
        self.reports.emit(EpochBegan(epoch, self.loader.stats))
        self._log.restart()
        stop_epoch = -(-self._progress.total_steps // steps)
        batches = self.batches(epoch, self.position.epoch_step, self._ahead, stop_epoch)
        self.train_steps(batches)
        if self._is_within(epoch):
            step = self.position.epoch_step
            raise TrainingError(f"the loader ended at step {step} of epoch {epoch}, which has {steps} steps")
        if self.position.epoch != epoch and next(batches, None) is not None:
            raise TrainingError(f"the loader continues after step {steps}, the last of the epoch")
        self._evaluate(epoch)
        self._end_epoch(epoch)
        self._save()

    def _end_epoch(self, epoch: int) -> None:
        """Call the callbacks; any may end the run here."""
        entries = self.history.step_entries
        self.reports.emit(EpochEnded(epoch, entries[-1]["loss"] if entries else None, self._progress.last_evaluation))
        if self._callbacks.stop_training() and not self._progress.is_over:
            self._end_early("a callback asks for it")

    # -- weights ---------------------------------------------------------------------------------------------------

    def _agreed(self) -> AbstractContextManager[None]:
        step = self.position.step
        return self._agreement.applied(step, self._shares.weight(self.epoch_plan, step))

    @contextmanager
    def _evaluated_weights(self) -> Iterator[None]:
        with self._agreed(), self.parts.averaged():
            yield

    def _check_weights(self) -> str:
        averages = self.parts.average.variables if self.parts.average else []
        digest = assert_same_weights(self.ring, [*self.parts.network.weights, *averages])
        check_weights(self.parts.network, self.position.step)
        return digest

    def _figures(self) -> dict[str, Any]:
        step = self.position.step
        self._agreement.settle(step, self._shares.weight(self.epoch_plan, step))
        digest = self._check_weights()
        bad_shards = join_quarantine(self.config, self.ring, self.loader)
        check_some_counted(self.skipped_steps, step, self.config.precision)
        steps = step - self._progress.first_step
        return {
            "ranks": self.ring.size,
            "shares": self._shares.of_ranks,
            "classes": list(self.evaluator.target.classes),
            "parameters": self.parts.network.count_params(),
            "skipped_steps": self.skipped_steps,
            "quarantined": bad_shards,
            "bytes_per_step": float(self._assembly.wire.wire_bytes.numpy()) / max(steps, 1),
            "weights_digest": digest,
        }
