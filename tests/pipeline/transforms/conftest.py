"""Datasets of pictures for the tests of image transforms."""

from pathlib import Path

import pytest

from ringfeed.sharding import BuildOptions, build
from tests.helpers.pictures import IMAGES, write_pictures


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Datasets of the same pictures: all JPEG, all PNG, and both in turn."""
    made = {}
    for name, suffixes in {"jpg": ("jpg",), "png": ("png",), "both": ("jpg", "png")}.items():
        folder: Path = tmp_path_factory.mktemp(name)
        made[name] = str(folder / "shards")
        source = str(write_pictures(folder / "photos", IMAGES, suffixes))
        build(BuildOptions(source=source, destination=made[name], shards=3, splits={"train": 1}, min_class_records=1))
    return made
