"""Sizes of many JPEG files at once: usual files are known, and every known size is right."""

from io import BytesIO

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ringfeed.sharding.formats.images.jpeg_headers import plain_jpeg_sizes
from ringfeed.sharding.formats.images.sizes import check_image


def jpeg(width: int, height: int, **options: object) -> bytes:
    out = BytesIO()
    Image.new("RGB", (width, height)).save(out, "JPEG", **options)
    return out.getvalue()


PLAIN = [jpeg(3, 5), jpeg(300, 7, progressive=True), jpeg(70, 400, comment=b"x" * 5000)]


def sizes(files: list[bytes]) -> list[tuple[int, int] | None]:
    bounds = np.cumsum([0, *map(len, files)])
    found, known = plain_jpeg_sizes(np.frombuffer(b"".join(files), np.uint8), bounds)
    return [tuple(size) if sure else None for size, sure in zip(found.tolist(), known.tolist(), strict=True)]


def test_usual_files_are_known_among_others() -> None:
    files = [PLAIN[0], b"", b"\xff\xd8", PLAIN[1], PLAIN[0][:-1], b"GIF89a......................", PLAIN[2]]
    assert sizes(files) == [(5, 3), None, None, (7, 300), None, None, (400, 70)]
    assert sizes([]) == []


@given(which=st.integers(0, 2), at=st.integers(0, 800), byte=st.integers(0, 255), end=st.integers(0, 3000))
def test_sizes_of_damaged_files_agree_with_the_single_file_reader(which: int, at: int, byte: int, end: int) -> None:
    data = bytearray(PLAIN[which])
    data[at % len(data)] = byte
    files = [bytes(data), bytes(data[:end]), bytes(data[:end]) + b"\xff\xd9"]
    for file, size in zip(files, sizes(files), strict=True):
        assert size is None or size == check_image(file)
