"""Sizes from image headers agree with Pillow, and incomplete files are refused."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, UnidentifiedImageError

from ringfeed.sharding.formats.images import sizes as module
from ringfeed.sharding.formats.images.sizes import check_image, image_size

MODES = [
    *(("JPEG", mode, options) for mode in ("L", "RGB", "CMYK") for options in ({}, {"progressive": True})),
    *(("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ("GIF", "P", {}),
    ("BMP", "RGB", {}),
    ("WEBP", "RGB", {}),
]


def encoded(form: str, mode: str, size: tuple[int, int], **options: Any) -> bytes:
    pixels = np.random.default_rng(sum(size)).integers(0, 256, (size[1], size[0], 3), np.uint8)
    out = BytesIO()
    image = Image.fromarray(pixels)
    (image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)).save(out, form, **options)
    return out.getvalue()


@pytest.mark.parametrize(("form", "mode", "options"), MODES)
@pytest.mark.parametrize("size", [(1, 1), (300, 2), (17, 260)])
def test_sizes_agree_with_pillow(form: str, mode: str, options: Any, size: tuple[int, int]) -> None:
    data = encoded(form, mode, size, **options)
    assert image_size(data) == size[::-1]
    assert check_image(memoryview(data)) == size[::-1]


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_usual_files_are_read_without_pillow(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(form, "RGB", (20, 10), **({"exif": Image.Exif()} if form == "JPEG" else {}))
    monkeypatch.setattr(module.Image, "open", None)
    assert check_image(data) == image_size(data) == (10, 20)


JPEG, PNG = encoded("JPEG", "RGB", (9, 7)), encoded("PNG", "P", (9, 7))


@pytest.mark.parametrize("data", [JPEG + b"\0\n", JPEG + b"a film", JPEG[:2] + b"\xff" + JPEG[2:], PNG + b"trailing"])
def test_harmless_faults_are_accepted_as_by_pillow(data: bytes) -> None:
    assert check_image(data) == (7, 9)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (JPEG[:-2], "no end-of-image marker"),
        (JPEG[:100], "."),
        (JPEG[:20] + b"\xff\xd9" + JPEG[20:-2], "."),
        (PNG[:-9], "."),
        (PNG[:-12], "."),
        (PNG.replace(b"IDAT", b"IDAX"), "."),
        (PNG.replace(b"PLTE", b"PLTX"), "."),
        (b"", "^it is in no known image format$"),
        (b"\xff\xd8", "."),
    ],
)
def test_incomplete_files_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_image(data)


@given(base=st.sampled_from([JPEG, PNG]), at=st.integers(0, 400), byte=st.integers(0, 255), end=st.integers(0, 2000))
def test_damage_never_crashes_nor_gives_another_size_than_pillow(base: bytes, at: int, byte: int, end: int) -> None:
    data = bytearray(base)
    data[at % len(data)] = byte
    data = bytes(data[: max(1, end)])
    try:
        found = check_image(data)
    except ValueError:
        return
    try:
        with Image.open(BytesIO(data)) as image:
            assert (image.height, image.width) == found
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError):  # a header that is read no further than its size
        assert data[:2] == b"\xff\xd8"
