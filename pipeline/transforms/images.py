"""`ImageTransform`: crop, resize, flip, jitter and scale the images of a batch. `image_ops.py` does the work.

Importing this module does not import TensorFlow; calling an `ImageTransform` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ringfeed.sharding.dataset.manifest import Manifest

from .apply import GraphTransform
from .image_options import CentreCrop, ColourJitter, ImageTransformOptions, Normalisation, RandomCrop, image_feature


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTransform(ImageTransformOptions, GraphTransform):  # type: ignore[misc]  # a slot for weak references is no conflict
    """Turns a feature of encoded images, or of uint8 tensors, into a batch of images of one size.

    A function for `Loader.epoch(transform=...)`. Crop, flips and jitter are drawn by ``sample_key``, so a loader
    with ``sample_keys=True`` gives the same augmented batches on any number of ranks, and wherever it resumes.
    The feature becomes a tensor of `dtype`, [batch, *size, channels]; other features stay as they are.

    Attributes:
        feature: name of the feature that holds images.
        size: target height and width, reached by antialiased bilinear filtering.
        channels: 1 or 3, the channels to decode files to; uint8 tensors keep the channels of their `shape`.
        crop: the crop to take; None for the whole image.
        flip_left_right: whether to mirror half of the images.
        flip_up_down: whether to turn half of them upside down.
        jitter: random change of colours.
        scale: ``unit`` for [0, 1], ``bytes`` for 0 to 255, or a `Normalisation`.
        dtype: ``float32``, ``float16`` or ``bfloat16``; or ``uint8``, rounded, with ``bytes``.
        jpeg: whether all files are known to be JPEG, which saves a check; see `for_dataset`.
        jpeg_scaling: whether to decode a JPEG to a half, a quarter or an eighth of its sides where the crop still has
            at least `size`. Photographs much larger than that take a fraction of the time; pixels differ slightly
            from those of the full image resized to `size`.
        shape: of uint8 tensors, (height, width) or (height, width, channels); None for encoded images.

    Raises:
        ConfigError: a value breaks its rule.

    >>> from ringfeed.pipeline import RandomCrop
    >>> ImageTransform(feature="image", size=(224, 224), crop=RandomCrop(), flip_left_right=True).channels
    3
    """

    @classmethod
    def for_dataset(
        cls,
        manifest: Manifest,
        feature: str,
        *,
        size: tuple[int, int],
        channels: int = 3,
        crop: RandomCrop | CentreCrop | None = None,
        flip_left_right: bool = False,
        flip_up_down: bool = False,
        jitter: ColourJitter | None = None,
        scale: Literal["unit", "bytes", "statistics"] | Normalisation = "unit",
        dtype: str = "float32",
        jpeg_scaling: bool = False,
        statistics_split: str = "train",
    ) -> ImageTransform:
        """The transform for a feature of a dataset, whose manifest knows file formats, shape and statistics.

        Args:
            manifest: manifest of the dataset.
            feature: as of `ImageTransform`, like all other arguments except the two below.
            scale: also ``statistics``: normalise by the stored mean and deviation of each channel.
            statistics_split: the split whose statistics to use, in evaluation too.

        Raises:
            ConfigError: the feature holds no images, or has no statistics.
        """
        image = image_feature(manifest, feature)
        if image.fixed_shape:
            channels = image.fixed_shape[2] if len(image.fixed_shape) == 3 else 1
        if scale == "statistics":
            scale = Normalisation.of(manifest, feature, split=statistics_split, channels=channels)
        known = [split.statistics[feature] for split in manifest.splits.values() if split.records]
        return cls(
            feature=feature,
            size=size,
            channels=channels,
            crop=crop,
            flip_left_right=flip_left_right,
            flip_up_down=flip_up_down,
            jitter=jitter,
            scale=scale,
            dtype=dtype,
            jpeg=not image.fixed_shape and all(of.vocabulary == ("jpeg",) and not of.nulls for of in known),
            jpeg_scaling=jpeg_scaling,
            shape=image.fixed_shape or None,
        )

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """The element with its images decoded: dtype [batch, *size, channels].

        Raises:
            ConfigError: the element lacks the feature, or the sample keys.
        """
        from .image_ops import transform_images

        return transform_images(element, self)

    def on_numpy(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A NumPy batch with its images decoded, without TensorFlow: dtype [batch, *size, channels].

        Crops, flips and pixels equal `Loader.epoch`'s, but for two cases. Grey values of coloured files that are no
        JPEGs differ by about 1 of 255. So do all pixels if images.c was not compiled or Pillow brings no libjpeg-turbo;
        they then differ by more beside the left and right edges of a JPEG's crop, where TensorFlow interpolates colours
        without their neighbours. A thread for each core takes part.

        For ``Loader.numpy_epoch(transform=transform.on_numpy)``.

        Raises:
            ConfigError: the batch lacks the feature or the sample keys; or `jitter` or ``bfloat16`` is asked for.
            DatasetError: an image cannot be decoded.
        """
        from .numpy_images import transform_batch

        return transform_batch(batch, self)
