"""How a run evaluates: on a ring, or on the chief of parameter servers.

Tested in tests/training/metrics/test_evaluate.py and tests/training/test_train.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from ringfeed.pipeline import Loader
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.metrics.evaluate import evaluate
from ringfeed.training.metrics.scorers import make_scorer
from ringfeed.training.metrics.user_metrics import Metric, import_metrics
from ringfeed.training.models.losses import Loss, build_loss
from ringfeed.training.models.preprocess import BuiltModel
from ringfeed.training.models.target import Target, plan_target
from ringfeed.training.models.user_model import network_errors
from ringfeed.training.ring.ring import Ring
from ringfeed.training.step.train_step import make_predict_step

from .inputs import EvaluationSource, traced
from .state.best import check_defined


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluates a network as it is."""

    # What evaluations read, by the name of its dataset: loader and traced preprocessing
    loaders: Mapping[str, tuple[Loader, Any]]
    preprocess: Any  # `tf.function` from an element of a loader to ``(inputs, target, weight)``
    predict: Callable[[Any], Any]
    target: Target
    loss_of: Loss | None  # the user's loss; None: the task's
    functions: Mapping[str, Metric]  # the user's metrics

    def on(self, sources: Mapping[str, EvaluationSource]) -> Evaluator:
        """Return what evaluates the network in the same way on other records."""
        loaders = {name: (each.loader, each.preprocess(self.preprocess)) for name, each in sources.items()}
        return replace(self, loaders=loaders)

    def __call__(self, config: TrainConfig, ring: Ring, is_stopping: Callable[[], bool]) -> dict[str, Any]:
        """Evaluate, with the metrics of a configuration (a collective); not to the end where this rank is to stop."""

        def read(loader: Loader, preprocess: Any) -> Iterator[Any]:
            return takewhile(lambda _: not is_stopping(), loader.batches(0, transform=preprocess))

        batches = {name: read(*of_dataset) for name, of_dataset in self.loaders.items()}
        given = next(iter(batches.values())) if config.data.mixture is None else batches
        return evaluate(ring, self.predict, given, self.target, config.metrics, self.loss_of, self.functions)


def make_evaluator(
    config: TrainConfig, manifest: Manifest, built: BuiltModel, sources: Mapping[str, EvaluationSource]
) -> Evaluator:
    """Return how a network is evaluated on the datasets that `open_evaluations` opened.

    A ConfigError says that the dataset has no such target, or cannot have the metrics, or that a function is missing.
    """
    target = plan_target(manifest, config)
    make_scorer(target, config.metrics)
    check_defined(config, len(target.classes))
    empty = Evaluator(
        loaders={},
        preprocess=traced(built.preprocess),
        predict=network_errors(manifest, config)(make_predict_step(built.network)),
        target=target,
        loss_of=None if config.loss.name is None else build_loss(config.loss, target),
        functions=import_metrics(config.metrics),
    )
    return empty.on(sources)
