"""The training loop: from a configuration to a trained model, checkpoints and metrics, on all ranks of a ring.

connect -> loaders -> model -> broadcast or resume -> steps and evaluations -> check that all ranks agree -> outputs

Tested in tests/training/test_train.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import tensorflow as tf

from ringfeed.pipeline import Loader
from ringfeed.sharding.errors import TrainingError
from ringfeed.training.checkpoint.memory import Memory
from ringfeed.training.checkpoint.snapshot import Position
from ringfeed.training.config.config_file import to_tree
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.metrics.evaluate import evaluate, evaluate_each
from ringfeed.training.records.record_format import CHECKPOINT, EVALUATION
from ringfeed.training.records.recorder import Recorder, StepTimes, open_recorder
from ringfeed.training.ring.ring import Ring
from ringfeed.training.ring.same_weights import assert_same_weights
from ringfeed.training.trackers.tracker import Tracker

from .assembly import assemble
from .callbacks import Callbacks
from .clients import paced
from .overflows import check_overflows, check_records, check_weights, check_wire, is_at_floor
from .progress import Progress
from .state.outputs import write_outputs
from .state.quarantine import join_quarantine, restore_quarantine
from .state.resume import resume
from .state.saving import Saver
from .stopping import Stopped, StopRequest
from .window import Window

__all__ = ["Trainer", "train"]

_WATCH_STEPS = 50  # the run of a rank that cannot train ends within twice as many


class Trainer:
    """One run on one rank.

    Args:
        config: configuration of the run.
        ring: the ranks; all of them construct a trainer with the same configuration.
        check: called before each step, and each batch of an evaluation: returns whether the run shall stop, which one
            rank decides for all; what it raises ends the run.
        memory: where to keep commits, and to resume from; None: nowhere.
        trackers: what follows the run on rank 0, beside what the configuration names.

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
    ) -> None:
        self.config, self.ring = config, ring
        self._stop_request = StopRequest(check, None if ring.rank else config.max_time)  # one clock for all ranks
        self._assembly = assemble(config, ring)
        self._shares, self.parts = self._assembly.shares, self._assembly.parts
        self.loader = self._shares.loader
        self.train_step = self._assembly.train_step
        self.pace = self._assembly.pace
        start = resume(
            config,
            ring,
            self.parts,
            memory or Memory(),
            manifest=self.loader.manifest,
            steps_per_epoch=self.pace.steps,
            total_steps=config.total_steps(self.pace.steps),
        )
        restore_quarantine(config, ring, self._shares, start.quarantined)
        self.loader = self._shares.loader
        self.skipped_steps = start.skipped_steps
        assert self.parts.agreement is not None
        self._agreement = self.parts.agreement
        self._progress = Progress(config, start, self.pace.steps, is_chief=ring.rank == 0, trackers=trackers)
        self.reporter = self._progress.reporter
        self._recorder: Recorder | None = None  # of `run`
        self._saver = Saver(config, ring, self.parts, memory, start.run)
        self._callbacks = Callbacks(config, self.parts.network, ring, self.pace.steps)
        self._window = Window()
        self._reported_bytes = 0.0
        self._asked_to_stop = False  # this rank
        self._must_stop = tf.constant(False)  # all ranks, as agreed in the last step

    @property
    def position(self) -> Position:
        """The position of the run."""
        return self._progress.position

    @property
    def traced_preprocess(self) -> Any:
        """The `tf.function` from an element of `loader` to ``(inputs, target, weight)``, augmentation included."""
        return self._assembly.augment

    # -- loop ----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Train to the end and return the metrics, with the same keys on every rank (histories on rank 0 only).

        Raises:
            Stopped: a rank was asked to stop.
        """
        with self._saver.held(is_over=self._progress.is_over):
            return self._run()

    def _run(self) -> dict[str, Any]:
        started = time.perf_counter()
        try:
            states = self.reporter.track(to_tree(self.config), self.ring.size)
            self.reporter.share(self.ring.allgather_object(states)[0])
            if self._saver.keeps(to_store=False):
                with self._agreed():
                    self._commit(to_store=False)  # what another rank gave this one
            if not self._progress.is_over:
                self._recorder = self._open_recorder()
                self.reporter.begin(
                    self.position.epoch, self.position.step, self.config.data.batch_size, self.ring.size
                )
            if (epoch := self._progress.missed_evaluation) is not None:
                self._evaluate(epoch)
            self._callbacks.call("on_train_begin", {})
            while not self._progress.is_over:
                self._run_epoch()
            if not self._progress.is_evaluated:  # the run had ended, and only its evaluation is missing
                self._evaluate(self._progress.last_epoch)
            self._callbacks.call("on_train_end", {})
        finally:
            self.reporter.close()
            self._saver.writer.join()
            if self._recorder is not None:
                self._recorder.close(self.position.step, self.position.epoch)
        return self._finish(time.perf_counter() - started, self.position.step - self._progress.first_step)

    def _open_recorder(self) -> Recorder | None:
        output = self.config.output
        return open_recorder(
            output.records,
            output.prometheus_port,
            rank=self.ring.rank,
            ranks=self.ring.size,
            first_step=self.position.step,
            batch_size=self.config.data.batch_size,
            total_steps=self._progress.total_steps,
        )

    def _activity(self, name: str) -> AbstractContextManager[None]:
        if self._recorder is None:
            return nullcontext()
        return self._recorder.activity(name, self.position.step, self.position.epoch)

    def _run_epoch(self) -> None:
        epoch = self.position.epoch
        if self._shares.agree(epoch):
            self.loader = self._shares.loader
        batches = self._batches(epoch, self.position.epoch_step)
        self._window = Window()
        self._callbacks.call("on_epoch_begin", epoch, {})
        while self.position.epoch == epoch and not self._progress.is_over:
            must_stop = self._must_stop  # of the step before: reading this one's would wait for it
            self._one_step(batches)
            if bool(must_stop):
                self._stop(epoch)
            if self.position.epoch != epoch or self._progress.is_over:
                break
            if self.position.step % self.config.output.log_every == 0 or self._window.has_overflowed(_WATCH_STEPS):
                self._report(epoch)
            every, often = self.config.checkpoint.every_steps, self.config.checkpoint.commit_steps
            if every and self.position.step % every == 0:
                self._report(epoch)
                self._save()
                self._window = Window()  # its clock starts after the checkpoint
            elif often and self._saver.keeps(to_store=False) and self.position.step % often == 0:
                self._report(epoch)
                self._save(to_store=False)
                self._window = Window()
        if self.position.epoch != epoch and next(batches, None) is not None:
            raise TrainingError(f"the loader continues after step {self.pace.steps}, the last of the epoch")
        self._report(epoch)
        self._evaluate(epoch)
        self._end_epoch(epoch)
        self._save()

    def _end_epoch(self, epoch: int) -> None:
        """Call the callbacks; any may end the run here."""
        steps, evaluations = self.reporter.steps, self.reporter.evaluations
        evaluation = evaluations[-1] if evaluations and self._progress.is_evaluated else None
        self._callbacks.end_epoch(epoch, steps[-1]["loss"] if steps else None, evaluation)
        if self._callbacks.stop_training() and not self._progress.is_over:
            self._progress.end_early()

    def _batches(self, epoch: int, start_step: int) -> Iterator[Any]:
        loader, preprocess = self.loader, self._assembly.augment

        def read(first: int) -> Iterator[Any]:
            if not self.pace.repeats:
                return loader.batches(epoch, first, transform=preprocess)
            return islice(loader.batches(0, first, transform=preprocess), self.pace.steps - first)

        for batch in paced(read, self.pace, start_step):
            self._asked_to_stop = self._stop_request()
            yield batch

    def _eval_batches(self, loader: Loader, preprocess: Any) -> Iterator[Any]:
        for batch in loader.batches(0, transform=preprocess):
            self._asked_to_stop = self._stop_request()
            if self._asked_to_stop:
                return
            yield batch

    def _one_step(self, batches: Iterator[Any]) -> None:
        window, epoch = self._window, self.position.epoch
        asked = time.monotonic()
        try:
            inputs, target, weight = next(batches)
        except StopIteration:
            raise TrainingError(
                f"the loader ended at step {self.position.epoch_step} of epoch {self.position.epoch}, which has "
                f"{self.pace.steps} steps"
            ) from None
        got = time.monotonic()
        window.wait_seconds += got - asked
        if self._shares.factor != 1.0 and self.config.sync.method != "fedavg":  # its mean counts samples
            weight = weight * self._shares.factor
        metrics = self.train_step(inputs, target, weight, tf.constant(float(self._asked_to_stop)))
        window.metrics.append(metrics)
        window.add_padding(inputs)
        self._must_stop = metrics.is_stopping
        returned = time.monotonic()
        window.timed_steps += 1
        if self.position.step == self._progress.first_step:  # this step compiled: it says nothing about throughput
            metrics.loss.numpy()
            window.restart_clock()
        self._progress.advance()
        self.parts.synchronizer.after_step(self.position.step)
        if self._recorder is not None:
            times = StepTimes(asked, got, returned, time.monotonic(), metrics.stamps)
            self._recorder.add_step(self.position.step - 1, epoch, times)
        if self._callbacks.follows_steps:
            logs = {"loss": float(metrics.loss.numpy())}
            self._callbacks.call("on_train_batch_end", (self.position.step - 1) % self.pace.steps, logs)
        self.reporter.advance(epoch, self.position.step)

    def _report(self, epoch: int) -> None:
        """Read the window's metrics, check for overflows, and report them."""
        self._saver.writer.check()
        window = self._window
        if not window.metrics:
            self._window = Window()
            return
        summary = window.summary(self.pace.step_samples)
        if self.config.sync.shares == "speed":
            self._shares.add(window.timed_steps, summary["seconds"] - window.reduce_seconds())
        self._window = Window()
        if skipped := window.skipped_steps(self.position.step):
            self.skipped_steps += len(skipped)
            sent_finite = window.was_sent_finite(skipped[0], self.position.step)
            check_wire(skipped, sent_finite, self.config.compression.method)
            # Where only scaled gradients overflow, as at the start of a float16 run, no record is to blame.
            suspects = skipped if is_at_floor(self.parts.scale) else window.steps_without_loss(self.position.step)
            check_records(suspects, self.ring, self.loader, self.pace, self.traced_preprocess, self.config.data.place)
            check_overflows(skipped, self.config, self.parts.scale)
        rate_step = int(self.parts.optimizer.iterations.numpy()) - 1
        entry = {
            "step": self.position.step,
            "epoch": epoch,
            **summary,
            "learning_rate": float(self._assembly.schedule(max(rate_step, 0))),
            "loss_scale": float(self.parts.scale.scale.numpy()),
            "skipped_steps": self.skipped_steps,
            "bytes_per_step": self._wire_bytes(summary["steps"]),
        }
        self.reporter.add_steps(entry)
        if self._recorder is not None:
            self._recorder.report(entry)

    def _wire_bytes(self, steps: int) -> float:
        """Return the bytes per step that this rank has received for synchronisation since the last call."""
        total = float(self._assembly.wire.wire_bytes.numpy())
        self._reported_bytes, before = total, self._reported_bytes
        return (total - before) / steps

    # -- evaluation, checkpoints, end ------------------------------------------------------------------------------

    def _evaluate(self, epoch: int) -> None:
        if not self._assembly.evaluations or not self._progress.is_evaluation_due(epoch):
            return
        predict, target, own = self._assembly.predict, self._assembly.target, self._assembly.own
        metrics = self.config.metrics
        self._callbacks.call("on_test_begin", {})
        self.reporter.begin_evaluation()
        batches = {name: self._eval_batches(*read) for name, read in self._assembly.evaluations.items()}
        with self._activity(EVALUATION), self._agreed(), self.parts.averaged():
            if self.config.data.mixture is None:
                result = evaluate(self.ring, predict, next(iter(batches.values())), target, metrics, own)
            else:
                result = evaluate_each(self.ring, predict, batches, target, metrics, own)
            (asked,) = self.ring.allreduce_sum([tf.constant(float(self._asked_to_stop))])
        if asked > 0.0:  # then this evaluation is not whole; a resumed run makes it
            self._stop(epoch)
        self._progress.add_evaluation(epoch, result)
        self._callbacks.call("on_test_end", {name: value for name, value in result.items() if isinstance(value, float)})

    def _stop(self, epoch: int) -> None:
        """Save and leave the run."""
        self._report(epoch)
        self._save()
        self._saver.writer.wait()
        self.ring.barrier()
        by_signal = any(self.ring.allgather_object(self._stop_request.is_signalled))
        max_time = None if by_signal else self.config.max_time
        raise Stopped(self.position.step, self._progress.first_step, self.config.checkpoint.url, max_time)

    def _agreed(self) -> AbstractContextManager[None]:
        """Give all ranks the same weights and statistics in the body."""
        return self._agreement.applied(self.position.step, self._weight)

    @property
    def _weight(self) -> float:
        """Weight of this rank in the means of statistics: a client's samples so far, else its samples in a step."""
        if self.config.sync.clients is not None:
            return float(self.pace.samples_before(self.position.step))
        return float(self._shares.of_ranks[self.ring.rank])

    def _save(self, *, to_store: bool = True) -> None:
        """Commit to memory and to the store, as far as there are any, after a check that all ranks have equal weights.

        Args:
            to_store: whether to write a checkpoint, too.
        """
        if not self._saver.keeps(to_store=to_store):
            return
        with self._activity(CHECKPOINT), self._agreed():
            self._assert_same_weights()
            check_weights(self.parts.network, self.position.step)
            self._commit(to_store=to_store)
            self.ring.barrier()

    def _commit(self, *, to_store: bool) -> None:
        history = self.reporter.history() | {"skipped_steps": self.skipped_steps}
        self._saver.commit(self.position, self.loader, history, to_store=to_store)

    def _assert_same_weights(self) -> str:
        averages = self.parts.average.variables if self.parts.average else []
        return assert_same_weights(self.ring, [*self.parts.network.weights, *averages])

    def _finish(self, seconds: float, steps: int) -> dict[str, Any]:
        self._saver.writer.wait()
        self._agreement.settle(self.position.step, self._weight)
        digest = self._assert_same_weights()
        bad_shards = join_quarantine(self.config, self.ring, self.loader)
        check_weights(self.parts.network, self.position.step)
        self.reporter.warn_of_waits()
        if self.skipped_steps == self.position.step:
            raise TrainingError(
                f"the gradients of all {self.skipped_steps} steps overflowed in {self.config.precision}, so the "
                "weights are still the initial ones: lower loss_scale.initial, or train for longer"
            )
        metrics = self._progress.metrics(seconds, self.pace.step_samples) | {
            "ranks": self.ring.size,
            "shares": self._shares.of_ranks,
            "classes": list(self._assembly.target.classes),
            "parameters": self.parts.network.count_params(),
            "skipped_steps": self.skipped_steps,
            "quarantined": bad_shards,
            "bytes_per_step": float(self._assembly.wire.wire_bytes.numpy()) / max(steps, 1),
            "weights_digest": digest,
        }
        if self.ring.rank == 0:
            encode = partial(self._saver.encode_model, self.position, self.loader, self.reporter.evaluations)
            write_outputs(self.config.output, encode, metrics)
        self.ring.barrier()
        return metrics


def train(
    config: TrainConfig, ring: Ring, check: Callable[[], bool] = lambda: False, memory: Memory | None = None
) -> dict[str, Any]:
    """Train according to a configuration, on this rank of a ring; return the metrics (docs/training.md).

    `check` is called before each step: it returns whether the run shall stop, and what it raises ends the run. An
    elastic run keeps commits in `memory`, and resumes from there.

    Raises:
        RingfeedError: training failed; the message is one line.
        Stopped: `check` asked for it, on any rank.
    """
    return Trainer(config, ring, check, memory).run()
