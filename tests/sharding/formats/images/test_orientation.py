"""Images that EXIF says to turn are found, as Pillow finds them."""

from io import BytesIO

import pytest
from PIL import Image

from ringfeed.sharding.formats.images.orientation import is_rotated


def encoded(form: str, orientation: int | None) -> bytes:
    exif, out = Image.Exif(), BytesIO()
    exif[0x010F] = "a camera"
    if orientation is not None:
        exif[0x0112] = orientation
    Image.new("RGB", (40, 30)).save(out, form, exif=exif)
    return out.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [None, *range(1, 9), 0, 9])
def test_every_orientation_but_upright_is_found(form: str, orientation: int | None) -> None:
    assert is_rotated(encoded(form, orientation)) == (orientation in range(2, 9))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_files_without_exif_and_cut_files_are_upright(form: str) -> None:
    out = BytesIO()
    Image.new("RGB", (40, 30)).save(out, form)
    assert not is_rotated(out.getvalue())
    turned = encoded("JPEG", 6)
    start = turned.index(b"Exif")
    assert not any(is_rotated(turned[:end]) for end in range(start + 20))


def test_both_byte_orders_are_read() -> None:
    big = b"\xff\xd8\xff\xe1\0\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0"
    assert is_rotated(big)
    assert is_rotated(
        big.replace(
            b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06",
            b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0",
        )
    )
