"""Folders of images, one for each class; the files are stored as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ringfeed.sharding.errors import SourceError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import Part, Reject, fail_on_bad
from ringfeed.sharding.sources.files.find import fingerprint_files, require_files, root_of, split_chain
from ringfeed.sharding.sources.files.http_listing import decode_name, encode_name, is_web
from ringfeed.sharding.sources.files.open import stat_files
from ringfeed.sharding.sources.files.snapshot import SourceFile

from .image_files import IMAGE_FEATURES, ImageCheck, find_bad_files, image_fault, read_images

_PART_FILES = 4096
_SAMPLE_FILES = 16
_BYTES = "\0bytes"  # column of the drafts; the zero byte keeps its name apart from the label's


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSource:
    """A source of image files, labelled by the names of their folders.

    The columns are ``image`` (the file's bytes), ``height``, ``width``, the label, and ``path`` within the root folder.
    A part is a run of files; its pieces are their names and their sizes in bytes.
    """

    # Pillow reads the last three only with plugins: such files are refused, or bad records, but not left out silently.
    suffixes: ClassVar[tuple[str, ...]] = (
        ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".jp2", ".j2k", ".avif",
        ".ppm", ".pgm", ".pbm", ".pnm", ".heic", ".heif", ".jxl",
    )  # fmt: skip
    reads_late: ClassVar[bool] = True

    url: str
    root: str  # URL of the folder that contains the class folders, with a slash at the end
    schema: Schema
    parts: tuple[Part, ...]
    fingerprint: str

    @classmethod
    def open(
        cls, url: str, label: str | None, files: Sequence[SourceFile] | None = None, *, unlabelled: bool = False
    ) -> ImageFolderSource:
        """List the folder; see `open_source`.

        The root of a glob is its last folder before the first pattern. `files` are the files, if listed already. Where
        they are `unlabelled`, they may lie in no class folder, and their label is empty.

        Raises:
            SourceError: there is no image, or an image lies outside of class folders.
            RangesError: a web server does not give the size of an image.
        """
        files = files or require_files(url, cls.suffixes, "image")
        root = root_of(url, [file.url for file in files])
        names = tuple(decode_name(root, split_chain(file.url)[0].removeprefix(root)) for file in files)
        for name in names:
            if "/" not in name and not unlabelled:
                raise SourceError(
                    f"{root}{name} lies in no class folder; move it to {root}CLASS/{name}, or name the folder above"
                )
        stat_files([file.url for file in files if is_web(file.url) and not file.bytes])  # refuses unknown sizes
        sizes = tuple(file.bytes for file in files)
        runs = [slice(start, start + _PART_FILES) for start in range(0, len(names), _PART_FILES)]
        return cls(
            url=url,
            root=root,
            schema=_schema(label or "label"),
            parts=tuple(Part(path=names[run.start], pieces=(names[run], sizes[run])) for run in runs),
            fingerprint=fingerprint_files(files, names),
        )

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Return the names of the class folders; no file is opened."""
        yield pa.array([name.rpartition("/")[0].partition("/")[0] for name in part.pieces[0]], pa.string())

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Return the label, the path, and the listed size of each file."""
        labels, (names, sizes) = next(self.labels(part)), part.pieces
        columns = [labels, pa.array(names, pa.string()), pa.array(sizes, pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, names=[self.schema.label, "path", _BYTES])

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """Return drafts of the first files: only a few, as each image costs a request."""
        return next(self.drafts(part)).slice(0, min(records, _SAMPLE_FILES))

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Read the files, and check that each is a whole image of the listed size."""
        columns = read_images(self._urls(drafts.column("path").to_pylist()), drafts.column(_BYTES).to_numpy())
        columns |= {name: drafts.column(name) for name in (str(self.schema.label), "path")}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Return the listed sizes of the files."""
        sizes: npt.NDArray[np.int64] = drafts.column(_BYTES).to_numpy()
        return sizes

    def files(self, part: Part, positions: npt.NDArray[np.int64]) -> list[str]:
        """Return the URLs of the files of records; see `record_files`."""
        return self._urls([part.pieces[0][position] for position in positions.tolist()])

    def check(self, part: Part, reject: Reject, fault: ImageCheck = image_fault) -> Iterator[pa.Array]:
        names, sizes = part.pieces
        yield from find_bad_files(self._urls(names), sizes, reject, fault)

    def _urls(self, names: Sequence[str]) -> list[str]:
        chain = split_chain(self.url)[1]
        return [f"{self.root}{encode_name(self.root, name)}{chain}" for name in names]


def _schema(label: str) -> Schema:
    if label in ("image", "height", "width", "path"):
        raise SourceError(
            f"{label!r} is a column that image folders have anyway; the label is the name of the class folder, so "
            "--label must give it another name"
        )
    return Schema(
        features=(*IMAGE_FEATURES, Feature(name=label, dtype="string"), Feature(name="path", dtype="string")),
        label=label,
    )
