"""Images are decoded exactly, and augmented within bounds, equally on any ranks and after resuming."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from ringfeed.pipeline import CentreCrop, ColourJitter, ImageTransform, Loader, Normalisation, RandomCrop
from ringfeed.pipeline.transforms import image_ops
from ringfeed.pipeline.transforms.apply import mapping
from ringfeed.pipeline.transforms.image_ops import crop_window, decode, normalise
from ringfeed.sharding import BuildOptions, ConfigError, Feature, build, open_dataset
from ringfeed.sharding.formats.images.file_types import image_formats
from ringfeed.sharding.prepare import PrepareOptions
from tests.helpers.pictures import CLASSES, IMAGES, encode, pixels_of

Dataset = dict[str, str]


def augmented(url: str, **options: Any) -> ImageTransform:
    return ImageTransform.for_dataset(
        open_dataset(url).manifest,
        "image",
        size=(16, 20),
        crop=RandomCrop(),
        flip_left_right=True,
        flip_up_down=True,
        jitter=ColourJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
        **options,
    )


def images_of(loader: Loader, transform: ImageTransform, epoch: int = 0, start_step: int = 0) -> npt.NDArray[Any]:
    return np.stack([batch["image"].numpy() for batch in loader.epoch(epoch, start_step, transform=transform)])


@pytest.mark.parametrize("kind", ["jpg", "both"])
def test_augmented_batches_do_not_depend_on_ranks_and_resume_bit_for_bit(pictures: Dataset, kind: str) -> None:
    url, transform = pictures[kind], augmented(pictures[kind])
    assert transform.jpeg == (kind == "jpg")
    options: dict[str, Any] = {"batch_size": 12, "balance": "uniform", "seed": 5, "sample_keys": True}
    whole = images_of(Loader(url, **options), transform, 1)
    assert whole.shape == (3, 12, 16, 20, 3)
    for world_size in (2, 3):
        ranks = [Loader(url, rank=rank, world_size=world_size, **options) for rank in range(world_size)]
        parts = [images_of(loader, transform, 1) for loader in ranks]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    np.testing.assert_array_equal(images_of(Loader(url, **options), transform, 1, 2), whole[2:])
    one_at_a_time = Loader(url, **options).epoch(1, transform=transform, num_parallel_calls=1)
    np.testing.assert_array_equal(np.stack([batch["image"].numpy() for batch in one_at_a_time]), whole)


def test_batches_are_the_same_without_the_operation_that_resizes(
    pictures: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, transform = pictures["both"], augmented(pictures["both"])
    loader, used = Loader(url, batch_size=12, seed=5, sample_keys=True), []
    find = image_ops.resize_operation
    monkeypatch.setattr(image_ops, "resize_operation", lambda: used.append(1) or find())
    batches = images_of(loader, transform)
    assert used
    monkeypatch.setattr(image_ops, "resize_operation", lambda: None)
    np.testing.assert_allclose(images_of(loader, transform), batches, rtol=0, atol=1e-5)


def test_graphs_that_leave_the_process_hold_only_operations_of_tensorflow(pictures: Dataset) -> None:
    transform = augmented(pictures["jpg"])
    batch = next(iter(Loader(pictures["jpg"], batch_size=4, sample_keys=True).epoch(0)))
    function = tf.function(transform.__call__, autograph=False).get_concrete_function(batch)
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for one in graph.library.function for node in one.node_def)]
    assert {node.op for node in nodes} >= {"ScaleAndTranslate"}
    assert not any(node.op.startswith("Ringfeed") for node in nodes)


def test_repeats_of_a_record_are_augmented_differently(pictures: Dataset) -> None:
    share = {"cat": 1.0}
    loader = Loader(pictures["jpg"], batch_size=12, balance=share, sample_keys=True)
    batches = list(loader.epoch(0, transform=augmented(pictures["jpg"])))
    paths = [path for batch in batches for path in batch["path"].numpy().tolist()]
    assert len(set(paths)) == 12  # cats; each came three times
    assert len({image.tobytes() for batch in batches for image in batch["image"].numpy()}) == len(paths) == 36


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP"])
def test_one_channel_is_made_of_any_format(kind: str) -> None:
    out = BytesIO()
    Image.fromarray(pixels_of(2)).save(out, kind, **({"lossless": True} if kind == "WEBP" else {}))
    size = pixels_of(2).shape[:2]
    transform = ImageTransform(feature="image", size=size, channels=1, scale="bytes")
    found = transform({"image": tf.constant([out.getvalue()])})["image"].numpy()[0, ..., 0]
    grey = np.asarray(Image.open(out).convert("RGB").convert("L"), np.float32)
    assert np.abs(found - grey).max() <= 2


@pytest.mark.parametrize("crop", [None, CentreCrop(fraction=1.0)])
@pytest.mark.parametrize("jpeg", [True, False])
def test_one_channel_is_made_of_inks(crop: CentreCrop | None, jpeg: bool) -> None:
    out = BytesIO()
    Image.new("CMYK", (9, 6), (10, 200, 30, 40)).save(out, "JPEG", quality=100)
    both = [
        ImageTransform(feature="image", size=(6, 9), channels=channels, scale="bytes", crop=crop, jpeg=jpeg)
        for channels in (1, 3)
    ]
    grey, colours = (each({"image": tf.constant([out.getvalue()])})["image"] for each in both)
    np.testing.assert_allclose(grey, tf.image.rgb_to_grayscale(colours), atol=1)
    np.testing.assert_array_equal(decode(tf.constant(out.getvalue()), 1), grey[0])


@pytest.mark.parametrize("jpeg", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", [{}, {"progressive": True}, {"subsampling": 0}])
def test_jpegs_are_decoded_as_pillow_does(jpeg: bool, channels: int, how: dict[str, Any]) -> None:
    rough = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    image = Image.fromarray(rough).resize((80, 64), Image.Resampling.BICUBIC)
    out = BytesIO()
    image.save(out, "JPEG", quality=95, **how)
    opened = Image.open(out)
    if channels == 1:
        opened.draft("L", opened.size)  # the brightness that is stored
    truth = np.asarray(opened).reshape(64, 80, channels)
    whole = {"feature": "x", "size": (64, 80), "channels": channels, "scale": "bytes", "dtype": "uint8", "jpeg": jpeg}
    for crop in (None, CentreCrop(fraction=1.0)):
        found = ImageTransform(**whole, crop=crop)({"x": tf.constant([out.getvalue()])})["x"][0]
        np.testing.assert_array_equal(found, truth)
    np.testing.assert_array_equal(decode(tf.constant(out.getvalue()), channels), truth)


@pytest.mark.parametrize("scale", [1, 2, 4, 8])
@pytest.mark.parametrize("jpeg", [True, False])
def test_a_large_jpeg_is_decoded_to_a_part_of_its_sides(scale: int, jpeg: bool) -> None:
    rough = np.random.default_rng(0).integers(0, 256, (8, 10, 3), dtype=np.uint8)
    data = BytesIO()
    Image.fromarray(rough).resize((320, 256), Image.Resampling.BICUBIC).save(data, "JPEG", quality=95)
    size = (256 // scale, 320 // scale)
    how = {"size": size, "scale": "bytes", "dtype": "uint8", "jpeg": jpeg, "jpeg_scaling": True}
    opened = Image.open(data)
    opened.draft("RGB", size[::-1])  # as libjpeg does it
    for crop in (None, CentreCrop(fraction=1.0)):
        found = ImageTransform(feature="x", crop=crop, **how)({"x": tf.constant([data.getvalue()])})["x"][0]
        np.testing.assert_array_equal(found, np.asarray(opened))


@given(
    extent=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    crop=st.sampled_from([None, RandomCrop(), CentreCrop(fraction=0.6)]),
    seed=st.integers(0, 99),
)
@example(extent=(31, 33), size=(2, 2), crop=CentreCrop(fraction=0.6), seed=0)  # nearest, and not below
@example(extent=(68, 77), size=(4, 7), crop=RandomCrop(), seed=73)
@example(extent=(76, 77), size=(3, 5), crop=RandomCrop(), seed=58)
@settings(deadline=None, max_examples=20)
def test_a_part_of_the_sides_shows_the_same(
    extent: tuple[int, int], size: tuple[int, int], crop: RandomCrop | CentreCrop | None, seed: int
) -> None:
    y, x = np.mgrid[: extent[0], : extent[1]]
    data = encode(np.stack([y, x, 90 - x], axis=-1).astype(np.uint8), "jpg", quality=100, subsampling=0)
    element = {"x": tf.constant([data]), "sample_key": tf.constant([[seed, 1]], tf.int64)}
    both = [ImageTransform(feature="x", size=size, crop=crop, scale="bytes", jpeg_scaling=on) for on in (False, True)]
    whole, part = (transform(element)["x"] for transform in both)
    shape = tf.constant([*extent, 3])
    key = tf.random.split(element["sample_key"][0], 2, alg="philox")[0]
    taken = np.array(extent if crop is None else crop_window(shape, key, both[0])[2:])
    scale = max(scale for scale in (1, 2, 4, 8) if scale == 1 or (taken // scale >= size).all())
    # Edges of a crop move by half a pixel at most; without one, the last may show up to a pixel that is not there.
    np.testing.assert_allclose(part, whole, atol=0 if scale == 1 else min(scale + 2, 9))


@pytest.mark.parametrize("size", [(9, 7), (17, 23), (40, 40)])
def test_a_bitmap_becomes_grey_whatever_size_its_header_gives(size: tuple[int, int]) -> None:
    out = BytesIO()
    Image.fromarray(np.full((*size, 3), 90, np.uint8)).save(out, "BMP")
    transform = ImageTransform(feature="image", size=size, channels=1, scale="bytes", dtype="uint8")
    assert (transform({"image": tf.constant([out.getvalue()])})["image"].numpy() == 90).all()


def test_a_webp_gives_its_colours_transparent_or_not() -> None:
    colours = np.zeros((8, 6, 3), np.uint8)
    colours[:, 3:] = (10, 200, 90)
    image = Image.fromarray(colours)
    clear = image.convert("RGBA")
    clear.putalpha(128)
    for each, how in (
        (image, {"lossless": True}),
        (clear, {"lossless": True, "exact": True}),
        (clear, {"quality": 100}),
        (clear, {"lossless": True, "exact": True, "save_all": True, "append_images": [clear.transpose(0)]}),
    ):
        out = BytesIO()
        each.save(out, "WEBP", **how)
        truth = Image.open(out).convert("RGB")
        for channels in (1, 3):
            transform = ImageTransform(feature="image", size=(8, 6), channels=channels, scale="bytes", dtype="uint8")
            found = transform({"image": tf.constant([out.getvalue()])})["image"].numpy()[0].astype(int)
            expected = np.asarray(truth) if channels == 3 else np.asarray(truth.convert("L"))[..., None]
            assert np.abs(found - expected).max() <= 2


@pytest.mark.parametrize("mode", ["P", "1"])
def test_a_bitmap_with_a_palette_is_refused_and_a_grey_one_is_not(mode: str) -> None:
    grey = np.arange(48, dtype=np.uint8).reshape(6, 8) * 5
    image = Image.fromarray(np.stack([grey, 255 - grey, grey], -1))
    transform = ImageTransform(feature="image", size=(6, 8), scale="bytes", dtype="uint8")
    files = []
    for each in (image.quantize(4) if mode == "P" else image.convert("1"), Image.fromarray(grey)):
        files.append(BytesIO())
        each.save(files[-1], "BMP")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a BMP with a colour palette.* --encode png"):
        transform({"image": tf.constant([files[0].getvalue()])})
    assert (transform({"image": tf.constant([files[1].getvalue()])})["image"].numpy() == grey[None, ..., None]).all()


def test_a_feature_without_files_is_refused() -> None:
    transform = ImageTransform(feature="image", size=(4, 4))
    with pytest.raises(ConfigError, match="feature 'image' is float32, and images are decoded from bytes"):
        transform({"image": tf.zeros([2, 4, 4, 3])})


def test_images_are_decoded_as_they_are(pictures: Dataset) -> None:
    for kind, close in (("png", 0), ("jpg", 12)):
        options = {"feature": "image", "crop": None, "scale": "bytes", "dtype": "uint8"}
        for batch in Loader(pictures[kind], batch_size=1, streams=1).epoch(0):
            number = int(batch["path"].numpy()[0].decode()[-7:-4])
            truth = pixels_of(number)
            image = ImageTransform(size=truth.shape[:2], **options)(batch)["image"].numpy()[0]  # type: ignore[arg-type]
            assert np.abs(image.astype(int) - truth).mean() <= close
            assert batch["class_id"].numpy()[0] == number % 3
            assert CLASSES[number % 3] in batch["path"].numpy()[0].decode()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 300),
    st.integers(1, 300),
    st.tuples(st.integers(1, 64), st.integers(1, 64)),
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(
        st.builds(CentreCrop, fraction=st.floats(0.01, 1)),
        st.builds(lambda low, high: RandomCrop(area=(low * high, high)), st.floats(0.01, 1), st.floats(0.01, 1)),
    ),
)
def test_crops_lie_inside_the_image(
    height: int, width: int, size: tuple[int, int], key: int, crop: RandomCrop | CentreCrop
) -> None:
    options = ImageTransform(feature="image", size=size, crop=crop)
    window = crop_window(tf.constant([height, width, 3]), tf.constant([key, 1], tf.int64), options)
    top, left, tall, wide = window.numpy().tolist()
    assert 0 <= top < top + tall <= height
    assert 0 <= left < left + wide <= width
    if isinstance(crop, CentreCrop):
        assert abs((height - tall) - 2 * top) <= 1
        assert abs((width - wide) - 2 * left) <= 1


def test_random_crops_have_the_given_areas_and_shapes() -> None:
    options = ImageTransform(feature="image", size=(8, 8), crop=RandomCrop(area=(0.2, 0.5), ratio=(0.5, 2.0)))
    keys = np.random.default_rng(0).integers(0, 2**62, (300, 2))
    windows = np.array([crop_window(tf.constant([200, 300, 3]), tf.constant(key), options) for key in keys])
    areas, ratios = windows[:, 2] * windows[:, 3] / 60_000, windows[:, 3] / windows[:, 2]
    assert areas.min() > 0.19
    assert areas.max() < 0.51
    assert np.ptp(areas) > 0.27
    assert ratios.min() > 0.48
    assert ratios.max() < 2.1
    assert np.unique(windows[:, :2], axis=0).shape[0] > 250


def random_windows(height: int, width: int, crop: RandomCrop, count: int) -> npt.NDArray[np.int32]:
    """Top, left, height and width of many crops of an image."""
    options, keys = ImageTransform(feature="image", size=(8, 8), crop=crop), np.arange(2 * count).reshape(-1, 2)

    @tf.function
    def all_of(keys: tf.Tensor) -> tf.Tensor:
        return tf.map_fn(
            lambda key: crop_window(tf.constant([height, width, 3]), key, options), keys, fn_output_signature=tf.int32
        )

    found: npt.NDArray[np.int32] = all_of(tf.constant(keys)).numpy()
    return found


def test_areas_and_ratios_of_random_crops_are_uniform() -> None:
    windows = random_windows(400, 400, RandomCrop(area=(0.1, 0.6), ratio=(0.5, 2.0)), 1000)
    shapes = np.log2(windows[:, 3] / windows[:, 2])
    square = np.abs(shapes) < 0.6  # all of these fit
    areas = (windows[:, 2] * windows[:, 3] / 160_000)[square]
    np.testing.assert_allclose(np.quantile(areas, [0.25, 0.5, 0.75]), [0.225, 0.35, 0.475], atol=0.03)
    np.testing.assert_allclose(np.quantile(shapes[square], [0.25, 0.5, 0.75]), [-0.3, 0, 0.3], atol=0.08)


def test_random_crops_reach_every_edge_of_a_small_image_as_often() -> None:
    top, left, height, width = random_windows(5, 5, RandomCrop(area=(0.6, 0.7), ratio=(1.0, 1.0)), 400).T
    assert set(height) == set(width) == {4}
    counts = np.bincount(2 * top + left, minlength=4)  # of four places
    assert counts.min() > 70
    assert counts.sum() == 400


def test_a_crop_of_one_area_and_shape_is_found_where_sides_have_to_be_rounded() -> None:
    windows = random_windows(200, 300, RandomCrop(area=(0.2, 0.2), ratio=(1.0, 1.0)), 50)
    np.testing.assert_array_equal(windows[:, 2:], np.full((50, 2), 110))  # 109.5 squared


eighths = st.integers(0, 2040).map(lambda number: number / 8)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(eighths, eighths), min_size=3, max_size=3), st.integers(0, 1000))
def test_normalisation_equals_that_of_numpy(statistics: list[tuple[float, float]], seed: int) -> None:
    images = np.random.default_rng(seed).integers(0, 256, (2, 4, 5, 3)).astype(np.float32)
    mean, std = (np.array(values, np.float32) for values in zip(*statistics, strict=True))
    found = normalise(tf.constant(images), Normalisation(mean=tuple(mean.tolist()), std=tuple(std.tolist())))
    np.testing.assert_array_equal(found, (images - mean) / np.where(std == 0, np.float32(1), std))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_statistics_of_the_manifest_centre_the_images(pictures: Dataset, dtype: str) -> None:
    manifest = open_dataset(pictures["png"]).manifest
    transform = ImageTransform.for_dataset(manifest, "image", size=(24, 40), scale="statistics", dtype=dtype)
    unit = ImageTransform.for_dataset(manifest, "image", size=(24, 40))
    known = manifest.split("train").statistics["image"].image
    assert known is not None
    for batch in Loader(pictures["png"], batch_size=IMAGES).epoch(0):
        scaled = transform(batch)["image"]
        assert scaled.dtype == dtype
        expected = (255 * unit(batch)["image"].numpy() - known.mean) / known.std
        np.testing.assert_allclose(tf.cast(scaled, tf.float32), expected, atol={"float32": 1e-5}.get(dtype, 2e-2))
        assert np.abs(expected.mean(axis=(0, 1, 2))).max() < 0.2


def test_tensors_of_pixels_are_images_too() -> None:
    pixels = tf.constant(np.arange(2 * 6 * 8).reshape(2, 6, 8), tf.uint8)
    transform = ImageTransform(feature="x", size=(6, 8), channels=1, shape=(6, 8), scale="bytes")
    np.testing.assert_array_equal(transform({"x": pixels})["x"][..., 0], pixels)
    cropped = ImageTransform(
        feature="x", size=(3, 4), channels=1, shape=(6, 8), crop=CentreCrop(fraction=0.5), scale="bytes"
    )
    np.testing.assert_array_equal(cropped({"x": pixels})["x"][..., 0], pixels[:, 1:4, 2:6])


def test_tensors_keep_their_channels() -> None:
    pixels = tf.constant(np.arange(2 * 6 * 8 * 3).reshape(2, 6, 8, 3) % 256, tf.uint8)
    for channels in (1, 3):
        transform = ImageTransform(feature="x", size=(6, 8), shape=(6, 8, 3), channels=channels, scale="bytes")
        np.testing.assert_array_equal(transform({"x": pixels})["x"], pixels)
    assert ImageTransform(feature="x", size=(6, 8), shape=(6, 8)).channels == 1
    for other in (pixels[:, :5], tf.cast(pixels, tf.float32), pixels[..., 0], tf.constant([b"1"])):
        with pytest.raises(ConfigError, match=r"not uint8 tensors of shape=\(6, 8, 3\)"):
            transform({"x": other})
    for shape in ((6,), (6, 8, 3, 1), (6, 0), "ab", (6, 8, 2), (6.5, 8)):
        with pytest.raises(ConfigError, match=r"shape must be|channels must be 1 or 3, got 2"):
            ImageTransform(feature="x", size=(6, 8), shape=shape)  # type: ignore[arg-type]


def test_jitter_of_nothing_changes_nothing_and_some_stays_in_bounds(pictures: Dataset) -> None:
    batch = next(iter(Loader(pictures["jpg"], batch_size=12, sample_keys=True).epoch(0)))
    plain = ImageTransform(feature="image", size=(16, 16))(batch)["image"]
    none = ImageTransform(feature="image", size=(16, 16), jitter=ColourJitter())(batch)["image"]
    np.testing.assert_array_equal(plain, none)
    jitter = ColourJitter(brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5)
    some = ImageTransform(feature="image", size=(16, 16), jitter=jitter)(batch)["image"].numpy()
    assert some.min() >= 0
    assert some.max() <= 1
    assert np.abs(some - plain).mean() > 0.05


def test_half_of_the_images_are_flipped() -> None:
    file = encode(pixels_of(0), "png")
    keys = np.random.default_rng(0).integers(0, 2**62, (200, 2))
    element = {"image": tf.constant([file] * 200), "sample_key": tf.constant(keys)}
    options = ImageTransform(feature="image", size=(24, 40), flip_left_right=True, scale="bytes", dtype="uint8")
    images = tf.function(options)(element)["image"].numpy()
    mirrored = (images == pixels_of(0)[:, ::-1]).all(axis=(1, 2, 3))
    assert (mirrored | (images == pixels_of(0)).all(axis=(1, 2, 3))).all()
    assert 70 < mirrored.sum() < 130


def test_keras_fits_a_model_to_decoded_images(pictures: Dataset) -> None:
    import keras

    keras.utils.set_random_seed(0)
    loader = Loader(pictures["jpg"], batch_size=12, balance="uniform", sample_keys=True)
    transform = augmented(pictures["jpg"], scale="statistics")
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    history = model.fit(
        loader.epoch(0, transform=[transform, lambda batch: (batch["image"], batch["class_id"])]),
        shuffle=False,
        verbose=0,
    )
    assert len(history.history["loss"]) == 1
    assert np.isfinite(history.history["loss"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (0, 8)}, "size must be a height and a width of at least 1"),
        ({"channels": 4}, "channels must be 1 or 3, got 4"),
        ({"dtype": "float64"}, "dtype must be one of uint8, float16, bfloat16, float32, got 'float64'"),
        ({"dtype": "uint8"}, "dtype='uint8' needs scale='bytes', got 'unit'"),
        ({"scale": "half"}, "scale must be 'unit', 'bytes' or a Normalisation, got 'half'"),
        ({"channels": 1, "scale": Normalisation(mean=(1, 2, 3), std=(1, 1, 1))}, "cannot have the mean"),
        ({"channels": 1, "jitter": ColourJitter(hue=0.1)}, "saturation and hue need channels=3"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ImageTransform(**{"feature": "image", "size": (8, 8), **options})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomCrop(area=(0.5, 0.2)), "area must be two ascending numbers"),
        (lambda: RandomCrop(ratio=(0.0, 1.0)), "ratio must be two ascending positive numbers"),
        (lambda: CentreCrop(fraction=0.0), "fraction must lie in"),
        (lambda: ColourJitter(hue=0.6), r"hue must lie in \[0, 0.5\], got 0.6"),
        (lambda: Normalisation(mean=(0.0,), std=(-1.0,)), "std not negative"),
    ],
)
def test_impossible_parts_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_fill_of_images_may_have_another_format(pictures: Dataset, tmp_path: Path) -> None:
    table = pa.table({"photo": [*(encode(pixels_of(i), "jpg") for i in range(3)), None]})
    pq.write_table(table, tmp_path / "photos.parquet")
    features = {"photo": Feature(name="photo", dtype="binary", encoding="image")}
    prepare = PrepareOptions(features=features)
    build(BuildOptions(source=str(tmp_path / "photos.parquet"), destination=str(tmp_path / "out"), prepare=prepare))
    out = BytesIO()
    Image.fromarray(np.full((6, 8, 3), 77, np.uint8)).save(out, "PNG")
    loader = Loader(str(tmp_path / "out"), batch_size=4, fill={"photo": out.getvalue()})
    transform = ImageTransform.for_dataset(loader.manifest, "photo", size=(6, 8), scale="bytes", dtype="uint8")
    (batch,) = loader.epoch(0, transform=transform)
    assert sorted((image == 77).all() for image in batch["photo"].numpy()) == [False, False, False, True]


def test_missing_features_and_statistics_are_named(pictures: Dataset) -> None:
    manifest = open_dataset(pictures["jpg"]).manifest
    with pytest.raises(ConfigError, match="no feature 'picture'; they are: image, height"):
        ImageTransform.for_dataset(manifest, "picture", size=(8, 8))
    with pytest.raises(ConfigError, match=r"'height' .* holds no images"):
        ImageTransform.for_dataset(manifest, "height", size=(8, 8))
    with pytest.raises(ConfigError, match="statistics of their grey values are not stored"):
        ImageTransform.for_dataset(manifest, "image", size=(8, 8), channels=1, scale="statistics")
    loader = Loader(pictures["jpg"], batch_size=12)
    with pytest.raises(ConfigError, match="make the Loader with sample_keys=True"):
        loader.epoch(0, transform=augmented(pictures["jpg"]))
    with pytest.raises(ConfigError, match="num_parallel_calls must be at least 1, got 0"):
        loader.epoch(0, transform=lambda batch: batch, num_parallel_calls=0)


def bitmap(red: int, green: int, blue: int, alpha: int) -> bytes:
    """A BMP of 2 x 2 pixels of 32 bits (200, 100, 10), with masks."""
    masks = (red, green, blue, alpha)
    value = sum(part * (mask & -mask) for part, mask in zip((200, 100, 10, 255), masks, strict=True))
    info = struct.pack("<IiiHHIIiiII", 56, 2, 2, 1, 32, 3, 16, 2835, 2835, 0, 0) + struct.pack("<4I", *masks)
    return struct.pack("<2sIHHI", b"BM", 86, 0, 0, 70) + info + struct.pack("<I", value) * 4


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("masks", "usual"),
    [
        ((0xFF0000, 0xFF00, 0xFF, 0xFF000000), True),
        ((0xFF, 0xFF00, 0xFF0000, 0xFF000000), False),
        ((0xFF000000, 0xFF0000, 0xFF00, 0xFF), False),
        ((0xFF000000, 0xFF0000, 0xFF00, 0), False),
    ],
)
def test_a_bitmap_of_other_masks_has_its_own_colours(
    masks: tuple[int, int, int, int], usual: bool, channels: int
) -> None:
    data = bitmap(*masks)
    assert Image.open(BytesIO(data)).convert("RGB").getpixel((0, 0)) == (200, 100, 10)
    transform = ImageTransform(feature="image", size=(2, 2), scale="bytes", dtype="uint8", channels=channels)
    assert image_formats(pa.array([data])).to_pylist() == ["bmp" if usual else "bmp-other"]
    found = transform({"image": tf.constant([data])})["image"].numpy()[0, 0, 0].tolist()
    assert found == ([200, 100, 10] if channels == 3 else [119])


def coded_bitmap(bits: int, method: int, extra: bytes, pixels: bytes) -> bytes:
    """A BMP of 4 x 2 pixels; method 12: with the header of OS/2."""
    colours = 0 if method == 3 else len(extra) // 4
    info = struct.pack("<IiiHHIIiiII", 40, 4, 2, 1, bits, method, len(pixels), 1, 1, colours, 0)
    info = struct.pack("<IHHHH", 12, 4, 2, 1, bits) if method == 12 else info
    start = 14 + len(info) + len(extra)
    return struct.pack("<2sIHHI", b"BM", start + len(pixels), 0, 0, start) + info + extra + pixels


COLOURS = bytes(range(0, 240, 15)) * 4  # of 16 entries
CODED = (
    (1, 0, COLOURS[:8], b"\x50\0\0\0\xa0\0\0\0"), (4, 0, COLOURS, b"\x12\x34\0\0\x56\x78\0\0"),
    (8, 0, COLOURS[:16], b"\0\1\2\3\3\2\1\0"), (8, 1, COLOURS[:16], b"\4\2\0\0\2\1\2\3\0\1"),
    (4, 2, COLOURS, b"\4\x12\0\0\4\x34\0\1"), (16, 0, b"", bytes(range(0, 128, 8))),
    (16, 3, struct.pack("<3I", 0xF800, 0x7E0, 0x1F), bytes(range(0, 256, 16))),
    (8, 12, bytes(range(256)) * 3, b"\0\1\2\3\3\2\1\0"),
)  # fmt: skip


@pytest.mark.parametrize("channels", [1, 3])
def test_a_bitmap_that_tensorflow_mistakes_is_decoded_by_pillow_in_a_loader(channels: int) -> None:
    files = [coded_bitmap(*coded) for coded in CODED]
    assert set(image_formats(pa.array(files)).to_pylist()) == {"bmp-palette", "bmp-other"}
    transform = ImageTransform(feature="image", size=(2, 4), scale="bytes", dtype="uint8", channels=channels)
    with mapping():
        found = transform({"image": tf.constant(files)})["image"].numpy()
    for file, pixels in zip(files, found, strict=True):
        with Image.open(BytesIO(file)) as image:
            expected = np.asarray(image.convert("L" if channels == 1 else "RGB"))
        assert np.ptp(expected) > 0
        np.testing.assert_array_equal(pixels, expected.reshape(pixels.shape))


def test_a_bitmap_whose_colours_are_no_bytes_is_refused() -> None:
    transform = ImageTransform(feature="image", size=(2, 2))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"unusual masks.* --encode png"):
        transform({"image": tf.constant([bitmap(0x3FF00000, 0xFFC00, 0x3FF, 0)])})


@pytest.mark.parametrize("chunk", ["none", "gAMA", "sRGB"])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_colours_of_a_png_become_grey_as_in_pillow_whatever_its_gamma(chunk: str, mode: str) -> None:
    image = Image.new("RGB", (4, 4), (255, 0, 0)).convert(mode)
    extra = PngImagePlugin.PngInfo()
    if chunk == "gAMA":
        extra.add(b"gAMA", struct.pack(">I", 45455))
    elif chunk == "sRGB":
        extra.add(b"sRGB", b"\0")
    out = BytesIO()
    image.save(out, "PNG", pnginfo=extra)
    transform = ImageTransform(feature="image", size=(4, 4), scale="bytes", dtype="uint8", channels=1)
    found = transform({"image": tf.constant([out.getvalue()])})["image"].numpy()
    assert np.abs(found.astype(int) - np.asarray(image.convert("RGB").convert("L"))[..., None]).max() <= 1


@pytest.mark.parametrize(("size", "place"), [((4, 4), (0, 0)), ((2, 4), (1, 0)), ((4, 2), (0, 1)), ((2, 2), (1, 1))])
def test_a_gif_whose_first_frame_is_small_is_decoded_by_pillow_or_refused(
    size: tuple[int, int], place: tuple[int, int]
) -> None:
    out = BytesIO()
    Image.new("P", size, 1).save(out, "GIF")
    data = bytearray(out.getvalue())
    frame = data.index(b",", 13 + 3 * (2 << (data[10] & 7)))
    data[6:10] = struct.pack("<HH", 4, 4)
    data[frame + 1 : frame + 5] = struct.pack("<HH", *place)
    transform = ImageTransform(feature="image", size=(4, 4), scale="bytes", dtype="uint8")
    with mapping():
        found = transform({"image": tf.constant([bytes(data)])})["image"][0].numpy()
    np.testing.assert_array_equal(found, np.asarray(Image.open(BytesIO(data)).convert("RGB")))
    assert found.shape == (4, 4, 3)
    if size == (4, 4):
        assert transform({"image": tf.constant([bytes(data)])})["image"].shape == (1, 4, 4, 3)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"first frame"):
            transform({"image": tf.constant([bytes(data)])})
