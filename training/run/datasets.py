"""The datasets of a run, opened for their manifest: one, or those of a mixture as one.

Tested in tests/training/run/test_mixture.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringfeed.sharding.dataset.combined import combined_manifest
from ringfeed.sharding.dataset.dataset import open_dataset
from ringfeed.sharding.dataset.manifest import Manifest
from ringfeed.sharding.errors import DatasetError
from ringfeed.training.config.data import DataConfig

__all__ = ["one_manifest", "open_manifests"]


def open_manifests(data: DataConfig) -> dict[str, Manifest]:
    """Open the datasets of a run; return their manifests by name, as in `DataConfig.urls`.

    Raises:
        DatasetError: there is no such dataset; of a mixture, the message names it.
    """
    manifests = {}
    for name, url in data.urls.items():
        try:
            manifests[name] = open_dataset(url).manifest
        except DatasetError as error:
            raise DatasetError(f"data.mixture.{name}: {error}" if name else str(error)) from error
    return manifests


def one_manifest(data: DataConfig, manifests: Mapping[str, Manifest]) -> Manifest:
    """Return the only manifest, or one for all datasets of a mixture.

    Raises:
        ConfigError: the datasets of a mixture differ in features or label.
    """
    return next(iter(manifests.values())) if data.mixture is None else combined_manifest(manifests)
