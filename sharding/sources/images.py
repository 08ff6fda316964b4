"""Image class folders: one folder a class, the files in it its images, stored as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

import fsspec
import pyarrow as pa
from PIL import Image

from ..errors import SourceError
from ..schema import Feature, Schema
from .base import Part, Reject, fail_on_bad, fingerprint_files, list_files, read_files

__all__ = ["SUFFIXES", "ImageFolderSource"]

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")
_PART_FILES = 4096
_SAMPLE_FILES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSource:
    """A source of image files; the label is the name of the folder. A part is a run of files.

    The records: ``image`` (the file's bytes), ``height``, ``width``, the label, and ``path`` within the folder.
    """

    url: str
    root: str
    schema: Schema
    parts: tuple[Part, ...]
    fingerprint: str

    @classmethod
    def open(cls, url: str, label: str | None) -> ImageFolderSource:
        """List the folder.

        Raises:
            SourceError: there is no image, or one lies in no class folder.
        """
        files = list_files(url, SUFFIXES)
        if not files:
            raise SourceError(f"there is no image ({', '.join(SUFFIXES)}) at {url}")
        fs, path = fsspec.url_to_fs(url)
        root = str(fs.unstrip_protocol(path)).rstrip("/")
        names = tuple(file.url[len(root) + 1 :] for file in files)
        if not all(file.url.startswith(root + "/") for file in files):
            raise SourceError(f"{url} is no folder; name the one that holds the class folders")
        for name in names:
            if "/" not in name:
                raise SourceError(f"{root}/{name} lies in no class folder; expected {root}/CLASS/{name}")
        chunks = [names[start : start + _PART_FILES] for start in range(0, len(names), _PART_FILES)]
        return cls(
            url=url,
            root=root,
            schema=_schema(label or "label"),
            parts=tuple(Part(path=chunk[0], pieces=chunk) for chunk in chunks),
            fingerprint=fingerprint_files(files),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """The folders' names; no file is opened."""
        yield pa.array([name.partition("/")[0] for name in part.pieces], pa.string())

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Label and path."""
        labels = next(self.labels(part))
        yield pa.RecordBatch.from_arrays(
            [labels, pa.array(part.pieces, pa.string())], names=[self.schema.label, "path"]
        )

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """The first files; they are to be opened one by one, so a few have to do."""
        return next(self.drafts(part)).slice(0, min(records, _SAMPLE_FILES))

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Read the files, and check that each is a whole image."""
        paths = [f"{self.root}/{name}" for name in drafts.column("path").to_pylist()]
        images = read_files(paths)
        sizes = [_check(path, data) for path, data in zip(paths, images, strict=True)]
        columns = {
            "image": pa.array(images, pa.binary()),
            "height": pa.array([height for height, _ in sizes], pa.int32()),
            "width": pa.array([width for _, width in sizes], pa.int32()),
            str(self.schema.label): drafts.column(str(self.schema.label)),
            "path": drafts.column("path"),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)


def _schema(label: str) -> Schema:
    return Schema(
        features=(
            Feature(name="image", dtype="binary", encoding="image"),
            Feature(name="height", dtype="int32"),
            Feature(name="width", dtype="int32"),
            Feature(name=label, dtype="string"),
            Feature(name="path", dtype="string"),
        ),
        label=label,
    )


def _check(path: str, data: bytes) -> tuple[int, int]:
    """Height and width.

    Raises:
        SourceError: the file is no image, or is cut short or damaged as far as its format can tell.
    """
    try:
        with Image.open(BytesIO(data)) as image:
            width, height = image.size
            if image.format == "PNG":
                image.verify()  # walks all chunks and their CRCs
            elif image.format == "JPEG":
                if data.rstrip(b"\0\n\r ")[-2:] != b"\xff\xd9":
                    raise SourceError("it has no end-of-image marker")
            else:
                image.load()
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ...
        detail = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{path}: the image is damaged or cut short ({detail}); mend or remove it") from error
    return height, width
