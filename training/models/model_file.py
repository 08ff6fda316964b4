"""The file of a trained model: a `.keras` file that also holds the run's configuration and the dataset's manifest.

So the model can be rebuilt with its preprocessing, without the dataset. Keras ignores both members when it loads the
file.
Tested in tests/training/serving/test_export.py.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.sharding.messages import brief
from ringfeed.training.config.config_file import parse_config, to_tree
from ringfeed.training.config.train_config import TrainConfig

__all__ = ["ModelFile", "decode_model", "encode_model"]

_FORMAT = "ringfeed-model-1"
_RUN, _MANIFEST, _WEIGHTS = "ringfeed.json", "ringfeed-dataset.json", "model.weights.h5"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """What a model's file holds beside the network.

    Attributes:
        config: configuration of the run.
        manifest: manifest of the dataset that it was trained on.
        step: number of steps done.
        weights: a `.weights.h5` file.
    """

    config: TrainConfig
    manifest: Manifest
    step: int
    weights: bytes


def encode_model(network: Any, config: TrainConfig, manifest: Manifest, step: int) -> bytes:
    """Return the bytes of the file of a network as it is now."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        network.save(path)
        with zipfile.ZipFile(path, "a") as archive:
            run = {"format": _FORMAT, "step": step, "config": to_tree(config)}
            archive.writestr(_RUN, json.dumps(run, indent=1))
            archive.writestr(_MANIFEST, manifest.encode())
        return path.read_bytes()


def decode_model(data: bytes, url: str) -> ModelFile:
    """Read what `encode_model` wrote.

    Args:
        data: bytes of the file.
        url: where they are from, for errors.

    Raises:
        ConfigError: it is no `.keras` file, or another program wrote it.
        TrainingError: it is damaged, or a newer version wrote it.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{url} is not a .keras file, or is damaged") from error
    if _RUN not in names:
        raise ConfigError(
            f"{url} has no preprocessing in it, which ringfeed train writes into output.model: name such a file, or "
            "the folder of the run's checkpoints (checkpoint.url)"
        )
    try:
        run: Mapping[str, Any] = json.loads(archive.read(_RUN))
        manifest, weights = archive.read(_MANIFEST), archive.read(_WEIGHTS)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise TrainingError(f"{url} is damaged: {brief(error)}") from error
    if run["format"] != _FORMAT:
        raise TrainingError(f"{url} has the format {run['format']}, this ringfeed reads {_FORMAT}: upgrade ringfeed")
    config = parse_config(run["config"], url)
    return ModelFile(config=config, manifest=Manifest.decode(manifest, url), step=run["step"], weights=weights)
