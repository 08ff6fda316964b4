"""The workloads to profile: a user's functions by name, or a run of `ringfeed train` by its configuration.

Tested in tests/tools/profile/test_measure.py and tests/tools/measure/test_training_trials.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ringfeed.pipeline import ImageTransform, Loader
from ringfeed.sharding.errors import ConfigError

from .training_trials import Workload

__all__ = ["configured_workload", "function_workload"]


def function_workload(loader: Loader, step: Callable[[Any], Any], transform: Callable[[Any], Any] | None) -> Workload:
    """The workload of a user's own step and transform."""
    return Workload(
        loader=loader, transform=transform, step=step, transform_name=_name(transform), step_name=_name(step),
        decodes=isinstance(transform, ImageTransform) and transform.shape is None,
    )  # fmt: skip


def configured_workload(config: str, overrides: Sequence[str]) -> Workload:
    """The workload of a run of `ringfeed train`, on one rank, which neither resumes nor writes anything.

    Raises:
        RingfeedError: the configuration, its dataset or its model is wrong.
    """
    from ringfeed.training.config.config_file import load_config
    from ringfeed.training.config.outputs import CheckpointConfig, OutputConfig
    from ringfeed.training.config.track import TrackConfig
    from ringfeed.training.ring.ring import SoloRing
    from ringfeed.training.run.trainer import Trainer

    options = replace(
        load_config(config, overrides), checkpoint=CheckpointConfig(), output=OutputConfig(), track=TrackConfig()
    )
    if options.data.mixture is not None:
        url = shlex.quote(next(iter(options.data.urls.values())))
        raise ConfigError(
            f"data.mixture: datasets are measured one at a time: name each in place of --config, such as {url}"
        )
    trainer = Trainer(options, SoloRing())
    assert isinstance(trainer.loader, Loader)
    return Workload(
        loader=trainer.loader,
        transform=trainer.traced_preprocess,
        step=lambda element: trainer.train_step(*element),
        transform_name="the preprocessing",
        step_name=f"the step of {options.model.name}",
        decodes=options.model.takes_images,
    )


def _name(function: Callable[[Any], Any] | None) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__name__", type(function).__name__)
    return name if module in ("", "__main__") else f"{module}:{name}"
