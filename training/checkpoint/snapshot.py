"""Snapshots: capture a run's state in a checkpoint, and restore it on any number of ranks.

Tensors: the network's weights and the states of its random generators, the optimizer's variables, the loss scale, the
state of the synchronizer, averages of weights; what each rank has of its own is stacked, [ranks, ...]. Weights are
those that all ranks agree on; where ranks differ within a round, their own are stacked beside them.
JSON: the loader's position (seed, epoch, step), the configuration, the dataset's identity, and the history.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from ringfeed.pipeline.order.epoch_order import ORDER_VERSION, PASSES_VERSION
from ringfeed.sharding.common.validation import fit, integer, texts
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.training.config.config_file import changed_keys, stretched_schedule, to_tree
from ringfeed.training.config.keys import all_keys
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.optimizers.keras_doors import copies
from ringfeed.training.optimizers.precision import LossScale
from ringfeed.training.ring.ring import Ring, SoloRing
from ringfeed.training.sync.agreement import Agreement
from ringfeed.training.sync.moving import MovingAverage
from ringfeed.training.sync.synchronizer import EveryStep, Synchronizer

from .store import Checkpoint

_OTHER_MODEL = "undo the change of the model, or set another checkpoint.url"
_RANK, _APART, _BASE = "rank", "apart", "base"
"""Kinds of variables: a rank's own, those that `Agreement` holds apart, and what their changes count from."""
_RANK_STRIDE = 0x9E3779B1
"""2**32 / golden ratio; it is odd, so that all ranks below 2**31 get different seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    step: int = 0  # number of steps done since the run began
    epoch: int = 0  # the current epoch, or the next one if an epoch has just ended
    epoch_step: int = 0  # number of steps done in `epoch`

    def advanced(self, steps_per_epoch: int) -> Position:
        """Return the position one step later.

        >>> Position(step=9, epoch=1, epoch_step=4).advanced(5)
        Position(step=10, epoch=2, epoch_step=0)
        """
        ended_epochs, epoch_step = divmod(self.epoch_step + 1, steps_per_epoch)
        return Position(step=self.step + 1, epoch=self.epoch + ended_epochs, epoch_step=epoch_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a run that training changes."""

    network: Any
    optimizer: Any
    scale: LossScale
    synchronizer: Synchronizer = field(default_factory=lambda: EveryStep(SoloRing()))
    average: MovingAverage | None = None
    agreement: Agreement | None = None  # what ranks hold apart, and agree on; None: nothing
    servers: int = 0  # number of parameter servers, each with an optimizer of its own; 0: none

    @property
    def weights(self) -> list[Any]:
        """The network's weights, as checkpoints hold them."""
        return list(self.network.weights)

    def variables(self) -> dict[str, Any]:
        """Return all variables by name: kind, place, path; kind and place are the same in every process.

        The variables that each rank has of its own are not among them.
        """
        groups = {
            "model": self.weights,
            "random": seed_variables(self.network),
            "optimizer": list(self.optimizer.variables),
            "loss_scale": self.scale.variables,
            "synchronizer": list(self.synchronizer.shared_variables),
            "average": self.average.variables if self.average else [],
            _BASE: self.agreement.base if self.agreement else [],
        }
        return {
            f"{kind}/{index:04d}/{getattr(variable, 'path', variable.name)}": variable
            for kind, variables in groups.items()
            for index, variable in enumerate(variables)
        }

    def of_rank(self) -> dict[str, list[Any]]:
        """Return the variables that each rank has of its own, by kind."""
        apart = self.agreement.variables if self.agreement else []
        return {_RANK: list(self.synchronizer.rank_variables), _APART: apart}

    def averaged(self) -> AbstractContextManager[None]:
        """Give the network its averaged weights in the body, if the run averages them."""
        return self.average.applied() if self.average else nullcontext()

    @contextmanager
    def exported(self) -> Iterator[Any]:
        """Yield the network with the weights that a model's file holds: averaged, if the run averages them."""
        with self.averaged():
            yield self.network


def seed_variables(network: Any) -> list[Any]:
    """Return the states of the network's random generators (dropout): integer [2], a key and a counter."""
    weights = {id(variable) for variable in network.weights}
    return [v for v in network.variables if id(v) not in weights and v.shape == (2,) and "int" in str(v.dtype)]


def set_rank_seeds(network: Any, rank: int) -> None:
    """Derive this rank's random generators from rank 0's, which all ranks hold after a broadcast.

    Otherwise all ranks would drop the same units. Rank 0 keeps its own, which a checkpoint holds.
    """
    for variable in seed_variables(network):
        key, counter = np.asarray(tf.convert_to_tensor(variable)).astype(np.int64)
        for replica, copy in enumerate(copies(variable)):
            number = rank + replica
            own = (int(key) + number * _RANK_STRIDE) % 2**31 if number else int(key)
            copy.assign(np.array([own, counter]))


def gather_rank_state(ring: Ring, parts: Parts) -> dict[str, Any]:
    """Return what each rank has of its own, as arrays [ranks, ...] by name (a collective)."""
    found = {}
    for kind, variables in parts.of_rank().items():
        if kind == _APART and parts.agreement:
            rows = parts.agreement.rows()
        else:
            rows = [np.asarray(tf.convert_to_tensor(variable))[None] for variable in variables]
        for index, (variable, own) in enumerate(zip(variables, rows, strict=True)):
            found[f"{kind}/{index:04d}/{variable.name}"] = ring.allgather(own)
    return found


def rank_state(arrays: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return a checkpoint's arrays that `gather_rank_state` made, by kind."""
    return {kind: [array for name, array in arrays.items() if _kind(name) == kind] for kind in (_RANK, _APART)}


def restore_rank_state(ring: Ring, parts: Parts, stacked: Mapping[str, Sequence[Any]]) -> None:
    """Give each rank what it had of its own (a collective); if the number of ranks is another one, by `resize`.

    A checkpoint that has nothing apart is of an earlier version, or of one process: then all ranks start with the
    weights that they agreed on. `stacked` is what `rank_state` returned on rank 0, elsewhere anything.
    """
    own = {kind: [list(array.shape) for array in arrays] for kind, arrays in stacked.items()}
    shapes = ring.allgather_object(own)[0]
    for kind, variables in parts.of_rank().items():
        if len(shapes.get(kind, ())) != len(variables):
            continue
        received = []
        for index, variable in enumerate(variables):
            dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
            empty = np.zeros([0, *shapes[kind][index][1:]], dtype)
            received.append(ring.allgather(np.asarray(stacked[kind][index], dtype) if ring.rank == 0 else empty))
        _assign_rows(ring, parts.synchronizer if kind == _RANK else EveryStep(ring), variables, received)


def _assign_rows(ring: Ring, method: Synchronizer, variables: Sequence[Any], received: Sequence[Any]) -> None:
    """Assign the rows of this rank's replicas; if there were other ranks, what a method makes of theirs."""
    own = [copies(variable) for variable in variables]
    if not own:
        return
    if len(received[0]) == ring.size * len(own[0]):
        first = ring.rank * len(own[0])
        values = [list(array[first : first + len(own_copies)]) for array, own_copies in zip(received, own, strict=True)]
    else:
        resized = method.resize(received, ring.rank, ring.size)
        values = [[value] * len(own_copies) for value, own_copies in zip(resized, own, strict=True)]
    for own_copies, rows in zip(own, values, strict=True):
        for copy, value in zip(own_copies, rows, strict=True):
            copy.assign(value)


def capture(
    parts: Parts,
    position: Position,
    config: TrainConfig,
    dataset: str,
    history: Mapping[str, Any],
    of_ranks: Mapping[str, Any] = MappingProxyType({}),
    rank: int = 0,
    quarantined: Sequence[str] = (),
) -> Checkpoint:
    """Return the checkpoint of a run, the same on all ranks, with the history and what `gather_rank_state` returned.

    `dataset` is the identity of the dataset, see `Manifest`; `quarantined` are paths of its shards that were damaged.
    """
    arrays = {name: np.asarray(tf.convert_to_tensor(v)) for name, v in parts.variables().items()} | dict(of_ranks)
    if rank:
        for name in [name for name in arrays if name.startswith("random/")]:  # undoes `set_rank_seeds`
            key, counter = arrays[name].astype(np.int64)
            arrays[name] = np.array([(int(key) - rank * _RANK_STRIDE) % 2**31, counter]).astype(arrays[name].dtype)
    place = {"epoch": position.epoch, "step": position.epoch_step}
    loader: dict[str, Any] = {"seed": config.seed, **place, "order": _order_version(config)}
    if quarantined:
        loader["quarantined"] = list(quarantined)
    state: dict[str, Any] = {
        "position": asdict(position),
        "loader": loader,
        "config": to_tree(config),
        "dataset": dataset,
        "history": dict(history),
    }
    if parts.servers:
        state["servers"] = parts.servers
    return Checkpoint(step=position.step, arrays=arrays, state=state)


@dataclass(frozen=True, kw_only=True)
class _History:
    steps: tuple[Mapping[str, Any], ...]
    evaluations: tuple[Mapping[str, Any], ...]
    skipped_steps: int = 0
    trackers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _State:
    position: Position
    loader: Mapping[str, Any]
    config: Mapping[str, Any]
    dataset: str
    history: _History


def check_state(checkpoint: Checkpoint) -> None:
    """Raise a ConfigError unless a checkpoint holds what `capture` puts in one; `restore` checks the arrays."""
    known = {spec.name for spec in fields(_State)}
    state: _State = fit("state", {name: value for name, value in checkpoint.state.items() if name in known}, _State)
    texts("state.loader.quarantined", state.loader.get("quarantined", ()), "paths")
    integer("state.position.epoch", state.position.epoch, 0)
    integer("state.position.epoch_step", state.position.epoch_step, 0)
    if state.position.step != checkpoint.step:
        raise ConfigError(f"state.position.step must be {checkpoint.step}, got {state.position.step}")
    for group in {name.rpartition(".")[0] for name, _ in all_keys()} - {""}:
        fit(f"state.config.{group}", state.config.get(group, {}), Mapping[str, Any])
    for entry in state.history.evaluations:
        integer("state.history.evaluations.step", entry.get("step"))  # type: ignore[arg-type]  # is checked here


def check_resumable(state: Mapping[str, Any], config: TrainConfig, dataset: Collection[str]) -> None:
    """Raise a TrainingError for the state of another run's checkpoint.

    A run is another one if a key that affects the weights, the length of a schedule, the order of samples, or the
    dataset differs. `dataset` are the identities of the run's dataset, see `Manifest`.
    """
    changed = changed_keys(config, state["config"])
    if state["dataset"] not in dataset:
        changed.append("the dataset's shards")
    if state["loader"].get("order", 1) != _order_version(config):
        changed.append("order of samples (that of another version of ringfeed)")
    if changed:
        raise TrainingError(
            f"the checkpoints in {config.checkpoint.url} are of a run with different {', '.join(changed)}: "
            "undo the change, or set another checkpoint.url"
        )
    if stretched := stretched_schedule(config, state["config"]):
        raise TrainingError(f"cannot resume from {config.checkpoint.url}: {stretched}, or set another checkpoint.url")


def _order_version(config: TrainConfig) -> int:
    return ORDER_VERSION if config.data.mixture is None else PASSES_VERSION


def check_servers(state: Mapping[str, Any], parts: Parts, url: str) -> None:
    """Raise a TrainingError for a checkpoint of another number of parameter servers, and so of optimizers."""
    servers = state.get("servers", parts.servers)
    if servers != parts.servers:
        raise TrainingError(
            f"the checkpoints in {url} are of a run with {servers} parameter server{'s' * (servers != 1)}, each with "
            f"an optimizer of its own, and this one has {parts.servers}: start it with --ps {servers}, or set another "
            "checkpoint.url"
        )


def restore(parts: Parts, arrays: Mapping[str, Any]) -> None:
    """Assign a checkpoint's arrays to the run's variables, except what single ranks hold.

    Variables are matched by kind and place, since Keras numbers its layers anew in each process. A TrainingError says
    where number, shapes or dtypes differ.
    """
    mine = list(parts.variables().items())
    found, expected = len(rank_state(arrays)[_RANK]), len(parts.synchronizer.rank_variables)
    if found != expected:
        raise TrainingError(f"the checkpoint holds {found} variables of each rank, this run has {expected}")
    arrays = {name: array for name, array in arrays.items() if _kind(name) not in (_RANK, _APART)}
    bases = [sum(_kind(name) == _BASE for name in names) for names in (parts.variables(), arrays)]
    has_base = bases[0] == bases[1]
    if not has_base:  # written by an earlier version, or by one process
        mine = [item for item in mine if _kind(item[0]) != _BASE]
        arrays = {name: array for name, array in arrays.items() if _kind(name) != _BASE}
    if [_slot(name) for name, _ in mine] != [_slot(name) for name in arrays]:
        raise TrainingError(
            f"the checkpoint holds {len(arrays)} variables, this model and optimizer have {len(mine)}: {_OTHER_MODEL}"
        )
    for (name, variable), array in zip(mine, arrays.values(), strict=True):
        if tuple(variable.shape) != array.shape or tf.as_dtype(variable.dtype) != tf.as_dtype(array.dtype):
            raise TrainingError(
                f"the checkpoint's {name} is {array.dtype} of shape {array.shape}, the model's is "
                f"{tf.as_dtype(variable.dtype).name} of shape {tuple(variable.shape)}: {_OTHER_MODEL}"
            )
    for (_, variable), array in zip(mine, arrays.values(), strict=True):
        variable.assign(array)
    if parts.agreement and not has_base:
        parts.agreement.begin()


def _kind(name: str) -> str:
    return name.partition("/")[0]


def _slot(name: str) -> Sequence[str]:
    return name.split("/", 2)[:2]
