"""Options of the network, and of the augmentation of its images.

Tested in tests/training/config/test_config.py and tests/training/models/test_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringfeed.pipeline.transforms.image_options import ColourJitter, RandomCrop
from ringfeed.sharding.errors import ConfigError

from .checks import FUNCTION, SIZES, Options, are_sizes, key, require

MOST_LAYERS = 256
"""More take longer than some 10 s to build."""
NORMS = ("batch", "layer", "none")
APPLICATIONS = "keras.applications:"
IMAGE_MODELS = ("convnet", "lenet", "resnet18", "resnet50")
MODELS = ("tabular", "wide_deep", *IMAGE_MODELS, "text")


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Options, group="model"):
    name: str = key(
        "tabular",
        f"{', '.join(MODELS)}, keras.applications:NAME, or module:function, called with (manifest, config)",
        choices=(*MODELS, FUNCTION),
    )
    weights: str | None = key(
        None,
        "file of initial weights (.keras, .weights.h5, .h5; path or URL), whose last layer may have other shapes",
        kind="path",
    )
    hidden: tuple[int, ...] = key(
        (256, 128), "tabular, wide_deep, convnet: units of the hidden layers before the output"
    )
    norm: str = key("batch", f"normalisation: {', '.join(NORMS)}", choices=NORMS)
    dropout: float = key(0.0, "fraction of hidden units dropped in training", at_least=0, below=1)
    embedding_dim: int | None = key(
        None, "width of embeddings; null: 1.6 * categories ** 0.56, at most 32", at_least=1, below=SIZES
    )
    hash_buckets: int = key(
        10_000,
        "rows of a table of hashed values: wide_deep: of each column and cross; text: of tokens that are texts",
        at_least=1,
        below=SIZES,
    )
    crosses: tuple[tuple[str, ...], ...] = key(
        (), "wide_deep: columns of ids to cross, as [[user, hour], [user, item]]"
    )
    shared: tuple[tuple[str, ...], ...] = key(
        (), "wide_deep: columns of ids that share an embedding, as [[last, item]]"
    )
    filters: tuple[int, ...] = key((32, 64), "convnet: filters of each block; each block halves the image")
    image_shape: tuple[int, ...] | None = key(None, "images: [height, width, channels] to decode them to")
    max_length: int = key(128, "text: tokens of a row; longer records are cut off", at_least=1, below=SIZES)
    packing: bool = key(True, "text: whether several short records share a row in training")
    layers: int = key(2, "text: layers of the transformer", at_least=1, at_most=MOST_LAYERS)
    heads: int = key(4, "text: heads of attention, a divisor of model.width", at_least=1, below=SIZES)
    width: int = key(64, "text: width of embeddings and layers", at_least=1, below=SIZES)
    freeze: tuple[str, ...] = key(
        (), "patterns of the paths of layers that training leaves as they are", kind="patterns"
    )
    remat: tuple[str, ...] = key(
        (),
        "patterns of the paths of layers whose activations are computed again in the backward pass, to save memory",
        kind="patterns",
    )
    options: Mapping[str, Any] = key(dict, "arguments for keras.applications, or any keys for module:function")

    @property
    def takes_images(self) -> bool:
        """Whether the trainer decodes images for the network."""
        return self.name in IMAGE_MODELS or self.name.startswith(APPLICATIONS)

    def check(self) -> None:
        is_file = self.weights is None or self.weights.endswith((".keras", ".h5"))
        require(is_file, "model.weights", "a file that ends in .keras, .weights.h5 or .h5, or null", self.weights)
        require(are_sizes(self.hidden), "model.hidden", "a list of integers in [1, 2**31)", self.hidden)
        filters_hold = bool(self.filters) and are_sizes(self.filters)
        require(filters_hold, "model.filters", "a non-empty list of integers in [1, 2**31)", self.filters)
        for name, depth in (("hidden", len(self.hidden)), ("filters", len(self.filters))):
            require(depth <= MOST_LAYERS, f"model.{name}", f"at most {MOST_LAYERS} layers", depth)
        require(self.width % self.heads == 0, "model.width", f"a multiple of model.heads={self.heads}", self.width)
        for name in ("crosses", "shared"):
            groups = getattr(self, name)
            groups_hold = all(len(set(group)) == len(group) > 1 for group in groups)
            require(groups_hold, f"model.{name}", "lists of at least two columns", [list(group) for group in groups])
        is_once = len({name for group in self.shared for name in group}) == sum(map(len, self.shared))
        require(is_once, "model.shared", "groups without a common column", [list(group) for group in self.shared])
        if self.image_shape is not None:
            shape_holds = len(self.image_shape) == 3 and are_sizes(self.image_shape) and self.image_shape[2] in (1, 3)
            rule = "[height, width, 1 or 3], below 2**31"
            require(shape_holds, "model.image_shape", rule, list(self.image_shape))


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Options, group="augment"):
    """Random augmentation of each training image: see `ImageTransform`."""

    flip_left_right: bool = key(False, "mirror half of the training images")
    flip_up_down: bool = key(False, "turn half of the training images upside down")
    crop_area: tuple[float, ...] | None = key(
        None, "least and greatest share of the area that a crop keeps; null: no crop"
    )
    crop_ratio: tuple[float, ...] = key((3 / 4, 4 / 3), "least and greatest width / height of a crop")
    brightness: float = key(0.0, "random factor in [1 - x, 1 + x]")
    contrast: float = key(0.0, "the same for contrast")
    saturation: float = key(0.0, "the same for saturation")
    hue: float = key(0.0, "random rotation in [-x, x] full turns")
    mixup: float = key(
        0.0, "alpha of the Beta(alpha, alpha) by which images and labels are mixed; 0: no mixup", at_least=0
    )
    cutmix: float = key(
        0.0, "alpha of the Beta(alpha, alpha) by which boxes of other images are pasted; 0: no CutMix", at_least=0
    )
    mix_group: int = key(8, "samples that are mixed among themselves; a divisor of each rank's batch", at_least=2)

    def check(self) -> None:
        """Check the options of images, whose constructors have rules of their own."""
        try:
            _ = self.crop, self.jitter
        except ConfigError as error:
            raise ConfigError(f"augment: {error}") from error

    @property
    def crop(self) -> RandomCrop | None:
        """The random crop of images; None: no crop."""
        area: Any = self.crop_area
        ratio: Any = self.crop_ratio
        return None if area is None else RandomCrop(area=area, ratio=ratio)

    @property
    def jitter(self) -> ColourJitter | None:
        """The random change of colours; None: no change."""
        jitter = ColourJitter(
            brightness=self.brightness, contrast=self.contrast, saturation=self.saturation, hue=self.hue
        )
        return None if jitter == ColourJitter() else jitter

    @property
    def mixes(self) -> bool:
        """Whether samples are mixed with each other."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def random(self) -> bool:
        """Whether any augmentation is on."""
        return self.mixes or self.changes_images

    @property
    def changes_images(self) -> bool:
        """Whether each image is changed by itself."""
        return self.flip_left_right or self.flip_up_down or self.crop is not None or self.jitter is not None
