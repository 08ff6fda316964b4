"""A folder of JPEGs to TFRecord: `shard-dataset build` with one worker against the time that the bytes alone take.

The limit reads every file once and writes their bytes once, to as many files, by two threads as the build has; the
same folder, the same disk, the same fsync of each file. It lists, parses, shuffles and checks nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from ringfeed.sharding import BuildOptions, build

SHARDS, CLASSES = 16, 10
IMAGES = 20_000
_PHOTOS = 24  # made of noise of several scales; the files are crops of them, at qualities of their own
_THREADS = 2


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of the limit's seconds to ours; page cache warm, after one round that is not counted."""
    source, images = folder / "photos", IMAGES
    files = write_photos(source, images)
    file_bytes = sum(path.stat().st_size for path in files)
    print(f"  {images:,} generated JPEGs, {file_bytes / 1e6:,.0f} MB, {file_bytes / images / 1e3:.0f} kB each")
    ratios = []
    for number in range(rounds + 1):
        limit = _seconds(lambda target: _copy(files, target), folder / "limit")
        ours = _seconds(lambda target: _ours(source, target), folder / "images")
        if number:
            ratios.append(limit / ours)
            print(f"  seconds: reading and writing the bytes {limit:.2f}, shard-dataset build {ours:.2f}")
    return [(f"{images:,} JPEGs to {SHARDS} TFRecord shards, against reading and writing the bytes", ratios, 0.7)]


def write_photos(folder: Path, images: int) -> list[Path]:
    """Images of 20 to 60 kB in class folders; no photograph is at hand, so they are generated."""
    random = np.random.default_rng(0)
    photos = [noise_photo(random, 420, 560) for _ in range(_PHOTOS)]
    files = []
    for number in range(images):
        top, left = (int(random.integers(0, room)) for room in (46, 61))
        crop = Image.fromarray(photos[number % _PHOTOS][top : top + 375, left : left + 500])
        out = BytesIO()
        crop.save(out, "JPEG", quality=int(random.integers(70, 93)))
        files.append(folder / f"class-{number % CLASSES}" / f"{number:06d}.jpg")
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        files[-1].write_bytes(out.getvalue())
    return files


def noise_photo(random: np.random.Generator, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Noise of several scales, in place of a photograph: uint8 [height, width, 3]."""
    pixels = np.zeros((height, width, 3), np.float32)
    for octave in range(2, 8):
        coarse = random.normal(size=(2**octave, 2**octave, 3)).astype(np.float32)
        layers = [Image.fromarray(coarse[..., c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(3)]
        pixels += np.stack([np.asarray(layer) for layer in layers], axis=-1) / octave
    pixels = 255 * (pixels - pixels.min()) / np.ptp(pixels) + random.normal(scale=3, size=pixels.shape)
    return pixels.clip(0, 255).astype(np.uint8)


def _seconds(write: Callable[[Path], None], target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    start = time.perf_counter()
    write(target)
    return time.perf_counter() - start


def _ours(source: Path, target: Path) -> None:
    build(BuildOptions(source=str(source), destination=str(target), shards=SHARDS, workers=1))


def _copy(files: list[Path], target: Path) -> None:
    target.mkdir()
    size = -(-len(files) // SHARDS)

    def write(shard: int) -> None:
        with open(target / str(shard), "wb") as out:
            for path in files[shard * size : (shard + 1) * size]:
                with open(path, "rb", buffering=0) as file:
                    out.write(file.read())
            out.flush()
            os.fsync(out.fileno())

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(write, range(SHARDS)))
