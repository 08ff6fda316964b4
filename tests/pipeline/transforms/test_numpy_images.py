"""Images decoded without TensorFlow: crops, flips, pixels of `Loader.epoch`, on any ranks; Pillow's within bounds."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfeed.pipeline import CentreCrop, ColourJitter, ImageTransform, Loader, Normalisation, RandomCrop
from ringfeed.pipeline.transforms import numpy_images
from ringfeed.pipeline.transforms.compiled_images import can_decode_jpeg, decode_jpeg, jpeg_sides
from ringfeed.pipeline.transforms.philox_draws import split, uniform
from ringfeed.sharding import ConfigError, DatasetError, open_dataset
from tests.helpers.pictures import IMAGES, encode, pixels_of

BOUND = 1.5  # of 255; Pillow rounds twice
EDGE_BOUND = 40.0  # beside a JPEG crop's left and right edges, whose colours TensorFlow interpolates otherwise
WAYS = ["Pillow", "compiled"] if can_decode_jpeg() else ["Pillow"]
seeds = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decode and resize by Pillow alone, or by images.c."""
    choose(request.param, monkeypatch)
    return str(request.param)


def choose(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("can_decode_jpeg", "can_resize"):
        monkeypatch.setattr(numpy_images, name, lambda: way == "compiled")


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(seeds, seeds), min_size=1, max_size=3), st.integers(1, 9))
def test_random_numbers_are_those_of_tensorflow(keys: list[tuple[int, int]], count: int) -> None:
    array = np.array(keys, np.int64)
    for number, key in enumerate(keys):
        seed = tf.constant(key, tf.int64)
        assert split(array, count)[number].tolist() == tf.random.split(seed, count, alg="philox").numpy().tolist()
        for dtype, name in ((np.float32, "float32"), (np.float64, "float64")):
            expected = tf.random.stateless_uniform([count], seed, dtype=name, alg="philox")
            assert uniform(array, count, dtype)[number].tolist() == expected.numpy().tolist()


TRANSFORMS: dict[str, dict[str, Any]] = {
    "random": {"crop": RandomCrop(), "flip_left_right": True, "flip_up_down": True},
    "small areas": {"crop": RandomCrop(area=(0.01, 0.05), ratio=(0.2, 5.0))},
    "centre": {"crop": CentreCrop(fraction=0.8)},
    "whole": {},
    "grey": {"crop": RandomCrop(), "channels": 1},
    "scaled": {"crop": CentreCrop(fraction=1.0), "size": (8, 8), "jpeg_scaling": True},
    "scaled, random": {"crop": RandomCrop(), "size": (5, 7), "jpeg_scaling": True},
    "rounded": {"crop": RandomCrop(), "scale": "bytes", "dtype": "uint8"},
    "normalised": {"crop": RandomCrop(), "scale": "statistics"},
    "halves": {"crop": RandomCrop(), "dtype": "float16"},
}


@pytest.mark.parametrize("kind", ["jpg", "png"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_pixels_are_those_of_epoch(
    pictures: dict[str, str], monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """Equal where images.c decodes and resizes; Pillow's, and its grey of a colour PNG, within the bound."""
    options = {"size": (16, 20)} | TRANSFORMS[name]
    transform = ImageTransform.for_dataset(open_dataset(pictures[kind]).manifest, "image", **options)
    loader = Loader(pictures[kind], batch_size=12, seed=5, sample_keys=True)
    scale = {"bytes": 1.0, "statistics": 1 / min(np.atleast_1d(getattr(transform.scale, "std", 1.0)))}
    bound = BOUND * (1 + (name == "grey")) * scale.get(options.get("scale", "unit"), 1 / 255)
    has_edges = kind == "jpg" and name not in ("whole", "scaled")
    epoch = list(loader.epoch(1, transform=transform))
    for way in WAYS:
        choose(way, monkeypatch)
        compared = 0
        for expected, batch in zip(epoch, loader.numpy_epoch(1, transform=transform.on_numpy), strict=True):
            images = batch["image"]
            assert images.dtype == expected["image"].dtype.as_numpy_dtype
            assert images.shape == (12, *options["size"], options.get("channels", 3))
            difference = np.abs(images.astype(np.float64) - expected["image"].numpy().astype(np.float64))
            assert difference.max() <= (bound * EDGE_BOUND / BOUND if has_edges else bound)
            assert np.mean(difference) < bound / 2
            if way == "compiled" and (kind, name) != ("png", "grey"):
                np.testing.assert_array_equal(images, expected["image"])
            assert batch["class_id"].tolist() == expected["class_id"].numpy().tolist()
            compared += len(images)
        assert compared == IMAGES


def augmented(url: str, **options: Any) -> ImageTransform:
    return ImageTransform.for_dataset(
        open_dataset(url).manifest, "image", size=(16, 20), **{**TRANSFORMS["random"], **options}
    )


@pytest.mark.usefixtures("way")
def test_batches_depend_neither_on_ranks_nor_on_the_first_step_nor_on_threads(pictures: dict[str, str]) -> None:
    url, images = pictures["both"], augmented(pictures["both"]).on_numpy

    def read(epoch: int, step: int = 0, prefetch: int = 1 << 20, **options: Any) -> Any:
        loader = Loader(url, batch_size=12, seed=5, sample_keys=True, **options)
        batches = loader.numpy_epoch(epoch, step, prefetch_bytes=prefetch, transform=images)
        return np.stack([batch["image"] for batch in batches])

    whole = read(1)
    np.testing.assert_array_equal(read(1, prefetch=0), whole)
    np.testing.assert_array_equal(read(1, 2), whole[2:])
    ranks = [read(1, rank=rank, world_size=3) for rank in range(3)]
    np.testing.assert_array_equal(np.concatenate(ranks, axis=1), whole)


def test_tensors_of_pixels_are_cropped_and_resized_too(way: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 30, 40, 3), np.uint8)
    transform = ImageTransform(feature="x", size=(16, 20), crop=RandomCrop(), flip_up_down=True, shape=(30, 40, 3))
    keys = np.arange(8, dtype=np.int64).reshape(4, 2)
    expected = transform({"x": tf.constant(pixels), "sample_key": tf.constant(keys)})["x"]
    images = transform.on_numpy({"x": pixels, "sample_key": keys})["x"]
    np.testing.assert_allclose(images, expected, rtol=0, atol=BOUND / 255 if way == "Pillow" else 1e-5)


def test_what_cannot_be_done_is_refused(pictures: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"image": [b"no image"], "sample_key": np.zeros((1, 2), np.int64)}
    for options, message in (
        ({"jitter": ColourJitter(hue=0.1)}, "jitter needs TensorFlow: use Loader.epoch"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16' needs TensorFlow; NumPy has uint8, float16, float32"),
        ({"feature": "photo"}, "the batch has no feature 'photo'; it has: image, sample_key"),
    ):
        transform = ImageTransform(**{"feature": "image", "size": (4, 4), "crop": RandomCrop(), **options})
        with pytest.raises(ConfigError, match=message):
            transform.on_numpy(batch)
    with pytest.raises(ConfigError, match="make the Loader with sample_keys=True"):
        augmented(pictures["jpg"]).on_numpy({"image": batch["image"]})
    plain = ImageTransform(feature="image", size=(4, 4), scale=Normalisation(mean=(1.0,), std=(0.0,)))
    cut = encode(pixels_of(0), "jpg")[:-200]
    for way in WAYS:
        choose(way, monkeypatch)
        for file in (b"no image", cut, cut[:50], b"\xff\xd8\xff"):
            with pytest.raises(DatasetError, match=r"in feature 'image' of sample 0 of a batch cannot be decoded: \S"):
                plain.on_numpy({"image": [file]})


@pytest.mark.skipif(len(WAYS) == 1, reason="images.c is not compiled")
@given(st.lists(st.tuples(st.integers(2, 900), st.integers(0, 255)), max_size=3), st.integers(0, 99))
def test_damaged_files_give_the_pixels_of_tensorflow_or_an_error(damage: list[tuple[int, int]], seed: int) -> None:
    """Whatever TensorFlow decodes is decoded. It refuses more: it reads on below the window."""
    file = bytearray(encode(pixels_of(seed), "jpg"))
    for place, value in damage:
        file[place % len(file)] = value
    window = np.array([3, 7, 11, 9])
    try:
        expected = tf.io.decode_and_crop_jpeg(bytes(file), window, channels=3, dct_method="INTEGER_ACCURATE").numpy()
    except tf.errors.InvalidArgumentError:
        expected = None
    try:
        pixels = None if jpeg_sides(bytes(file)) is None else decode_jpeg(bytes(file), 3, 1, window)
    except ValueError as error:
        assert str(error)  # noqa: PT017 (both ways are right)
        assert expected is None
    else:
        assert pixels is None or expected is None or np.array_equal(pixels, expected)
