"""Decodes and augments images in TensorFlow operations, the images of a batch in parallel.

Tested in tests/pipeline/transforms/test_images.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from PIL import Image

from ringfeed.pipeline.deliver.operations import resize_operation
from ringfeed.pipeline.select.sample_columns import SAMPLE_KEY
from ringfeed.sharding.errors import ConfigError
from ringfeed.sharding.formats.images.file_types import BMP_GREYS

from .apply import is_mapping, require_feature, unconverted
from .image_options import CentreCrop, ColourJitter, ImageTransformOptions, Normalisation, RandomCrop
from .numpy_images import BOXES

_ONLY_COLOURS = (b"GIF8", b"RIFF", b"BM")  # first bytes of GIF, WebP and BMP, which TensorFlow cannot decode to grey
_RECODE = "write the images in another format, with: shard-dataset reshard SRC DST --encode png"
_NO_PALETTES = f"a BMP with a colour palette, which TensorFlow does not read; {_RECODE}"
_NO_BITMAPS = f"a BMP of 16 bits, of unusual masks or of OS/2, whose colours TensorFlow mistakes; {_RECODE}"
_NO_FRAMES = f"a GIF whose first frame does not fill it, which TensorFlow does not place; {_RECODE}"
# As in Pillow, whose pixels the stored statistics describe. TensorFlow's default is coarser and slightly darker.
_DCT = "INTEGER_ACCURATE"
_JPEG_SCALES = (1, 2, 4, 8)  # divisors of the sides that libjpeg can decode to
_PHILOX = "philox"  # named, so that every device draws by the same algorithm


@unconverted
def transform_images(element: Mapping[str, Any], options: ImageTransformOptions) -> dict[str, Any]:
    """The element with the images of one feature decoded, cropped, resized, augmented and scaled.

    Raises:
        ConfigError: the element lacks the feature, or the sample keys.
    """
    require_feature(element, options.feature)
    if options.random and SAMPLE_KEY not in element:
        raise ConfigError(f"random augmentation draws by {SAMPLE_KEY!r}: make the Loader with sample_keys=True")
    values = element[options.feature]
    if values.dtype != tf.string and options.shape is None:
        raise ConfigError(
            f"feature {options.feature!r} is {values.dtype.name}, and images are decoded from bytes; name the feature "
            "that holds image files, with one ImageTransform for each"
        )
    if options.shape is not None and (
        values.dtype != tf.uint8 or not values.shape[1:].is_compatible_with(options.shape)
    ):
        raise ConfigError(
            f"feature {options.feature!r} holds {values.dtype.name} {values.shape[1:]}, not uint8 tensors of "
            f"shape={options.shape}; use ImageTransform.for_dataset, which knows the shape"
        )
    keys = element[SAMPLE_KEY] if options.random else tf.zeros([tf.shape(values)[0], 2], tf.int64)
    images = tf.map_fn(
        lambda one: _one_image(one[0], one[1], options),
        (values, keys),
        fn_output_signature=tf.TensorSpec([*options.size, options.channels], _batched_dtype(options)),
    )
    images.set_shape([values.shape[0], *options.size, options.channels])
    return {**element, options.feature: _scaled(images, options)}


def _batched_dtype(options: ImageTransformOptions) -> tf.DType:
    """The dtype of images until the batch is complete."""
    return tf.uint8 if options.dtype == "uint8" else tf.float32


def _one_image(value: Any, key: Any, options: ImageTransformOptions) -> Any:
    """One image of the target size, with values in [0, 255]."""
    crop_key, draws = _draws(key)
    image = _resized(_crop(value, crop_key, options), options.size)
    if options.flip_left_right:
        image = tf.where(draws[0] < 0.5, image[:, ::-1], image)
    if options.flip_up_down:
        image = tf.where(draws[1] < 0.5, image[::-1], image)
    if options.jitter is not None and options.jitter != ColourJitter():
        image = 255.0 * jitter_colours(image / 255.0, draws[2:], options.jitter)
    return tf.cast(tf.round(image), tf.uint8) if _batched_dtype(options) == tf.uint8 else image


def _draws(key: Any) -> tuple[Any, Any]:
    """The key of the crop, and six numbers in [0, 1) for flips and jitter."""
    crop_key, rest = tf.unstack(tf.random.split(key, 2, alg=_PHILOX))
    return crop_key, tf.random.stateless_uniform([6], rest, alg=_PHILOX)


def _crop(value: Any, key: Any, options: ImageTransformOptions) -> Any:
    """The crop of one image, uint8 [height, width, channels]."""
    if options.shape is not None:
        return _crop_pixels(tf.reshape(value, [*options.shape[:2], options.channels]), key, options)
    if options.jpeg:
        return _crop_jpeg(value, key, options)
    return tf.cond(
        _is_jpeg(value),
        lambda: _crop_jpeg(value, key, options),
        lambda: _crop_pixels(_decode_other(value, options.channels), key, options),
    )


def _is_jpeg(value: Any) -> Any:
    return tf.equal(tf.strings.substr(value, 0, 3), b"\xff\xd8\xff")


def decode(value: Any, channels: int) -> Any:
    """One whole image file of any format that TensorFlow knows: uint8 [height, width, channels]."""
    return tf.cond(_is_jpeg(value), lambda: _decode_jpeg(value, channels), lambda: _decode_other(value, channels))


def _decode_other(value: Any, channels: int) -> Any:
    """Decode an image file other than JPEG."""
    head = _Head(value)
    if is_mapping.get():
        return tf.cond(
            head.is_palette_bitmap | head.is_odd_bitmap,
            lambda: _decoded_by_pillow(value, channels),
            lambda: _decoded(value, head, channels),
        )
    checks = [(head.is_palette_bitmap, _NO_PALETTES), (head.is_odd_bitmap, _NO_BITMAPS)]
    with tf.control_dependencies([tf.debugging.Assert(~fault, [text]) for fault, text in checks]):
        return _decoded(tf.identity(value), head, channels)


def _decoded(value: Any, head: _Head, channels: int) -> Any:
    """Decode an image file by TensorFlow, unless it is a GIF whose first frame is small."""
    if channels != 1:
        return _colours(value, head)
    grey = functools.partial(tf.io.decode_image, value, channels=1, expand_animations=False)
    return tf.cond(head.only_colours, lambda: tf.image.rgb_to_grayscale(_colours(value, head)), grey)


def _colours(value: Any, head: _Head) -> Any:
    """Decode an image file to three channels."""

    def four() -> Any:
        image = tf.io.decode_image(value, channels=4, expand_animations=False)
        return tf.gather(image, tf.where(head.is_masked_bitmap, head.mask_channels, [0, 1, 2]), axis=2)

    def three() -> Any:
        image = tf.io.decode_image(value, channels=3, expand_animations=False)
        whole = ~head.is_gif | tf.reduce_all(tf.shape(image)[:2] == head.gif_size)
        if is_mapping.get():
            return tf.cond(whole, lambda: image, lambda: _decoded_by_pillow(value, 3))
        with tf.control_dependencies([tf.debugging.Assert(whole, [_NO_FRAMES])]):
            return tf.identity(image)

    return tf.cond(head.is_masked_bitmap | head.is_transparent_webp, four, three)


def _decoded_by_pillow(value: Any, channels: int) -> Any:
    """Decode an image file by Pillow, which graphs that leave this process cannot do."""

    def decoded(data: Any) -> npt.NDArray[np.uint8]:
        with Image.open(BytesIO(data.numpy())) as image:
            return np.asarray(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])).reshape(
                *image.size[::-1], channels
            )

    return tf.ensure_shape(tf.py_function(decoded, [value], tf.uint8), [None, None, channels])


class _Head:
    """How TensorFlow decodes an image file, by its first bytes.

    Attributes:
        only_colours: it cannot decode the file to grey, or would apply a PNG's gamma.
        is_transparent_webp: it decodes the file to four channels, and no fewer.
        is_palette_bitmap: it takes the file's palette indices for grey values.
        is_masked_bitmap: each of the file's colours is one byte, in any order, which it takes for B, G, R, A.
        mask_channels: the channels that it then decodes red, green and blue to, int32 [3].
        is_odd_bitmap: it mistakes the file's colours otherwise.
        is_gif: the file is a GIF; only its first frame is decoded.
        gif_size: height and width of a GIF, int32 [2].
    """

    def __init__(self, value: Any) -> None:
        start = tf.strings.substr(tf.strings.join([tf.strings.substr(value, 0, 32), bytes(32)]), 0, 32)
        numbers = tf.cast(tf.io.decode_raw(start, tf.uint8), tf.int32)
        coloured_png = (tf.strings.substr(start, 1, 3) == b"PNG") & (tf.bitwise.bitwise_and(numbers[25], 2) != 0)
        kinds = [tf.strings.substr(start, 0, len(kind)) == kind for kind in _ONLY_COLOURS]
        self.only_colours = tf.reduce_any([*kinds, coloured_png])
        self.is_gif = tf.strings.substr(start, 0, 4) == b"GIF8"
        self.gif_size = tf.stack([numbers[8] + 256 * numbers[9], numbers[6] + 256 * numbers[7]])

        chunk = tf.strings.substr(start, 12, 4)
        extended = (chunk == b"VP8X") & (tf.bitwise.bitwise_and(numbers[20], 0x10) != 0)
        lossless = (chunk == b"VP8L") & (tf.bitwise.bitwise_and(numbers[24], 0x10) != 0)
        self.is_transparent_webp = (tf.strings.substr(start, 0, 4) == b"RIFF") & (extended | lossless)

        bits, colours = numbers[28] + 256 * numbers[29], 14 + numbers[14] + 256 * numbers[15]
        palette = tf.strings.substr(value, tf.minimum(colours, tf.strings.length(value)), len(BMP_GREYS))
        is_bitmap, is_old = tf.strings.substr(start, 0, 2) == b"BM", numbers[14] == 12
        method, masks = numbers[30], tf.strings.substr(tf.strings.join([value, bytes(66)]), 54, 12)
        mask_bytes = tf.reshape(tf.cast(tf.io.decode_raw(masks, tf.uint8), tf.int32), [3, 4])
        is_one_byte = tf.reduce_all(tf.reduce_sum(mask_bytes, 1) == 255) & tf.reduce_all(
            tf.reduce_max(mask_bytes, 1) == 255
        )
        self.is_masked_bitmap = is_bitmap & ~is_old & (method == 3) & (bits == 32) & is_one_byte
        self.mask_channels = tf.gather([2, 1, 0, 3], tf.argmax(mask_bytes, 1))
        is_grey = (bits == 8) & (method == 0) & (palette == BMP_GREYS)
        plain = ((method == 0) & ((bits == 24) | (bits == 32))) | self.is_masked_bitmap
        self.is_palette_bitmap = is_bitmap & ~is_old & (bits <= 8) & ~is_grey
        self.is_odd_bitmap = is_bitmap & (is_old | ((bits > 8) & ~plain))


def resize(image: Any, size: Sequence[int]) -> Any:
    """Resize a float32 image [height, width, channels], if need be, by antialiased bilinear filtering."""
    fits = tf.reduce_all(tf.equal(tf.shape(image)[:2], size))
    image = tf.cond(fits, lambda: image, lambda: tf.image.resize(image, size, antialias=True))
    return tf.ensure_shape(image, [*size, None])


def _resized(image: Any, size: Sequence[int]) -> Any:
    """`resize` of a uint8 image; in a loader's batches by an operation that takes a fifth of the processor time.

    Graphs traced elsewhere, such as exported models, hold only TensorFlow's own operations.
    """
    operation = resize_operation() if is_mapping.get() else None
    if operation is None:
        return resize(tf.cast(image, tf.float32), size)
    fits = tf.reduce_all(tf.equal(tf.shape(image)[:2], size))
    image = tf.cond(fits, lambda: tf.cast(image, tf.float32), lambda: operation(image, tf.constant(size, tf.int32)))
    return tf.ensure_shape(image, [*size, None])


def _crop_jpeg(value: Any, key: Any, options: ImageTransformOptions) -> Any:
    """The crop of a JPEG file, decoding no more than the format makes necessary."""
    shape = tf.io.extract_jpeg_shape(value)
    window = None if options.crop is None else crop_window(shape, key, options)
    if not options.jpeg_scaling:
        return _decode_jpeg(value, options.channels, window)

    def decoded(scale: int) -> Any:
        return _decode_jpeg(value, options.channels, None if window is None else _divided(window, scale), scale)

    extent = shape[:2] if window is None else window[2:]
    fits = [tf.reduce_all(extent // scale >= options.size) for scale in _JPEG_SCALES[1:]]
    branches = [functools.partial(decoded, scale) for scale in _JPEG_SCALES]
    return tf.switch_case(tf.reduce_sum(tf.cast(fits, tf.int32)), branches)


def _divided(window: Any, scale: int) -> Any:
    """A window in an image with sides divided by a scale, its edges rounded to pixels."""
    begin, end = ((edge + scale // 2) // scale for edge in (window[:2], window[:2] + window[2:]))
    return tf.concat([begin, end - begin], axis=0)


def _decode_jpeg(value: Any, channels: int, window: Any = None, scale: int = 1) -> Any:
    """A JPEG file, or a window of it, with sides divided by a scale."""

    def decoded(count: int) -> Any:
        if window is None:
            return tf.io.decode_jpeg(value, channels=count, ratio=scale, dct_method=_DCT)
        return tf.io.decode_and_crop_jpeg(value, window, channels=count, ratio=scale, dct_method=_DCT)

    if channels != 1:
        return decoded(channels)
    is_cmyk = tf.equal(tf.io.extract_jpeg_shape(value)[2], 4)  # libjpeg cannot decode it to grey
    return tf.cond(is_cmyk, lambda: tf.image.rgb_to_grayscale(decoded(3)), lambda: decoded(1))


def _crop_pixels(image: Any, key: Any, options: ImageTransformOptions) -> Any:
    if options.crop is None:
        return image
    window = crop_window(tf.shape(image), key, options)
    return tf.slice(image, [window[0], window[1], 0], [window[2], window[3], -1])


def crop_window(shape: Any, key: Any, options: ImageTransformOptions) -> Any:
    """The part of an image to take: int32 [top, left, height, width], inside the image and not empty.

    Args:
        shape: height, width and channels of the image, int32 [3].
        key: random key, int64 [2].
        options: the transform, with a crop.
    """
    if isinstance(options.crop, RandomCrop):
        return _random_window(tf.cast(shape[:2], tf.float64), key, options.crop)
    fraction = options.crop.fraction if isinstance(options.crop, CentreCrop) else 1.0
    extent, wanted = tf.cast(shape[:2], tf.float64), tf.constant(options.size, tf.float64)
    size = tf.cast(tf.round(wanted * tf.reduce_min(extent / wanted) * fraction), tf.int32)
    size = tf.clip_by_value(size, 1, shape[:2])
    return tf.concat([(shape[:2] - size) // 2, size], axis=0)


def _random_window(extent: Any, key: Any, crop: RandomCrop) -> Any:
    """The first of some random boxes that fits into an image of this height and width, else the whole image."""
    draws = tf.random.stateless_uniform([4, BOXES], key, dtype=tf.float64, alg=_PHILOX)
    areas = tf.reduce_prod(extent) * (crop.area[0] + draws[0] * (crop.area[1] - crop.area[0]))
    ratios = crop.ratio[0] * (crop.ratio[1] / crop.ratio[0]) ** draws[1]
    sizes = tf.maximum(tf.round(tf.sqrt(tf.stack([areas / ratios, areas * ratios], axis=1))), 1)
    fits = tf.reduce_all(sizes <= extent, axis=1)
    first = tf.argmax(tf.cast(fits, tf.int32))
    size = tf.where(fits[first], sizes[first], extent)
    begin = tf.floor(draws[2:, first] * (extent - size + 1))
    return tf.cast(tf.concat([begin, size], axis=0), tf.int32)


def jitter_colours(image: Any, draws: Any, jitter: ColourJitter) -> Any:
    """Apply `ColourJitter` to an image in [0, 1], by four random numbers in [0, 1)."""
    signed = 2.0 * draws - 1.0
    if jitter.brightness:
        image = image * (1.0 + signed[0] * jitter.brightness)
    if jitter.contrast:
        image = tf.image.adjust_contrast(image, 1.0 + signed[1] * jitter.contrast)
    image = tf.clip_by_value(image, 0.0, 1.0)  # saturation and hue need valid colours
    if jitter.saturation:
        image = tf.image.adjust_saturation(image, 1.0 + signed[2] * jitter.saturation)
    if jitter.hue:
        image = tf.image.adjust_hue(image, signed[3] * jitter.hue)
    return tf.clip_by_value(image, 0.0, 1.0)


def _scaled(images: Any, options: ImageTransformOptions) -> Any:
    if isinstance(options.scale, Normalisation):
        images = normalise(images, options.scale)
    elif options.scale == "unit":
        images = images / 255.0
    return tf.cast(images, options.dtype)


def normalise(images: Any, statistics: Normalisation) -> Any:
    """Subtract the mean from float32 images [..., channels] in [0, 255], and divide by the deviation, by channel."""
    std = [value or 1.0 for value in statistics.std]
    return (images - tf.constant(statistics.mean, tf.float32)) / tf.constant(std, tf.float32)
