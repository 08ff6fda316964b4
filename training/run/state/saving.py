"""Keeps the states of a run: commits in memory, checkpoints in its store, and at its end the model.

Tested in tests/training/test_train.py and tests/training/run/state/test_best.py.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ringfeed.pipeline import Loader, Mixture
from ringfeed.sharding.errors import TrainingError
from ringfeed.training.checkpoint.background import BackgroundWriter, Memory
from ringfeed.training.checkpoint.snapshot import Parts, Position, capture, gather_rank_state, restore
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.model_file import encode_model
from ringfeed.training.models.preprocess import mask_entry
from ringfeed.training.ring.ring import Ring
from ringfeed.training.run.inputs import join_quarantine

from .best import best_evaluations
from .resume import open_store

log = logging.getLogger(__name__)


class Saver:
    """Keeps the states of one run on one rank: commits in a memory, if any, and checkpoints.

    Only rank 0 writes to the store, by the `writer`.
    """

    def __init__(self, config: TrainConfig, ring: Ring, parts: Parts, memory: Memory | None, run: str) -> None:
        self._config, self._ring, self._parts, self._memory, self._run = config, ring, parts, memory, run
        self._store = open_store(config) if ring.rank == 0 else None
        self._acquired: Future[None] | None = None
        self.writer = BackgroundWriter()

    def keeps(self, *, to_store: bool) -> bool:
        """Return whether there is anything to commit to, the same on all ranks."""
        return self._memory is not None or (to_store and self._config.checkpoint.url is not None)

    @contextmanager
    def hold(self, *, is_over: bool) -> Iterator[None]:
        """Let no other run write to the store in the body, after a check that this one can.

        A run that `is_over` has nothing to write, but perhaps something to remove. A rank that goes on from a commit
        trains meanwhile: the rank that held the store may be on a host that is lost, which only half a minute without
        its heartbeat shows.
        """
        if self._store is None or (is_over and not self._store.has_leftovers()):
            yield
            return
        given_up = threading.Event()
        with ExitStack() as held, ThreadPoolExecutor(1, "ringfeed-hold") as pool:
            self._acquired = pool.submit(held.enter_context, self._store.hold(self._run, given_up))
            if self._memory is None or self._memory.newest is None:
                self.settle()
            try:
                yield
            finally:
                given_up.set()
                wait([self._acquired])
                self.writer.join()
                self._acquired = None

    def settle(self) -> None:
        """Wait until the store is held; a RingfeedError says that another run holds it."""
        if self._acquired is not None:
            self._acquired.result()

    def check_folder(self, step: int) -> None:
        """Warn of hosts that do not see the local folder that rank 0 writes to (a collective).

        A run that starts on such a host would find no checkpoint there, and begin anew. Rank 0 has entered `hold`, and
        the run starts at `step`.

        Raises:
            TrainingError: such a host has a newer checkpoint.
        """
        if self._ring.size == 1 or not (store := self._store or open_store(self._config)) or not store.is_local:
            return
        is_seen = self._is_held if self._ring.rank == 0 else store.is_held_by(self._run)
        found = self._ring.allgather_object([socket.gethostname(), is_seen, store.newest_step()])
        blind = {host: newest for host, is_seen, newest in found[1:] if not is_seen}
        if not found[0][1] or not blind:  # without a lease there is nothing to see
            return
        url, here, ahead = self._config.checkpoint.url, found[0][0], max(blind, key=lambda host: blind[host])
        remedy = "let checkpoint.url be a folder that all hosts share, or on S3 or HDFS"
        if blind[ahead] > step:
            raise TrainingError(
                f"{url} is another folder on {ahead}, with a checkpoint of step {blind[ahead]}, than on {here}, where "
                f"rank 0 would start at step {step}: copy it there, or name {ahead} first; and {remedy}"
            )
        if self._ring.rank == 0:
            log.warning(
                "only %s sees %s, not %s: a run that starts elsewhere finds no checkpoint, and begins anew; %s",
                here, url, ", ".join(blind), remedy,
            )  # fmt: skip

    @property
    def _is_held(self) -> bool:
        if self._acquired is None or not self._acquired.done():
            return False
        self.settle()
        return True

    def commit(
        self, position: Position, loader: Loader | Mixture, history: Mapping[str, Any], *, to_store: bool
    ) -> None:
        """Commit to memory and, if asked, to the store, as far as there are any (a collective).

        The history holds the reports so far, in JSON's types.
        """
        options, rank = self._config.checkpoint, self._ring.rank
        of_ranks = gather_rank_state(self._ring, self._parts)
        bad_shards = join_quarantine(self._config, self._ring, loader)
        if rank and self._memory is None:
            return
        dataset = loader.manifest.identity
        commit = capture(self._parts, position, self._config, dataset, history, of_ranks, rank, bad_shards)
        masks = mask_entry(loader.manifest, self._config.data)
        commit = replace(commit, run=self._run, state={**commit.state, **masks})
        if self._memory is not None:
            self._memory.keep(commit)
        if self._store is None or not to_store or not self._is_held:
            return
        best = best_evaluations(history["evaluations"], options.metric, options.best)
        save = partial(self._store.save, best_steps={entry["step"] for entry in best})
        if options.background:
            self.writer.save(save, commit)
        else:
            save(commit)

    def use_output_weights(self, last_step: int, evaluations: Sequence[Mapping[str, Any]]) -> int:
        """Give all ranks the weights of `output.weights`, at the end of the run (a collective); return their step.

        A RingfeedError says that the best checkpoint is gone or damaged.
        """
        best = best_evaluations(evaluations, self._config.checkpoint.metric)
        if self._config.output.weights != "best" or not best:
            return last_step
        step: int = best[0]["step"]
        if self._store is not None:
            restore(self._parts, self._store.of_step(step, self._run).arrays)
        self._ring.broadcast(list(self._parts.variables().values()))
        return step

    def encode_model(self, step: int, loader: Loader | Mixture) -> bytes:
        """Return the bytes of the model's file, with the present weights, those of a step."""
        with self._parts.exported() as network:
            return encode_model(network, self._config, loader.manifest, step)
