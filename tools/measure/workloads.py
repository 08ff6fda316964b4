"""What `ringfeed profile`, `simulate` and `tune` share: arguments, and the workload that they name.

Tested in tests/tools/profile/test_measure.py and tests/tools/measure/test_training_trials.py.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ringfeed.pipeline import ImageTransform, Loader
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.sources.user_code import import_function
from ringfeed.tools.argument_types import at_least, checked_type, parse_bytes

from .training_trials import Workload

_COUNT = checked_type(at_least(1))


def parse_size(text: str) -> int:
    """Parse a size, or 0."""
    return 0 if text == "0" else parse_bytes(text)


_SHARED: dict[str, dict[str, Any]] = {
    "--split": {"default": "train", "help": "split to read (default: train)"},
    "--batch-size": {"type": _COUNT, "default": 1024, "metavar": "N", "help": "GLOBAL batch size (default: 1024)"},
    "--streams": {"type": _COUNT, "metavar": "N", "help": "streams that a batch is drawn from, of all ranks together; "
                  "a divisor of the batch (default: up to 16)"},
    "--window-shards": {"type": _COUNT, "default": 1, "metavar": "N",
                        "help": "shards that a stream shuffles together (default: 1)"},
    "--fetch-threads": {"type": _COUNT, "metavar": "N",
                        "help": "threads that fetch and open shards (default: 4; remote: 4 to 24)"},
    "--seed": {"type": int, "default": 0, "metavar": "N", "help": "seed of the order (default: 0)"},
    "--step": {"metavar": "MODULE:FUNCTION", "help": "the model's training step, called with a batch, or with what "
               "--transform returns"},
    "--transform": {"metavar": "MODULE:FUNCTION", "help": "function of a batch, for tf.data's map, between the loader "
                    "and --step"},
    "--config": {"metavar": "FILE.yaml", "help": "measure this run of ringfeed train, on one rank, instead of URL"},
    "--set": {"action": "append", "default": [], "metavar": "KEY=VALUE", "dest": "overrides",
              "help": "with --config: override a key of the configuration; may be repeated"},
    "--html": {"metavar": "FILE", "help": "also write tables and plots as one HTML page (needs ringfeed[report])"},
    "--json": {"action": "store_true", "help": "print one JSON document on standard output, and errors as JSON"},
}  # fmt: skip


def add_shared(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *flags: str) -> None:
    """Declare some of the shared arguments."""
    for flag in flags:
        parser.add_argument(flag, **_SHARED[flag])


def check_source(args: argparse.Namespace) -> None:
    """Refuse a command line that names neither a dataset nor a run, or overrides keys of none.

    Raises:
        ConfigError: it does.
    """
    if args.config is None and args.url is None:
        raise ConfigError("name a dataset by its URL, or a run by --config FILE.yaml")
    if args.config is None and args.overrides:
        raise ConfigError("--set overrides keys of a configuration; give --config, too")


def user_functions(args: argparse.Namespace) -> dict[str, Callable[[Any], Any]]:
    """The functions that `--step` and `--transform` name, if they are given."""
    return {
        name: import_function(f"--{name}", getattr(args, name), os.getcwd(), example="model:train_step")
        for name in ("step", "transform")
        if getattr(args, name)
    }


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
