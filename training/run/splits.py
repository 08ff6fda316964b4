"""Which splits a run reads for what, where the configuration leaves that to the datasets.

A run trains on one split, and evaluates on another while it trains. Choices follow from these evaluations: the best
checkpoint, early stopping, and the settings of the next run. So a third split, which nothing chooses by, is kept for
the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError
from ringfeed.training.config.data import AUTO, TEST
from ringfeed.training.config.train_config import TrainConfig

_VALIDATION = ("validation", "val", "valid", "dev")


def with_splits(config: TrainConfig, manifests: Mapping[str, Manifest]) -> TrainConfig:
    """Return a configuration that names the split to evaluate on, and one to test on if that is another.

    A ConfigError says that evaluations decide something, and there is only the split ``test`` to evaluate on.
    """
    data, splits = config.data, {split for manifest in manifests.values() for split in manifest.splits}
    evaluated, tested = data.eval_split, data.test_split
    if evaluated == AUTO:
        evaluated = next((name for name in _VALIDATION if name in splits), TEST)
        if evaluated == TEST and TEST in splits:
            _check_decides_nothing(config)
    if tested == evaluated or (tested == TEST and TEST not in splits):
        tested = None
    return replace(config, data=replace(data, eval_split=evaluated, test_split=tested))


def _check_decides_nothing(config: TrainConfig) -> None:
    stopping, checkpoint = config.early_stopping.metric, config.checkpoint.best
    if stopping is None and not checkpoint:
        return
    key = f"early_stopping.metric={stopping}" if stopping else f"checkpoint.best={checkpoint}"
    raise ConfigError(
        f"{key} chooses by evaluations, and the dataset has only the split 'test' for them, which then is no test any "
        "more: build it with --split train=0.8,val=0.1,test=0.1, or, to choose by it nonetheless, set "
        "data.eval_split=test"
    )
