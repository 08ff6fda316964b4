"""The built-in network for tables: embeddings of categories beside numbers, and hidden layers."""

from __future__ import annotations

import keras

from ringfeed.pipeline.transforms.tabular_plan import TabularPlan
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.training.config.train_config import TrainConfig
from ringfeed.training.models.preprocess import BuiltModel, plan_tabular, tabular_preprocess
from ringfeed.training.models.target import plan_target
from ringfeed.training.optimizers.keras_doors import Tensor

from .layers import head


def embedding_width(categories: int, wanted: int | None) -> int:
    """Return the width of an embedding: as wanted, or `1.6 * categories ** 0.56`, at most 32 (fastai's rule).

    >>> embedding_width(10, None), embedding_width(1000, None), embedding_width(1000, 4)
    (6, 32, 4)
    """
    return wanted or min(32, round(1.6 * categories**0.56))


def tabular(manifest: Manifest, config: TrainConfig) -> BuiltModel:
    plan = plan_tabular(manifest, config.data)
    inputs = _tabular_inputs(plan)
    parts = [inputs["numeric"]] if "numeric" in inputs else []
    for index, column in enumerate(plan.categories):
        width = embedding_width(column.size, config.model.embedding_dim)
        embedding = keras.layers.Embedding(column.size, width, name=f"embedding_{index}")
        parts.append(embedding(inputs["categories"][:, index]))
    features = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    logits = head(features, config.model, plan_target(manifest, config).outputs)
    return BuiltModel(network=keras.Model(inputs, logits, name="tabular"), preprocess=tabular_preprocess(plan))


def _tabular_inputs(plan: TabularPlan) -> dict[str, Tensor]:
    inputs = {}
    if plan.numeric:
        inputs["numeric"] = keras.Input((plan.numeric_width,), dtype="float32", name="numeric")
    if plan.categories:
        inputs["categories"] = keras.Input((len(plan.categories),), dtype="int32", name="categories")
    return inputs
