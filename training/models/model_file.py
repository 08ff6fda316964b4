"""The file of a trained model: a `.keras` file that also holds the run's configuration and the dataset's manifest.

So the model can be rebuilt with its preprocessing, without the dataset. Keras ignores both members when it loads the
file.
Tested in tests/training/serving/test_export.py.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from ringfeed.sharding.common.validation import fit, integer
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import ConfigError, TrainingError
from ringfeed.sharding.storage.untrusted_files import guarded, load_json
from ringfeed.training.config.config_file import parse_config, to_tree
from ringfeed.training.config.train_config import TrainConfig

from .keras_files import open_archive, read_member
from .preprocess import check_masks, mask_entry

_FORMAT = "ringfeed-model-1"
_MASKED = "ringfeed-model-2"  # takes masks of missing values
_RUN, _MANIFEST, _WEIGHTS = "ringfeed.json", "ringfeed-dataset.json", "model.weights.h5"
_MOST_TEXT, _MOST_MANIFEST = 1 << 20, 64 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class _Run:
    format: str
    step: int
    config: Mapping[str, Any]
    masks: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """What a model's file holds beside the network."""

    config: TrainConfig
    manifest: Manifest
    step: int
    weights: bytes  # a `.weights.h5` file


def encode_model(network: Any, config: TrainConfig, manifest: Manifest, step: int) -> bytes:
    """Return the bytes of the file of a network as it is now."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        network.save(path)
        with zipfile.ZipFile(path, "a") as archive:
            masks = mask_entry(manifest, config.data)
            run = {"format": _MASKED if masks else _FORMAT, "step": step, "config": to_tree(config), **masks}
            archive.writestr(_RUN, json.dumps(run, indent=1))
            archive.writestr(_MANIFEST, manifest.encode())
        return path.read_bytes()


def decode_model(data: bytes | BinaryIO, url: str) -> ModelFile:
    """Read what `encode_model` wrote, from the bytes of a file or from the file at a URL.

    A ConfigError says that another program wrote it; a TrainingError that it is damaged, or that a newer version wrote
    it.
    """
    with guarded(url, "a trained model", error=TrainingError):
        with open_archive(data, url) as archive:
            if _RUN not in archive.namelist():
                raise ConfigError(
                    f"{url} has no preprocessing in it, which ringfeed train writes into output.model: name such a "
                    "file, or the folder of the run's checkpoints (checkpoint.url)"
                )
            run: _Run = fit(_RUN, load_json(read_member(archive, _RUN, _MOST_TEXT)), _Run)
            if run.format not in (_FORMAT, _MASKED):
                raise TrainingError(
                    f"{url} has the format {run.format!r}, this ringfeed reads {_MASKED}: upgrade ringfeed"
                )
            config = parse_config(run.config, url)
            manifest = Manifest.decode(read_member(archive, _MANIFEST, _MOST_MANIFEST), url)
            weights = read_member(archive, _WEIGHTS)
        check_masks({"masks": list(run.masks)}, manifest, config.data, url)
        return ModelFile(config=config, manifest=manifest, step=integer("step", run.step, 0), weights=weights)
