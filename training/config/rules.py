"""The settings of a run that do not go together, each pair with its reason.

Ranges and words of a single key are declared with it; keys of another method than the chosen one are refused by
`Methods.made`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ringfeed.sharding.errors import ConfigError

from .method import key_default
from .registry import METHODS

_TERM = re.compile(r"([\w.-]+?)(?:(!?=)(.*))?")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two settings that do not go together.

    A setting is a text such as ``compression.method=dgc|onebit``, ``precision!=float16``, ``ema.decay`` (any value but
    its default) or ``--elastic`` (a flag of the command line), or several of them with ``and`` between. A key that the
    chosen method does not have, is not set.
    """

    # The settings; with commas between, each of `first` goes with `second` no more than the others
    first: str
    second: str
    reason: str
    remedy: str | None = None  # overrides, with values of the config `{0}`; None: the default of the first key


_PACKED = "model.name=text and model.packing=true"
_ROUNDS = "sync.method=local_sgd|post_local_sgd|diloco|fedavg|gossip"
_OWN_METHOD = "sync.method!=every_step|local_sgd|post_local_sgd|diloco|fedavg|gossip"
_ELASTIC = "--elastic, --host-discovery-script"  # flags of `ringfeed launch` and horovodrun
_SERVERS, _TENSORFLOW = "backend=parameter_server", "backend=mirrored|multi_worker"
_MOMENTUM_FIRST = " applies momentum before the average, so any other rule would see momenta"
_CLIPS = "it would clip what momentum has accumulated"

PAIRS: tuple[Pair, ...] = (
    # data and task
    Pair("data.cache_bytes", "data.cache=none", "nothing is kept"),
    Pair("data.weights", "data.mixture=null", "they are the weights of its datasets"),
    Pair("data.url", "data.mixture", "the mixture names the datasets"),
    Pair("data.bucket_by", "data.mixture", "its batches hold records of all lengths"),
    Pair("data.target", "task=multiclass",
         "it predicts the label (a number needs task=regression, 0 or 1 task=binary, a list task=multilabel)",
         "task=binary, multilabel or regression, or data.target=null"),
    Pair("data.target=null", "task=multilabel|regression", "it predicts a column", "data.target=COLUMN"),
    Pair("data.positive", "task!=binary", "it names the positive class of two"),
    Pair("data.positive", "data.target", "it is a class of the label"),
    Pair("loss.label_smoothing, loss.focal_gamma, loss.class_weights", "task=regression", "it has no classes"),
    Pair("loss.huber_delta", "task!=regression", "it bounds the error of a number"),
    Pair("loss.options", "loss.name=null", "they are the arguments of a loss of your own"),
    Pair("loss.label_smoothing, loss.focal_gamma, loss.class_weights, loss.huber_delta", "loss.name",
         "that is a loss of your own"),
    # model and augmentation
    Pair("model.norm!=batch", "model.name=resnet18|resnet50", "it is built with batch normalisation"),
    Pair("model.crosses, model.shared", "model.name!=wide_deep", "wide_deep alone has columns of ids"),
    Pair("augment.random", "model.takes_images=false", "images alone are augmented",
         "model.name=convnet, lenet, resnet18, resnet50 or keras.applications:NAME"),
    Pair("augment.mixes", "task!=multiclass", "mixup and CutMix mix classes", "augment.mixup=0 and augment.cutmix=0"),
    Pair("sync.shares=speed, sync.clients", "augment.mixes", "groups that are mixed divide equal batches"),
    Pair("optimizer.accumulate", _PACKED, "a row holds several records"),
    Pair("backend=mirrored", _PACKED, "it divides batches by row", "model.packing=false"),
    # optimizer and schedule
    Pair("optimizer.eps", "optimizer.variant=tf-models-popular", "it has none"),
    Pair("schedule.options", "schedule.name=null", "they are the arguments of a schedule of your own"),
    Pair("schedule.decay, schedule.warmup, schedule.warmup_epochs, schedule.warmup_steps, schedule.init_factor, "
         "schedule.end_factor, schedule.power, schedule.boundaries, schedule.boundary_steps, schedule.factor",
         "schedule.name", "that is a schedule of your own"),
    Pair("schedule.warmup_steps", "schedule.warmup_epochs", "both are the length of the warm-up"),
    Pair("schedule.total_steps", "schedule.total_epochs", "both are the length of the schedule"),
    Pair("schedule.decay=one-cycle", "schedule.has_warmup=false", "a cycle begins with it",
         "schedule.warmup_epochs=0.3"),
    Pair("schedule.warmup=constant", "schedule.decay=one-cycle", "a cycle rises"),
    Pair("schedule.warmup=constant", "schedule.init_factor=0.0", "nothing is learned", "schedule.init_factor=0.1"),
    Pair("schedule.decay=step", "schedule.has_boundaries=false", "it falls at them", "schedule.boundaries=[30, 60]"),
    Pair("schedule.boundary_steps", "schedule.boundaries", "both are the boundaries"),
    # checkpoints and comparisons
    Pair("max_time", "checkpoint.url=null", "the run could not go on", "checkpoint.url=FOLDER"),
    Pair("checkpoint.best", "checkpoint.url=null", "there are no checkpoints", "checkpoint.url=FOLDER"),
    Pair("output.weights=best", "checkpoint.best=0", "no best checkpoint is kept", "checkpoint.best=1"),
    Pair("early_stopping.metric, checkpoint.best", "data.eval_split=null", "it compares evaluations"),
    # ranks
    Pair("sync.hierarchical", "compression.method!=none", "only dense tensors are reduced in two levels"),
    Pair("sync.hierarchical", "sync.method=gossip", "it exchanges pairs", "sync.method=local_sgd"),
    Pair("sync.hierarchical", "sync.batch_norm", "the gradient of the forward pass has one level"),
    Pair("sync.shares=speed", "deterministic=true", "measured times differ between runs, and with the shares the order "
         "of additions", "deterministic=false"),
    Pair("sync.shares=speed", _ROUNDS, "a mean of weights counts ranks, not samples"),
    Pair("sync.batch_norm", _ROUNDS, "ranks with different weights have no common statistics"),
    Pair("sync.batch_norm", "jit_compile", "the forward pass would exchange statistics within XLA's code"),
    Pair("sync.batch_norm", "model.remat", "the forward pass would exchange statistics twice"),
    Pair("compression.method!=none", _ROUNDS, "a round exchanges weights, not gradients"),
    Pair("compression.method!=none", _OWN_METHOD, "a method of your own decides what ranks exchange"),
    Pair(_OWN_METHOD, _SERVERS + "|mirrored|multi_worker", "the ranks of a ring use it", "backend=horovod"),
    Pair(_ROUNDS, "precision=float16", "the loss scales of the ranks could part", "precision=bfloat16"),
    Pair("sync.clients", "overfit_batches", "the ranks' batches differ", "overfit_batches=null"),
    Pair("sync.clients", "data.mixture", "it has no parts"),
    # compression
    Pair("compression.method=dgc", "optimizer.name!=sgd", "dgc" + _MOMENTUM_FIRST,
         "optimizer.name=sgd, or compression.method=powersgd"),
    Pair("compression.method=onebit", "optimizer.name!=sgd|adam|adamw", "onebit" + _MOMENTUM_FIRST,
         "optimizer.name=sgd or adam or adamw, or compression.method=powersgd"),
    Pair("compression.method=dgc", "optimizer.clip_norm", _CLIPS,
         "compression.local_clip_norm={0.optimizer.clip_norm} and optimizer.clip_norm=null"),
    Pair("compression.method=onebit", "optimizer.clip_norm", _CLIPS, "compression.method=powersgd"),
    Pair("compression.start_step=0", "compression.method=onebit and optimizer.name!=sgd", "the second moment, which "
         "freezes then, needs dense steps"),
    Pair("compression.method=fp16", "precision=float16", "small gradients, which the loss scale saves, would be lost "
         "on the wire", "compression.method=bf16"),
    # backends
    Pair("mirrored.devices", "backend!=mirrored", "it counts the GPUs of one process"),
    Pair("parameter_server.is_set", "backend!=parameter_server", "they are options of its servers",
         "backend=parameter_server, or leave out parameter_server"),
    Pair("parameter_server.backup_workers", "parameter_server.mode!=sync", "no step waits for all workers"),
    Pair("parameter_server.mode=asp", "optimizer.name!=sgd", "what is held back is measured by the update of SGD",
         "optimizer.name=sgd"),
    Pair("parameter_server.shard_bytes", "parameter_server.mode=sync|asp", "its workers exchange whole tables",
         "parameter_server.mode=async or ssp, or parameter_server.shard_bytes=null"),
    Pair("parameter_server.shard_bytes", "optimizer.name!=sgd|adam|adamw", "it updates whole tables",
         "optimizer.name=sgd, adam or adamw, or parameter_server.shard_bytes=null"),
    Pair("precision=float16", _SERVERS, "workers do not agree on a loss scale", "precision=bfloat16"),
    Pair("data.mixture", _SERVERS, "workers take the next batches of one dataset",
         "data.url=DATASET and data.mixture=null"),
    Pair("compression.method!=none", _SERVERS, "workers send their gradients as they are"),
    Pair(_ROUNDS + ", checkpoint.commit_steps", _SERVERS, "workers hold no weights of their own"),
    Pair("sync.shares", _SERVERS, "fast workers take over what slow ones have left"),
    Pair("sync.batch_norm", _SERVERS, "workers share no batch"),
    Pair("sync.hierarchical", _SERVERS, "workers reduce nothing among themselves"),
    Pair("optimizer.accumulate", _SERVERS, "each batch of a worker is an update"),
    Pair("ema.decay", _SERVERS, "its updates have no common order"),
    Pair("data.on_bad_shard", _SERVERS, "checkpoints do not hold what workers have found"),
    Pair("overfit_batches", _SERVERS, "each worker takes the next batches"),
    Pair("callbacks", _SERVERS, "no process has the network and its steps"),
    Pair("track.profile", _SERVERS, "the chief, which it would trace, takes no steps"),
    Pair("output.records, output.prometheus_port", "backend=parameter_server|mirrored", "the ranks of a ring write it"),
    Pair("jit_compile, model.remat", "backend=parameter_server|mirrored", "only the step of a ring has it"),
    Pair("compression.method!=none, sync.batch_norm", _TENSORFLOW, "TensorFlow reduces gradients as they are"),
    Pair(_ROUNDS, _TENSORFLOW, "TensorFlow reduces the gradients of every step"),
    Pair("sync.shares", _TENSORFLOW, "all have the same number of samples"),
    Pair("sync.hierarchical", _TENSORFLOW, "TensorFlow chooses the way"),
    Pair("checkpoint.commit_steps", _TENSORFLOW, "no rank that dies is replaced"),
    Pair("track.timeline", "backend=parameter_server|mirrored|multi_worker", "Horovod writes it"),
    # the command line
    Pair("--elastic", "backend!=horovod", "no other backend replaces ranks"),
    Pair("--elastic", "checkpoint.url=null", "it goes on from checkpoints", "checkpoint.url=FOLDER"),
    Pair("--elastic", "checkpoint.every_steps=null", "it goes on from checkpoints", "checkpoint.every_steps=100"),
    Pair("--elastic", "checkpoint.resume=false", "it goes on from checkpoints"),
    Pair(_ELASTIC, "sync.clients", "each rank has a part of its own, so none can come or go"),
    Pair(_ELASTIC, "sync.hierarchical", "Horovod waits for ever where it removes the process sets of a rank that died",
         "sync.hierarchical=false"),
    Pair("--elastic", "max_time", "it keeps a run going, and max_time ends it"),
    Pair("--elastic", "--lr-find", "100 steps have no checkpoint to go on from"),
    Pair("--ray", "backend!=horovod", "Ray starts the ranks of a ring"),
    Pair("--dry-run", _SERVERS, "it plans a ring", "backend=horovod"),
)  # fmt: skip
"""All pairs. They are checked in this order; the error names the first that a run has."""


def check_pairs(config: Any, flags: Mapping[str, bool] | None = None) -> None:
    """Raise a ConfigError for two settings that do not go together, with the reason and a remedy.

    `flags` come from the command line, such as `--elastic`, or from horovodrun; pairs of others are not checked.
    """
    for pair in PAIRS:
        second = _shown(pair.second, config, flags or {})
        for setting in pair.first.split(", ") if second else ():
            if first := _shown(setting, config, flags or {}):
                remedy = pair.remedy.format(config) if pair.remedy else _default(setting, config)
                use = remedy if remedy.startswith("leave") else f"use {remedy}"
                raise ConfigError(f"{first} does not go with {second}: {pair.reason}; {use}")


def setting_value(config: Any, name: str) -> Any:
    """Return the value of a dotted key or property, None where the chosen method has no such key."""
    value = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def _shown(setting: str, config: Any, flags: Mapping[str, bool]) -> str | None:
    """A setting as a run has it, None if the run does not have it."""
    found = []
    for term in setting.split(" and "):
        match = _TERM.fullmatch(term)
        assert match, term
        name, sign, words = match.groups()
        if name.startswith("--"):
            holds, text = flags.get(name, False), name
        else:
            value = setting_value(config, name)
            holds = (
                _is_set(config, name, value) if sign is None else (_word(value) in words.split("|")) == (sign == "=")
            )
            holds, text = holds and (value is not None or words == "null"), f"{name}={_word(value)}"
        if not holds:
            return None
        found.append(_WORDS[text].format(config) if text in _WORDS else text)
    return " and ".join(found)


_WORDS = {
    "augment.random=true": "augment", "augment.mixes=true": "augment.mixup or cutmix",
    "parameter_server.is_set=true": "parameter_server", "model.takes_images=false": "model.name={0.model.name}",
    "schedule.has_warmup=false": "no warm-up", "schedule.has_boundaries=false": "schedule.boundaries=[]",
}  # fmt: skip
"""What a property of a group is in a user's words, of a configuration `{0}`."""


def _is_set(config: Any, name: str, value: Any) -> bool:
    spec = _field(config, name)
    return bool(value) if spec is None else value != key_default(spec)


def _field(config: Any, name: str) -> Any:
    """The field of a key, None for a property."""
    group, _, leaf = name.rpartition(".")
    if group in METHODS:
        return METHODS[group].keys.get(leaf)
    holder = getattr(config, group) if group else config
    return next((spec for spec in fields(holder) if spec.name == leaf), None)


def _default(setting: str, config: Any) -> str:
    name = re.split("!?=", setting)[0]
    if name.startswith("--"):
        return f"leave out {name}"
    return f"{name}={_word(key_default(_field(config, name)))}"


def _word(value: Any) -> str:
    """A value as a configuration writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping) and any(map(is_dataclass, value.values())):
        return f"{{{', '.join(value)}}}"  # without the URLs of a mixture
    if isinstance(value, tuple):
        return str([list(one) if isinstance(one, tuple) else one for one in value])
    return "null" if value is None else str(value)
