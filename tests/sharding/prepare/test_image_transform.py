"""Prepared images (also `image_source`): files are read once and late, sizes stay true, all modes are right."""

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ringfeed.sharding import (
    ConfigError,
    Feature,
    SourceError,
    open_dataset,
    read_records,
    verify,
)
from ringfeed.sharding.prepare import (
    Cast,
    Drop,
    DropNulls,
    FillNulls,
    Filter,
    ImageOptions,
    MapBatches,
    PreparedSource,
    PrepareOptions,
    Rename,
    Select,
    Size,
    Step,
    open_prepared,
    parse_encoding,
    parse_size,
)
from ringfeed.sharding.prepare.image_transform import transform_all
from ringfeed.sharding.sources import Source, open_source
from ringfeed.sharding.sources.images import image_files as images_module
from tests.helpers.builds import built
from tests.helpers.files import contents

SIZES = {"cat/1.png": (9, 7), "cat/2.jpg": (40, 20), "dog/3.png": (5, 7), "dog/4.png": (64, 48), "fox/5.png": (6, 6)}


def picture(width: int, height: int, form: str = "PNG", mode: str = "RGB", **words: Any) -> bytes:
    """Smooth, so that resizing and lossy formats keep its colours; the left is dark and the right is light."""
    ramp = np.linspace(0, 255, width).astype(np.uint8)
    out = BytesIO()
    Image.fromarray(np.tile(ramp, (height, 1))).convert("RGB").convert(mode).save(out, form, **words)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for name, (width, height) in SIZES.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(width, height, "JPEG" if name.endswith("jpg") else "PNG"))
    return str(tmp_path / "photos")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read."""
    found: list[str] = []
    read = images_module._read_local

    def watched(paths: list[str], sizes: Any) -> Any:
        found.extend(path.rpartition("/photos/")[2] for path in paths)
        return read(paths, sizes)

    monkeypatch.setattr(images_module, "_read_local", watched)
    return found


def source_of(url: str, *steps: Step, label: str | None = None, **options: Any) -> Source:
    return open_prepared(url, label, "auto", PrepareOptions(steps=steps, **options))


def records(source: Source) -> list[dict[str, Any]]:
    found, labels = [], []
    for part in source.parts:
        labels += [value for batch in source.labels(part) for value in batch.to_pylist()]
        for draft in source.drafts(part):
            batch = source.complete(draft)
            assert batch.schema.equals(source.schema.arrow, check_metadata=True)
            found += batch.to_pylist()
    if source.schema.label is not None:
        assert labels == [row[source.schema.label] for row in found]
    return found


def size_of(data: bytes) -> tuple[int, int]:
    with Image.open(BytesIO(data)) as image:
        return image.size


# --- steps and images that are read late -------------------------------------------------------------------------


def test_steps_on_known_columns_read_no_image_file(folder: str, reads: list[str]) -> None:
    steps = [
        Filter("label != 'fox' and path != 'cat/1.png'"),
        Rename((("image", "photo"), ("label", "animal"), ("path", "height"), ("height", "path"))),
        Cast((("path", "float32"),)),
        Select(("animal", "path", "photo", "height")),
    ]
    source = source_of(folder, *steps)
    assert source.schema.label == "animal"
    drafts = [batch for part in source.parts for batch in source.drafts(part)]
    assert [v for part in source.parts for b in source.labels(part) for v in b.to_pylist()] == ["cat", "dog", "dog"]
    assert reads == []
    rows = [row for batch in drafts for row in source.complete(batch).to_pylist()]
    assert [(row["height"], row["path"], size_of(row["photo"])) for row in rows] == [
        (name, float(SIZES[name][1]), SIZES[name]) for name in ("cat/2.jpg", "dog/3.png", "dog/4.png")
    ]
    assert source.schema["photo"].encoding == "image"
    assert reads == ["cat/2.jpg", "dog/3.png", "dog/4.png"]


def test_the_path_column_may_be_dropped(folder: str) -> None:
    assert [size_of(row["image"]) for row in records(source_of(folder, Drop(("path", "height"))))] == list(
        SIZES.values()
    )
    assert records(source_of(folder, Select(("image",)), label=None))[0].keys() == {"image"}


def test_no_image_file_is_read_if_no_image_is_kept(folder: str, reads: list[str]) -> None:
    assert records(source_of(folder, Select(("label", "path"))))[-1] == {"label": "fox", "path": "fox/5.png"}
    assert reads == []


@pytest.mark.parametrize(
    "steps",
    [
        [Filter("height < 20 and label != 'fox'")],
        [Rename((("height", "h"),)), Filter("h < 20"), Filter("label != 'fox'"), Rename((("h", "height"),))],
        [FillNulls((("height", "0"),)), DropNulls(), Filter("height < 20"), Filter("label != 'fox'")],
    ],
)
def test_rows_may_be_filtered_by_image_columns(folder: str, steps: list[Step]) -> None:
    rows = records(source_of(folder, *steps))
    assert [row["path"] for row in rows] == ["cat/1.png", "dog/3.png"]
    assert [size_of(row["image"]) for row in rows] == [(9, 7), (5, 7)]


def test_a_function_sees_whole_records(folder: str, tmp_path: Path) -> None:
    (tmp_path / "image_functions.py").write_text(
        "import pyarrow.compute as pc\n"
        "def wide(batch):\n"
        "    batch = batch.filter(pc.greater(batch['width'], batch['height']))\n"
        "    return batch.append_column('file_bytes', pc.binary_length(batch['image']))\n"
    )
    steps = [MapBatches(function="image_functions:wide", folder=str(tmp_path)), Drop(("path",))]
    source = source_of(folder, *steps, label="class")
    assert source.schema["image"].encoding == "image"
    rows = records(source)
    assert [(row["class"], row["width"]) for row in rows] == [("cat", 9), ("cat", 40), ("dog", 64)]
    assert all(row["file_bytes"] == len(row["image"]) for row in rows)


def test_the_label_may_come_from_image_columns(folder: str) -> None:
    source = PreparedSource.over(open_source(folder, None), [Cast((("height", "string"),))], "height")
    assert [row["height"] for row in records(source)] == ["7", "20", "7", "48", "6"]


def test_large_images_are_completed_in_small_slices(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringfeed.sharding.sources.base._FIRST_SLICE", 1)
    monkeypatch.setattr("ringfeed.sharding.sources.base.BATCH_BYTES", 1)
    source = source_of(folder, Filter("height > 0"))
    assert [batch.num_rows for part in source.parts for batch in source.drafts(part)] == [1] * 5
    assert len(records(source)) == 5


def test_a_build_of_prepared_images_is_whole_and_the_same_on_two_workers(folder: str, tmp_path: Path) -> None:
    prepare = PrepareOptions(
        steps=(Filter("label != 'fox'"),), images=ImageOptions(size=Size(width=4), encoding=parse_encoding("jpeg:80"))
    )
    for workers in (1, 2):
        manifest = built(folder, tmp_path / str(workers), workers=workers, prepare=prepare).manifest
        assert (manifest.classes, manifest.records) == (("cat", "dog"), 4)
        assert manifest.options["prepare"]["images"] == "--resize 4 --encode jpeg:80"
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert verify(str(tmp_path / "1")) == []
    statistics = open_dataset(str(tmp_path / "1")).manifest.split("train").statistics
    assert (statistics["height"].min, statistics["height"].max) == (4, 6)


# --- sizes ---------------------------------------------------------------------------------------------------------


def test_sizes_are_updated_under_any_column_name(folder: str) -> None:
    images = ImageOptions(size=Size(width=10))
    rows = records(source_of(folder, Rename((("height", "h"), ("width", "w"))), Cast((("h", "int64"),)), images=images))
    assert [(row["w"], row["h"]) for row in rows] == [size_of(row["image"]) for row in rows]
    assert [(row["w"], row["h"]) for row in rows] == [(13, 10), (20, 10), (10, 14), (13, 10), (10, 10)]
    rows = records(source_of(folder, Drop(("width",)), images=images))
    assert [row["height"] for row in rows] == [10, 10, 14, 10, 10]


@pytest.mark.parametrize("columns", [("height", "width"), ("height",)])
def test_a_column_with_another_height_is_left_alone(tmp_path: Path, columns: tuple[str, ...]) -> None:
    told = {"height": [180, 7, 7], "width": [9, 9, 80]}
    table = pa.table({"photo": [picture(9, 7), picture(9, 7), None], **{name: told[name] for name in columns}})
    pq.write_table(table, tmp_path / "people.parquet")
    features = {"photo": Feature(name="photo", dtype="binary", encoding="image")}
    source = source_of(str(tmp_path / "people.parquet"), features=features, images=ImageOptions(size=Size(width=14)))
    rows = records(source)
    assert [row["height"] for row in rows] == ([180, 14, 7] if len(columns) == 2 else [180, 7, 7])
    assert [row["photo"] is None for row in rows] == [False, False, True]


@pytest.mark.parametrize(
    ("others", "height", "width"), [((), "height", "width"), (("height",), "photo_height", "photo_width")]
)
def test_sizes_are_added_where_no_columns_hold_them(
    tmp_path: Path, others: tuple[str, ...], height: str, width: str
) -> None:
    table = pa.table({"photo": [picture(9, 7), None, picture(9, 18)], **{name: ["tall"] * 3 for name in others}})
    pq.write_table(table, tmp_path / "people.parquet")
    features = {"photo": Feature(name="photo", dtype="binary", encoding="image")}
    source = source_of(str(tmp_path / "people.parquet"), features=features, images=ImageOptions(size=Size(width=14)))
    assert source.schema.names == ("photo", *others, height, width)
    assert [(row[height], row[width]) for row in records(source)] == [(14, 18), (None, None), (28, 14)]


def test_sizes_of_several_images_get_separate_columns(tmp_path: Path) -> None:
    table = pa.table({"left": [picture(9, 7)], "right": [picture(7, 9)], "height": [7], "width": [9]})
    pq.write_table(table, tmp_path / "pairs.parquet")
    features = {name: Feature(name=name, dtype="binary", encoding="image") for name in ("left", "right")}
    images = ImageOptions(encoding=parse_encoding("png"))
    (row,) = records(source_of(str(tmp_path / "pairs.parquet"), features=features, images=images))
    sizes = {name: value for name, value in row.items() if name not in ("left", "right")}
    assert sizes == {
        "height": 7, "width": 9, "left_height": 7, "left_width": 9, "right_height": 9, "right_width": 7,
    }  # fmt: skip


@pytest.mark.parametrize("names", [("photo",), ("photo", "mask")])
def test_sizes_that_a_build_stored_follow_when_its_images_are_resized_again(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    table = pa.table({"height": ["tall"] * 4, **{name: [picture(18, 14)] * 4 for name in names}})
    pq.write_table(table, tmp_path / "people.parquet")
    features = {name: Feature(name=name, dtype="binary", encoding="image") for name in names}
    once = PrepareOptions(features=features, images=ImageOptions(size=Size(width=7)))
    first = built(str(tmp_path / "people.parquet"), tmp_path / "a", shards=1, prepare=once)
    again = PrepareOptions(images=ImageOptions(size=Size(width=6, height=5)))
    second = built(str(tmp_path / "a"), tmp_path / "b", shards=1, prepare=again)
    assert second.manifest.schema == first.manifest.schema
    for dataset, size in ((first, (9, 7)), (second, (6, 5))):
        for row in read_records(dataset, "train", 9):
            assert [(row[f"{name}_width"], row[f"{name}_height"]) for name in names] == [size] * len(names)
            assert [size_of(row[name]) for name in names] == [size] * len(names)


def test_a_column_that_clashes_with_the_sizes_is_named(tmp_path: Path) -> None:
    names = ("height", "photo_width")
    table = pa.table({"photo": [picture(9, 7)], **{name: ["tall"] for name in names}})
    pq.write_table(table, tmp_path / "people.parquet")
    features = {"photo": Feature(name="photo", dtype="binary", encoding="image")}
    images = ImageOptions(size=Size(width=14))
    with pytest.raises(ConfigError, match=r"--resize 14: .* 'photo_width' is another column; .* --rename photo_width="):
        source_of(str(tmp_path / "people.parquet"), features=features, images=images)


def test_the_sizes_may_be_all_that_is_kept(folder: str, tmp_path: Path) -> None:
    prepare = PrepareOptions(steps=(Select(("height", "width")),))
    dataset = built(folder, tmp_path / "out", shards=1, prepare=prepare)
    assert dataset.manifest.layout is None
    found = [(row["width"], row["height"]) for row in read_records(dataset, "train", 9)]
    assert sorted(found) == sorted(SIZES.values())


def test_dropped_sizes_stay_dropped(folder: str) -> None:
    source = source_of(folder, Drop(("height", "width")), images=ImageOptions(size=Size(width=14)))
    assert source.schema.names == ("image", "label", "path")


def test_sizes_that_do_not_fit_their_column_are_an_error(folder: str) -> None:
    source = source_of(folder, Cast((("width", "int8"),)), images=ImageOptions(size=Size(width=130, height=5)))
    with pytest.raises(SourceError, match="'width' of type int8 cannot hold the new sizes"):
        records(source)


def test_resizing_without_images_is_an_error(parquet: str) -> None:
    with pytest.raises(ConfigError, match="no column holds images"):
        source_of(parquet, images=ImageOptions(size=Size(width=4)))


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 600))
def test_the_shorter_side_is_exact_and_the_ratio_kept(width: int, height: int, shorter: int) -> None:
    new = Size(width=shorter).of(width, height)
    assert min(new) == shorter
    assert 2 * abs(max(new) * min(width, height) - shorter * max(width, height)) <= min(width, height)


@pytest.mark.parametrize("text", ["", "x", "0", "256x", "x256", "-5", "2.5", "1000000", "256X256", "٣"])
def test_no_size_is_guessed(text: str) -> None:
    with pytest.raises(ConfigError, match="a size must be the shorter side"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "gif", "jpeg:", "jpeg:0", "jpeg:101", "png:9", "webp:x", "jpeg:9.5"])
def test_no_format_is_guessed(text: str) -> None:
    with pytest.raises(ConfigError, match="an encoding must be"):
        parse_encoding(text)


# --- pixels ----------------------------------------------------------------------------------------------------------


def transformed(data: bytes, size: str | None = None, encoding: str | None = None) -> Image.Image:
    options = ImageOptions(
        size=None if size is None else parse_size(size), encoding=None if encoding is None else parse_encoding(encoding)
    )
    (new,) = transform_all([data], options, str)
    assert new is not None
    image = Image.open(BytesIO(new.data))
    image.load()
    assert image.size == (new.width, new.height)
    return image


def sixteen_bits(form: str) -> bytes:
    out = BytesIO()
    ramp = np.linspace(0, 65535, 40).astype(np.uint16)
    Image.fromarray(np.tile(ramp, (20, 1))).save(out, form)
    return out.getvalue()


def palette_with_transparency() -> bytes:
    image = Image.new("P", (40, 20), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.paste(0, (0, 0, 20, 20))
    out = BytesIO()
    image.save(out, "PNG", transparency=0)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "format_", "mode"),
    [
        (lambda: picture(40, 20), "PNG", "RGB"),
        (lambda: picture(40, 20, "JPEG"), "JPEG", "RGB"),
        (lambda: picture(40, 20, "JPEG", "L"), "JPEG", "L"),
        (lambda: picture(40, 20, "JPEG", "CMYK"), "JPEG", "RGB"),
        (lambda: picture(40, 20, "WEBP"), "WEBP", "RGB"),
        (lambda: picture(40, 20, "GIF", "P"), "PNG", "RGB"),
        (lambda: picture(40, 20, "BMP"), "PNG", "RGB"),
        (lambda: picture(40, 20, "PNG", "P"), "PNG", "RGB"),
        (lambda: picture(40, 20, "PNG", "RGBA"), "PNG", "RGBA"),
        (lambda: picture(40, 20, "PNG", "LA"), "PNG", "LA"),
        (lambda: picture(40, 20, "PNG", "1"), "PNG", "L"),
        (palette_with_transparency, "PNG", "RGBA"),
        (lambda: sixteen_bits("PNG"), "PNG", "I;16"),
    ],
)
@pytest.mark.parametrize("encoding", [None, "jpeg", "png", "webp:90"])
def test_every_mode_can_be_stored_in_every_format(
    data: Callable[[], bytes], format_: str, mode: str, encoding: str | None
) -> None:
    image = transformed(data(), "20x10", encoding)
    assert image.size == (20, 10)
    assert image.format == (format_ if encoding is None else encoding.partition(":")[0].upper())
    if image.format == format_ == "PNG":
        assert image.mode == mode
    assert image.mode != "CMYK"
    if data is not palette_with_transparency:
        dark, light = (float(np.asarray(image.convert("F"))[5, x]) for x in (1, 18))
        full = 65535 if image.mode == "I;16" else 255
        assert dark < 0.2 * full
        assert light > 0.8 * full


def test_transparency_becomes_white_in_jpeg() -> None:
    image = transformed(palette_with_transparency(), None, "jpeg:95")
    left, right = (np.asarray(image)[10, x].astype(int) for x in (3, 36))
    assert np.abs(left - 255).max() < 12
    assert np.abs(right - [200, 100, 50]).max() < 12


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [None, "10", "20x10"])
def test_images_are_turned_upright(form: str, orientation: int, size: str | None) -> None:
    """What is seen is light in its upper left corner alone, however it is stored."""
    seen = np.zeros((40, 80, 3), np.uint8)
    seen[:20, :40] = 255
    stored = {
        1: seen, 2: seen[:, ::-1], 3: seen[::-1, ::-1], 4: seen[::-1], 5: seen.swapaxes(0, 1),
        6: np.rot90(seen), 7: np.rot90(seen, 2).swapaxes(0, 1), 8: np.rot90(seen, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = BytesIO()
    Image.fromarray(np.ascontiguousarray(stored)).save(out, form, exif=exif, quality=95)
    image = transformed(out.getvalue(), size, "png")
    assert image.size == ((80, 40) if size is None else (20, 10))
    pixels = np.asarray(image).mean(axis=2)
    height, width = pixels.shape
    means = [pixels[y : y + height // 2, x : x + width // 2].mean() for y in (0, height // 2) for x in (0, width // 2)]
    assert means[0] > 230
    assert max(means[1:]) < 25
    assert image.getexif().get(0x0112, 1) == 1
    unsized = next(transform_all([out.getvalue()], ImageOptions(size=Size(width=80, height=40)), str))
    assert unsized is not None
    assert (unsized.data == out.getvalue()) == (orientation == 1)


def test_colours_keep_their_profile_and_comments_go() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = picture(40, 20, "JPEG", icc_profile=profile, comment=b"made here")
    for encoding in ("jpeg", "png", "webp"):
        image = transformed(data, "10", encoding)
        assert image.info["icc_profile"] == profile
        assert "comment" not in image.info
    assert "icc_profile" not in transformed(picture(40, 20, "JPEG", "CMYK", icc_profile=profile), "10").info


@pytest.mark.parametrize("mode", ["P", "LA", "1", "I;16"])
def test_palettes_and_greys_keep_their_profile(mode: str) -> None:
    profile = b"\0" * 16 + (b"RGB " if mode == "P" else b"GRAY") + b"\0" * 20
    image = Image.fromarray(np.arange(800, dtype=np.uint16).reshape(20, 40)) if mode == "I;16" else None
    image = image or Image.open(BytesIO(picture(40, 20))).convert(mode)
    out = BytesIO()
    image.save(out, "PNG", icc_profile=profile)
    for encoding in ("jpeg", "png"):
        assert transformed(out.getvalue(), "10", encoding).info["icc_profile"] == profile
    assert ("icc_profile" in transformed(out.getvalue(), "10", "webp").info) == (mode == "P")  # WebP has no grey


def test_an_upright_image_of_the_requested_size_is_unchanged() -> None:
    for data in (picture(40, 20, "JPEG"), picture(40, 20, "GIF", "P")):
        (new,) = transform_all([data], ImageOptions(size=Size(width=20)), str)
        assert new is not None
        assert (new.data, new.width, new.height) == (data, 40, 20)


def test_bytes_do_not_depend_on_the_other_images() -> None:
    images = [picture(40 + i, 30, form) for i, form in enumerate(["PNG", "JPEG", "WEBP"] * 6)]
    options = ImageOptions(size=Size(width=12), encoding=parse_encoding("webp"))
    together = [new.data for new in transform_all([*images], options, str) if new]
    alone = [new.data for image in images for new in transform_all([image], options, str) if new]
    assert together == alone


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (lambda: picture(40, 20, "JPEG")[:-200], "truncated"),
        (lambda: b"no image", "no known image format"),
        (lambda: b"", "no known image format"),
    ],
)
def test_a_damaged_image_is_named(data: Callable[[], bytes], told: str) -> None:
    with pytest.raises(SourceError, match=f"(?i)cat/7.jpg: the image cannot be prepared .*{told}") as error:
        list(transform_all([data()], ImageOptions(size=Size(width=4)), lambda _: "cat/7.jpg"))
    assert "\n" not in str(error.value)
    assert "0x" not in str(error.value)


def test_a_strip_is_not_resized_beyond_the_longest_side() -> None:
    with pytest.raises(SourceError, match="it would have 90000 x 300 pixels; a side may have at most 65500"):
        list(transform_all([picture(300, 1)], ImageOptions(size=Size(width=300)), str))


def test_grey_values_beyond_16_bits_are_refused() -> None:
    out = BytesIO()
    Image.fromarray(np.array([[0, 70_000]], np.int32)).save(out, "TIFF")
    with pytest.raises(SourceError, match="its grey values range from 0 to 70000, beyond 16 bits"):
        list(transform_all([out.getvalue()], ImageOptions(encoding=parse_encoding("png")), str))


def test_float_pixels_are_refused() -> None:
    out = BytesIO()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(out, "TIFF")
    with pytest.raises(SourceError, match="its pixels are floats"):
        list(transform_all([out.getvalue()], ImageOptions(encoding=parse_encoding("png")), str))
