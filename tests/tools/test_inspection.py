"""What `shard-dataset inspect` says of images."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ringfeed.tools.shard_dataset import main


def test_images_are_told_by_their_sizes_and_pixels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("a", "b"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(np.full((10 + i, 20, 3), (10, 20, 30 + 2 * i), np.uint8)).save(
                tmp_path / "photos" / label / f"{i}.png"
            )
    build = ["build", str(tmp_path / "photos"), str(tmp_path / "out"), "--shards", "2", "--workers", "1", "--json"]
    assert main(build) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("image "))
    assert "10 to 13 high, 20 wide; RGB mean 10.0/20.0/33.2, std 0.0/0.0/2.2 (of 8 images)" in line
    assert main(["inspect", str(tmp_path / "out"), "--json"]) == 0
    features = json.loads(capsys.readouterr().out)["features"]
    found = {feature["name"]: feature["statistics"]["train"]["image"] for feature in features}
    assert (found["image"]["images"], found["image"]["sampled"], found["image"]["pixels"]) == (8, 8, 2 * 920)
    assert found["path"] is None
