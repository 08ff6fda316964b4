"""Small images in class folders, and what they were."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

CLASSES = ("cat", "dog", "owl")
IMAGES = 36  # in the datasets of the tests of transforms


def pixels_of(number: int) -> npt.NDArray[np.uint8]:
    """A smooth picture, so that JPEG keeps it nearly, of a size of its own."""
    height, width = 24 + number % 5 * 4, 40 - number % 4 * 4
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(0.1 * (number % 7 + 1) * a + number) for a in (x / 2, y / 2, (x + y) / 3)]
    return np.stack(waves, axis=-1).astype(np.uint8)


def write_pictures(folder: Path, count: int, suffixes: tuple[str, ...]) -> Path:
    """`count` files, of the formats in turn."""
    for number in range(count):
        suffix = suffixes[number % len(suffixes)]
        path = folder / CLASSES[number % 3] / f"{number:03d}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels_of(number), suffix))
    return folder


def encode(pixels: npt.NDArray[np.uint8], suffix: str, **options: Any) -> bytes:
    """As a file."""
    out = BytesIO()
    Image.fromarray(pixels).save(out, {"jpg": "JPEG", "png": "PNG"}[suffix], **options)
    return out.getvalue()


def noise_image(seed: int, form: str = "PNG", width: int = 9) -> bytes:
    """An image file of random pixels, 7 high."""
    pixels = np.random.default_rng(seed).integers(0, 256, (7, width, 3), np.uint8)
    out = BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()
