"""Decodes and augments the images of a NumPy batch without TensorFlow: the crops, flips and scale of `image_ops.py`, by
the same random numbers. Where compiled_images.py cannot decode or resize, Pillow does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ringfeed.pipeline.fetch.threads import Threads
from ringfeed.pipeline.select.sample_columns import SAMPLE_KEY
from ringfeed.sharding.errors import ConfigError, DatasetError

from .compiled_images import can_decode_jpeg, can_resize, decode_jpeg, jpeg_sides, resize
from .image_options import CentreCrop, ColourJitter, ImageTransformOptions, Normalisation, RandomCrop
from .philox_draws import split, uniform

BOXES = 100
"""Boxes drawn for a random crop; of default boxes in an image of 1:10, none fits in 9 % of cases."""
_JPEG = b"\xff\xd8\xff"
_JPEG_SCALES = (8, 4, 2)  # divisors of the sides that libjpeg can decode to
_DTYPES = {"uint8": np.uint8, "float16": np.float16, "float32": np.float32}

Array = npt.NDArray[Any]
Pixels = npt.NDArray[np.uint8]


def transform_batch(batch: Mapping[str, Any], options: ImageTransformOptions) -> dict[str, Any]:
    """The batch with images of one feature decoded, cropped, resized, flipped and scaled, by a thread for each core.

    JPEGs, and other files of the wanted number of channels, have the pixels of `Loader.epoch`. If images.c was not
    compiled, or Pillow has no libjpeg-turbo, values in [0, 255] differ by about 1, as Pillow rounds to whole numbers;
    beside the left and right edges of a JPEG's crop by more, as TensorFlow interpolates its colours there without their
    neighbours.

    Raises:
        ConfigError: the batch lacks the feature or the sample keys, or an option needs TensorFlow.
        DatasetError: an image cannot be decoded.
    """
    _check(batch, options)
    values = batch[options.feature]
    keys = np.asarray(batch[SAMPLE_KEY]) if options.random else np.zeros((len(values), 2), np.int64)
    keys = split(np.ascontiguousarray(keys, np.int64), 2)
    boxes = uniform(np.ascontiguousarray(keys[:, 0]), 4 * BOXES, np.float64).reshape(-1, 4, BOXES)
    flips = uniform(np.ascontiguousarray(keys[:, 1]), 6)[:, :2] < 0.5
    images = np.empty((len(values), *options.size, options.channels), _DTYPES[options.dtype])
    work = [partial(_fill, images, row, value, boxes[row], flips[row], options) for row, value in enumerate(values)]
    for row, error in enumerate(_in_threads(work)):
        if error is not None:
            raise DatasetError(
                f"the image in feature {options.feature!r} of sample {row} of a batch cannot be decoded: {error}; find "
                "it with: shard-dataset verify --deep"
            ) from error
    return {**batch, options.feature: images}


def _check(batch: Mapping[str, Any], options: ImageTransformOptions) -> None:
    if options.feature not in batch:
        raise ConfigError(f"the batch has no feature {options.feature!r}; it has: {', '.join(sorted(batch))}")
    if options.random and SAMPLE_KEY not in batch:
        raise ConfigError(f"random augmentation draws by {SAMPLE_KEY!r}: make the Loader with sample_keys=True")
    if options.jitter is not None and options.jitter != ColourJitter():
        raise ConfigError("jitter needs TensorFlow: use Loader.epoch, or leave it out")
    if options.dtype not in _DTYPES:
        raise ConfigError(f"dtype={options.dtype!r} needs TensorFlow; NumPy has {', '.join(_DTYPES)}")


def _in_threads(work: Sequence[partial[None]]) -> Iterator[Exception | None]:
    """Run functions in a thread for each core; yield what each raised, in order."""
    cores = min(len(os.sched_getaffinity(0)), len(work))
    results: list[Future[None]] = [Future() for _ in work]

    def run(first: int) -> None:
        for number in range(first, len(work), cores):
            try:
                work[number]()
            except Exception as error:
                results[number].set_exception(error)
            else:
                results[number].set_result(None)

    threads = Threads(cores, "images")
    try:
        for first in range(cores):
            threads.submit(partial(run, first))
        for result in results:
            error = result.exception()
            assert error is None or isinstance(error, Exception)
            yield error
    finally:
        threads.close()


def _fill(images: Array, row: int, value: Any, draws: Array, flips: Array, options: ImageTransformOptions) -> None:
    """Put one image into its row."""
    image = _resized(_crop(value, draws, options), options.size)
    if options.flip_left_right and flips[0]:
        image = image[:, ::-1]
    if options.flip_up_down and flips[1]:
        image = image[::-1]
    images[row] = _scaled(image, options)


def _crop(value: Any, draws: Array, options: ImageTransformOptions) -> Pixels:
    """The crop of one image, uint8 [height, width, channels]."""
    if options.shape is None:
        return _decoded(value, draws, options)
    pixels = np.asarray(value).reshape(*options.shape[:2], options.channels)
    top, left, height, width = _window(pixels.shape[:2], draws, options)
    return pixels[top : top + height, left : left + width]


def _decoded(value: bytes, draws: Array, options: ImageTransformOptions) -> Pixels:
    """The crop of an image file, of a JPEG at a part of its sides where that is allowed."""
    value = bytes(value)
    if value.startswith(_JPEG) and can_decode_jpeg() and (sides := jpeg_sides(value)) is not None:
        window, divisor = _divided(_window(sides, draws, options), options)
        return decode_jpeg(value, options.channels, divisor, window)
    mode = "L" if options.channels == 1 else "RGB"
    with Image.open(BytesIO(value)) as image:
        window = _window((image.height, image.width), draws, options)
        if image.format == "JPEG":
            window, divisor = _divided(window, options)
            image.draft(mode, (image.width // divisor, image.height // divisor))
        top, left, height, width = window.tolist()
        pixels = np.asarray(image.convert(mode).crop((left, top, left + width, top + height)))
        return pixels.reshape(height, width, options.channels)


def _divided(window: Array, options: ImageTransformOptions) -> tuple[Array, int]:
    """A JPEG's window, its edges rounded to pixels of the decoded image, and the divisor of that image's sides."""
    fitting = (scale for scale in _JPEG_SCALES if (window[2:] // scale >= options.size).all())
    divisor = next(fitting, 1) if options.jpeg_scaling else 1
    begin, end = ((edge + divisor // 2) // divisor for edge in (window[:2], window[:2] + window[2:]))
    return np.concatenate([begin, end - begin]), divisor


def _resized(pixels: Pixels, size: Sequence[int]) -> Array:
    """An image of the target size, float32 [height, width, channels]."""
    if pixels.shape[:2] == tuple(size):
        return pixels.astype(np.float32)
    if can_resize():
        return resize(pixels, size)
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    resized = np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return resized.reshape(*size, pixels.shape[2]).astype(np.float32)


def _window(sides: Sequence[int] | Array, draws: Array, options: ImageTransformOptions) -> Array:
    """The part of an image to take, as `image_ops.crop_window` chooses it: int64 [top, left, height, width]."""
    extent = np.array(sides, np.float64)
    if isinstance(options.crop, RandomCrop):
        return _random_window(extent, draws, options.crop)
    if not isinstance(options.crop, CentreCrop):
        return np.array([0, 0, *extent], np.int64)
    wanted = np.array(options.size, np.float64)
    size = np.clip(np.round(wanted * (extent / wanted).min() * options.crop.fraction), 1, extent)
    return np.concatenate([(extent - size) // 2, size]).astype(np.int64)


def _random_window(extent: Array, draws: Array, crop: RandomCrop) -> Array:
    """The first of some random boxes that fits into an image of this height and width, else the whole image."""
    areas = extent.prod() * (crop.area[0] + draws[0] * (crop.area[1] - crop.area[0]))
    ratios = crop.ratio[0] * (crop.ratio[1] / crop.ratio[0]) ** draws[1]
    sizes = np.maximum(np.round(np.sqrt(np.stack([areas / ratios, areas * ratios], axis=1))), 1)
    fits = (sizes <= extent).all(axis=1)
    first = int(fits.argmax())
    size = sizes[first] if fits[first] else extent
    begin = np.floor(draws[2:, first] * (extent - size + 1))
    return np.concatenate([begin, size]).astype(np.int64)


def _scaled(image: Array, options: ImageTransformOptions) -> Array:
    """A float32 image in [0, 255] in the scale of the options."""
    if options.dtype == "uint8":
        return np.round(image)
    if isinstance(options.scale, Normalisation):
        std = np.array([value or 1.0 for value in options.scale.std], np.float32)
        return (image - np.array(options.scale.mean, np.float32)) / std
    return image / np.float32(255) if options.scale == "unit" else image
