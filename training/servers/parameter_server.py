"""The chief of a run on parameter servers: it hands out steps, evaluates, saves and reports, and trains nothing itself.

The workers' loop is `worker_loop`; who does which step is `board.part_plan`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.checkpoint.background import Memory
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.build import build_model
from ringfeed.training.models.losses import build_loss
from ringfeed.training.models.user_model import network_errors
from ringfeed.training.optimizers.build import build_schedule, schedule_warnings
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.reports.events import StepDone
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.ring.same_weights import assert_same_weights
from ringfeed.training.ring.tf_config import WORKER
from ringfeed.training.ring.world import World
from ringfeed.training.run.base_trainer import BaseTrainer
from ringfeed.training.run.evaluator import make_evaluator
from ringfeed.training.run.inputs import (
    EvaluationSource,
    open_evaluations,
    open_loader,
    open_manifests,
    traced,
    with_splits,
)
from ringfeed.training.run.overflows import check_weights
from ringfeed.training.run.state.resume import resume
from ringfeed.training.run.stopping import StopRequest

from .board.board import Board, Plan, serve_board
from .board.part_plan import PartPlan
from .board.round_plan import RoundPlan
from .board.task_watch import watch_tasks
from .cluster import CHIEF, PS, Cluster
from .placement import ServerOptimizers, VariablePlacement, server_device
from .row_shards import ServerParts, on_servers
from .server_log import ServerLog, UpdateRate, step_samples
from .task import MEET_TOKEN
from .updates import DirectUpdates, SignificantUpdates, SynchronousUpdates, Updates
from .worker_loop import make_worker_loop

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_LOST_SERVER = ("UnavailableError", "PSUnavailableError", "AbortedError")


class ServerTrainer(BaseTrainer):
    """One run, on the chief of a cluster; `stalled` is called in another thread, and ends this process."""

    def __init__(
        self, config: TrainConfig, cluster: Cluster, check: Callable[[], bool], stalled: Callable[[str], None]
    ) -> None:
        self._board = Board()
        stop_request = StopRequest(lambda: check() or self._board.is_stop_asked, config.max_time)
        manifests = open_manifests(config.data)
        config = with_splits(config, manifests)
        super().__init__(config, SoloRing(), cluster.workers, stop_request)
        self._cluster, self._workers = cluster, cluster.workers
        self._step_samples = step_samples(config.parameter_server, config.data.batch_size, cluster.workers)
        self._coordinator = _connect(cluster)
        self._server = serve_board(cluster.host, self._board)
        watch_tasks(self._board.task_states, config.watchdog_seconds, stalled)
        for kind, count in ((PS, cluster.servers), (WORKER, cluster.workers)):
            for index in range(count):
                with tf.device(f"/job:{kind}/replica:0/task:{index}"):
                    tf.raw_ops.PyFunc(input=[tf.constant(self._server.address)], token=MEET_TOKEN, Tout=[tf.bool])
        keras.utils.set_random_seed(config.seed)
        place = World(rank=0, size=self._workers, local_size=1)
        self.loader = open_loader(config, place, manifests=manifests)
        self._build(open_evaluations(config, self.ring, manifests))
        self.tester = self.evaluator.on(open_evaluations(config, self.ring, manifests, for_test=True))
        steps = self.loader.steps_per_epoch
        start = resume(config, self.ring, self.parts, Memory(), self.loader.manifest, steps)
        self._start(start, steps)
        self._log = ServerLog(config, self.reports, self._workers, self.rate, self.position.step)

    def _build(self, evaluated: Mapping[str, EvaluationSource]) -> None:
        """Build the network twice: on the servers, and here for evaluation and the model's file."""
        config, manifest = self.config, self.loader.manifest
        for remark in schedule_warnings(config):
            log.warning(remark)
        built = build_model(manifest, config)
        self.evaluator = make_evaluator(config, manifest, built, evaluated)
        placement = VariablePlacement([server_device(index) for index in range(self._cluster.servers)])
        network, tables = on_servers(manifest, config, built.network, placement)
        self._updates = 1 if config.parameter_server.mode == "sync" else self._workers  # in a step
        schedule = build_schedule(config, self.loader.steps_per_epoch)
        self.rate = UpdateRate(schedule, self._updates, config.optimizer.scaling)
        shards = [shard for table in tables for shard in table.shards]
        optimizers = ServerOptimizers(config.optimizer, self.rate, network.trainable_variables, shards)
        self.parts = ServerParts(
            network=network,
            optimizer=optimizers,
            scale=LossScale(None),
            servers=self._cluster.servers,
            local=built.network,
            tables=tables,
        )
        self.server_bytes = placement.server_bytes
        self._loop = network_errors(manifest, config)(make_worker_loop)(
            network,
            self._sent_by(optimizers, [variable.value for variable in network.trainable_variables]),
            self.loader.epoch(0, transform=traced(built.augmented or built.preprocess)),
            self._server.address,
            optimizers.version,
            clip_norm=config.optimizer.clip_norm,
            loss_of=build_loss(config.loss, self.evaluator.target),
            weight_scale=self.loader.local_batch_size * self._workers / config.data.batch_size,
        )

    def _sent_by(self, optimizers: ServerOptimizers, variables: Sequence[Any]) -> Updates:
        match self.config.parameter_server.mode:
            case "sync":
                return SynchronousUpdates(optimizers, variables, self._needed())
            case "asp":
                return SignificantUpdates(optimizers, variables, self.rate, self._updates)
        return DirectUpdates(optimizers)

    def _needed(self) -> int:
        """Return the number of gradients of a synchronous step; a ConfigError if all workers would be backups."""
        backup = self.config.parameter_server.backup_workers
        if backup >= self._workers:
            raise ConfigError(
                f"parameter_server.backup_workers={backup} leaves none of {self._workers} workers; lower it, or start "
                "more workers"
            )
        return self._workers - backup

    def _plan(self, start: int, stop: int) -> Plan:
        options = self.config.parameter_server
        if options.mode == "sync":
            return RoundPlan(self._workers, self._needed(), start, stop)
        return PartPlan(self._workers, start, stop, options.staleness if options.mode == "ssp" else None)

    # -- loop ----------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        """Train to the next checkpoint or the end of the epoch; then all workers have done the same steps."""
        epoch, start = self.position.epoch, self.position.epoch_step
        every = self.config.checkpoint.every_steps if self.config.checkpoint.url else None
        steps = min(self.loader.steps_per_epoch - start, self._progress.total_steps - self.position.step)
        if every:
            steps = min(steps, every - self.position.step % every)
        plan = self._plan(start, start + steps)
        self._board.begin(epoch, plan, self.position.step * self._updates)
        is_stopping = self._follow(epoch, plan)
        self._saver.writer.check()
        for _ in range(plan.steps_done):
            self._progress.advance()
        self._log.report(self.position.step, epoch, plan.most_ahead)
        if is_stopping:
            self._stop()
        if self.position.epoch != epoch or self._progress.is_over:
            self._evaluate(epoch)
        self._save()

    def _follow(self, epoch: int, plan: Plan) -> bool:
        """Let the workers do a plan, and return whether it was cut short, since the run shall stop."""
        first, is_stopping = self.position.step, False
        for _ in range(self._workers):
            self._coordinator.schedule(self._loop)
        while not self._coordinator.done():
            reports = self._board.reports(_POLL_SECONDS)
            step = first + plan.steps_done
            self._log.add(reports, step)
            if self._log.is_due(step) and not plan.is_over:  # its last entry needs the last reports
                self._log.report(step, epoch, plan.most_ahead)
            self.reports.emit(StepDone(step, epoch))
            if self._stop_request() and not is_stopping:
                is_stopping = True
                self._board.cut()
        self._coordinator.join()
        if self._board.failure is not None:
            raise TrainingError(self._board.failure)
        self._log.add(self._board.reports(0.0), first + plan.steps_done)
        return is_stopping

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say what an error of TensorFlow's in the body comes from: a worker's error, or the death of a server."""
        try:
            yield
        except tf.errors.OpError as error:
            self._board.fail("a task of the cluster failed")
            failure = str(self._board.failure)
            if failure.startswith("worker"):
                raise TrainingError(failure) from error
            if type(error).__name__ in _LOST_SERVER:
                remedy = self.config.checkpoint.remedy
                raise TrainingError(f"a parameter server has died, and its variables with it: {remedy}") from error
            with network_errors(self.loader.manifest, self.config):
                raise

    # -- weights -------------------------------------------------------------------------------------------------

    @contextmanager
    def _evaluated_weights(self) -> Iterator[Any]:
        """Yield the network with the servers' weights, or raise a TrainingError if they are not finite."""
        with self.parts.exported() as network:
            check_weights(network, self.position.step)
            yield network

    def _check_weights(self) -> None:
        if not self._progress.is_evaluated:  # else the evaluation has checked them
            with self._evaluated_weights():
                pass

    def _figures(self) -> dict[str, Any]:
        with self._evaluated_weights() as network:
            parameters, digest = network.count_params(), assert_same_weights(self.ring, network.weights)
        return {
            "ranks": self._workers,
            "parameter_servers": self._cluster.servers,
            "server_bytes": self.server_bytes,
            "classes": list(self.evaluator.target.classes),
            "parameters": parameters,
            "skipped_steps": 0,
            "deaths": self._board.deaths,
            **self._log.totals(),
            "weights_digest": digest,
        }

    def dismiss(self) -> None:
        """Let all tasks end with status 0; then this process has to end, too, for it has lost its cluster."""
        self._server.dismiss()


def _connect(cluster: Cluster) -> Any:
    """Connect to all tasks, which takes until they are up, and return the coordinator."""
    logging.getLogger("tensorflow").setLevel(logging.CRITICAL)  # it logs a worker's death as pages of traces
    log.info("waiting for %d workers and %d parameter servers", cluster.workers, cluster.servers)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({kind: list(addresses) for kind, addresses in cluster.tasks.items()}),
        task_type=CHIEF,
        task_id=0,
        rpc_layer="grpc",
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)
