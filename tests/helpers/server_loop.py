"""A program for tests: the loop of one worker, in one process with the variables, by each mode; and the usual trainer.

It is a process of its own, since a worker declares its functions before anything else does. Prints, as JSON, the
weights after one epoch by each mode, what was reported, and the error that the chief makes of it; with a learning rate
that is far too high, too, and with the remedy of the error that follows.
"""

import json
import sys
import threading
from dataclasses import asdict, replace
from typing import Any

import keras
import tensorflow as tf

from ringfeed.sharding.errors import TrainingError
from ringfeed.training.config.config_file import load_config
from ringfeed.training.models.build import build_model
from ringfeed.training.models.losses import cross_entropy
from ringfeed.training.optimizers.build import build_schedule
from ringfeed.training.reports.reports import Reports
from ringfeed.training.ring.ring import SoloRing
from ringfeed.training.run.inputs import traced
from ringfeed.training.run.trainer import Trainer
from ringfeed.training.servers.board.board import Board, Done, serve_board
from ringfeed.training.servers.board.part_plan import PartPlan
from ringfeed.training.servers.board.round_plan import RoundPlan
from ringfeed.training.servers.cluster import Cluster
from ringfeed.training.servers.placement import ServerOptimizers, VariablePlacement
from ringfeed.training.servers.row_shards import WholeTable, split_tables, whole_weights
from ringfeed.training.servers.server_log import ServerLog, UpdateRate
from ringfeed.training.servers.significance import Significance
from ringfeed.training.servers.task import declare, part_loader
from ringfeed.training.servers.updates import DirectUpdates, SignificantUpdates, SynchronousUpdates
from ringfeed.training.servers.worker_loop import make_worker_loop

DEVICE = "/device:CPU:0"
STEEP = {"steep": None, "clipped": 1e-30}
"""Norms to clip at where the learning rate is far too high."""


def flat(weights: Any) -> list[float]:
    return [float(value) for weight in weights for value in tf.reshape(tf.convert_to_tensor(weight), [-1])]


def error_of(log: ServerLog, reports: list[Done]) -> str:
    try:
        log.add(reports, 0)
    except TrainingError as error:
        return str(error)
    return ""


def drop_a_gradient(board: Board, loop: Any) -> list[float]:
    """Let the gradient of this process's worker, 0, come after that of another; return what share it has sent."""
    plan = RoundPlan(2, 1, 0, 1)
    plan.take(1)
    plan.vote(1)
    board.begin(0, plan, 0)
    late = threading.Thread(target=loop)
    late.start()
    shares = [report.sent_share for report in board.reports(60.0)]
    plan.add(1)
    board.handle(1, {"done": asdict(Done(loss=0.0, gradient_norm=0.0, staleness=0, wait_seconds=0.0))})
    late.join()
    return shares


def main(path: str) -> dict[str, Any]:
    """Train an epoch by each mode."""
    usual = load_config(path)
    cluster = Cluster(tasks={"chief": ("a:1",), "ps": ("a:2",), "worker": ("a:3",)}, kind="worker", index=0)
    functions = declare(usual, cluster, ends_with_chief=False)
    board = Board()
    server = serve_board("127.0.0.1", board)
    loader = part_loader(usual, 0, 1)
    steps, results = loader.steps_per_epoch, {}
    for mode in ("async", "split", "ssp", "asp", "hold", *STEEP, "sync"):
        config = usual
        if mode in STEEP:
            config = replace(usual, optimizer=replace(usual.optimizer, learning_rate=1e30, clip_norm=STEEP[mode]))
        rate = UpdateRate(build_schedule(config, steps), 1, "linear")
        keras.utils.set_random_seed(config.seed)
        tables: list[WholeTable] = []
        with VariablePlacement([DEVICE]).scope():
            built = build_model(loader.manifest, config)
        network = built.network
        if mode == "split":
            network, tables = split_tables(network, VariablePlacement([DEVICE, DEVICE]), least_bytes=1)
            assert tables
        shards = [shard for table in tables for shard in table.shards]
        trained = [variable.value for variable in network.trainable_variables]
        optimizers = ServerOptimizers(config.optimizer, rate, network.trainable_variables, shards)
        updates: Any = DirectUpdates(optimizers)
        if mode in ("asp", "hold"):
            updates = SignificantUpdates(optimizers, trained, rate, 1)
        elif mode == "sync":
            updates = SynchronousUpdates(optimizers, trained, 1)
        batches = loader.epoch(0, transform=traced(built.preprocess))
        loop = make_worker_loop(
            network, updates, batches, server.address, optimizers.version, clip_norm=config.optimizer.clip_norm,
            loss_of=cross_entropy, weight_scale=1.0,
        )  # fmt: skip
        functions.significance = Significance(0.3 if mode == "hold" else 0.0)
        plan = RoundPlan(1, 1, 0, steps) if mode == "sync" else PartPlan(1, 0, steps, 0 if mode == "ssp" else None)
        board.begin(0, plan, 0)
        loop()
        reports = board.reports(1.0)
        shares = [report.sent_share for report in reports]
        weights = flat(whole_weights(network, tables))
        results[mode] = {"weights": weights, "updates": len(reports), "least_share": min(shares)}
        results[mode]["error"] = error_of(ServerLog(config, Reports([]), 1, rate, 0), reports)
        results[mode]["staleness"] = [report.staleness for report in reports]
    results["late"] = {"shares": drop_a_gradient(board, loop), "version": int(optimizers.version.numpy())}
    trainer = Trainer(replace(usual, backend="horovod"), SoloRing())
    trainer.run()
    return {**results, "trainer": {"weights": flat(trainer.parts.weights), "steps": steps}}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1])) + "\n")
