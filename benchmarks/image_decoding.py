"""Decoding JPEGs that lie in memory, a random crop of each, resized to 224 x 224: images per second of processor time.

`ImageTransform` stands against Pillow, OpenCV (where it is installed) and tf.data with the same crops, and its
`on_numpy` against Pillow.

The rivals resize with antialiasing, as `ImageTransform` does, but for "tf.data, not antialiased".
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import images
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from ringfeed.pipeline import ImageTransform, RandomCrop
from ringfeed.pipeline.deliver.malloc import keep_freed_memory
from ringfeed.pipeline.transforms.apply import apply_transform
from ringfeed.pipeline.transforms.image_ops import crop_window

IMAGES, BATCH, SIDE = 512, 128, 224
_HEIGHT, _WIDTH, _ROOM = 600, 800, 60
_PHOTOS = 8
_OURS = ("ringfeed", "on_numpy")

Array = npt.NDArray[Any]
Decode = Callable[[bytes, Array], Array]


def run(folder: Path, rounds: int) -> list[tuple[str, list[float], float]]:
    """Ratios of images per second of processor time, after one round that is not counted."""
    del folder
    keep_freed_memory()  # as a loader does; all readers gain by it
    files = _jpegs()
    keys = np.stack([np.arange(IMAGES), 7 * np.arange(IMAGES)], axis=1).astype(np.int64)
    transform = ImageTransform(feature="image", size=(SIDE, SIDE), crop=RandomCrop(), jpeg=True, scale="bytes")
    windows = np.stack([crop_window(tf.constant([_HEIGHT, _WIDTH, 3]), _crop_key(key), transform) for key in keys])
    ours = _transformed({"image": files, "sample_key": keys}, transform)
    smooth, rough = (_plain(files, windows, antialias=antialias) for antialias in (True, False))
    readers: dict[str, Callable[[], Any]] = {
        "ringfeed": lambda: _consume(ours),
        "tf.data": lambda: _consume(smooth),
        "tf.data, not antialiased": lambda: _consume(rough),
        "Pillow": lambda: _threads(_pillow, files, windows),
        "on_numpy": lambda: _on_numpy({"image": files, "sample_key": keys}, transform),
    }
    if find_spec("cv2"):
        readers["OpenCV"] = lambda: _threads(_opencv, files, windows)
    ratios: dict[str, list[float]] = {name: [] for name in readers if name not in _OURS}
    without_tensorflow: list[float] = []
    for number in range(rounds + 1):
        rates = {name: _rate(read) for name, read in readers.items()}
        if number:
            for name, values in ratios.items():
                values.append(rates["ringfeed"] / rates[name])
            without_tensorflow.append(rates["on_numpy"] / rates["Pillow"])
            print("  images a CPU second: " + ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items()))
    what = f"{IMAGES} JPEGs of {_HEIGHT} x {_WIDTH}, random crop, {SIDE} x {SIDE}, per CPU second, against"
    goals = {"tf.data, not antialiased": 0.7}
    lines = [(f"{what} {name}", values, goals.get(name, 1.5)) for name, values in ratios.items()]
    return [*lines, ("on_numpy of the same, against Pillow", without_tensorflow, 1.5)]


def _jpegs() -> list[bytes]:
    random = np.random.default_rng(0)
    photos = [images.noise_photo(random, _HEIGHT + _ROOM, _WIDTH + _ROOM) for _ in range(_PHOTOS)]
    files = []
    for number in range(IMAGES):
        top, left = random.integers(0, _ROOM, 2)
        out = BytesIO()
        crop = Image.fromarray(photos[number % _PHOTOS][top : top + _HEIGHT, left : left + _WIDTH])
        crop.save(out, "JPEG", quality=int(random.integers(80, 92)))
        files.append(out.getvalue())
    return files


def _crop_key(key: Array) -> tf.Tensor:
    """The key that `ImageTransform` draws its crop by."""
    return tf.unstack(tf.random.split(key, 2, alg="philox"))[0]


def _transformed(element: dict[str, Any], transform: ImageTransform) -> tf.data.Dataset:
    return apply_transform(tf.data.Dataset.from_tensor_slices(element).batch(BATCH), transform, None)[0].prefetch(2)


def _plain(files: list[bytes], windows: Array, *, antialias: bool) -> tf.data.Dataset:
    def decode(file: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_and_crop_jpeg(file, window, channels=3)
        return tf.ensure_shape(tf.image.resize(image, (SIDE, SIDE), antialias=antialias), (SIDE, SIDE, 3))

    dataset = tf.data.Dataset.from_tensor_slices((files, windows))
    return dataset.map(decode, tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)


def _pillow(file: bytes, window: Array) -> Array:
    top, left, height, width = map(int, window)
    image = Image.open(BytesIO(file))
    scale = max(1, min(height // SIDE, width // SIDE))
    image.draft("RGB", (_WIDTH // scale, _HEIGHT // scale))  # decodes to a part of the sides where the crop allows it
    box = tuple(edge * image.width / _WIDTH for edge in (left, top, left + width, top + height))
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box), np.float32)


def _opencv(file: bytes, window: Array) -> Array:
    import cv2

    top, left, height, width = map(int, window)
    image = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)[top : top + height, left : left + width]
    small = cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_BGR2RGB), np.float32)


def _threads(decode: Decode, files: list[bytes], windows: Array) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for first in range(0, IMAGES, BATCH):
            np.stack(list(pool.map(decode, files[first : first + BATCH], windows[first : first + BATCH])))


def _on_numpy(element: dict[str, Any], transform: ImageTransform) -> None:
    for first in range(0, IMAGES, BATCH):
        transform.on_numpy({name: values[first : first + BATCH] for name, values in element.items()})


def _consume(dataset: tf.data.Dataset) -> None:
    for _ in dataset:
        pass


def _rate(read: Callable[[], Any]) -> float:
    began = time.process_time()
    read()
    return IMAGES / (time.process_time() - began)
