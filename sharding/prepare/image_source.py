"""A source whose images are transformed as its records are completed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import ConfigError, SourceError
from ..keyed import derive_key
from ..schema import Schema
from ..sources.base import Part, Reject, Source, fail_on_bad, late_bytes
from .images import ImageOptions, NewImage, transform_all
from .source import narrowed

__all__ = ["ImageSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """A source of transformed images: every scalar column of encoding ``image``.

    Attributes:
        inner: the source of what goes in.
        options: what to do.
        columns: of images.
        sizes: the columns that hold an image's height and its width; brought up to date where they do.
    """

    inner: Source
    options: ImageOptions
    columns: tuple[str, ...]
    sizes: tuple[tuple[str, str], ...]

    @classmethod
    def over(cls, inner: Source, options: ImageOptions, *, height: str | None, width: str | None) -> ImageSource:
        """Find the columns of images.

        Args:
            inner: the source of what goes in.
            options: what to do.
            height: the column that tells an image's height, if one may.
            width: and its width.

        Raises:
            ConfigError: no column holds images.
        """
        schema = inner.schema
        columns = tuple(f.name for f in schema.features if f.encoding == "image" and f.shape == ())
        if not columns:
            raise ConfigError(
                f"{options.spec}: no column holds images; if one holds the bytes of image files, say so in a --schema "
                "file: features: {NAME: {dtype: binary, encoding: image}}"
            )
        named = [(name, side) for name, side in ((height, "height"), (width, "width")) if name in schema.names]
        sizes = tuple((str(name), side) for name, side in named if schema[str(name)].shape == ())
        return cls(inner=inner, options=options, columns=columns, sizes=sizes if len(columns) == 1 else ())

    @property
    def url(self) -> str:
        """Where the inner source is."""
        return self.inner.url

    @property
    def schema(self) -> Schema:
        """That of the inner source: an image stays an image."""
        return self.inner.schema

    @property
    def parts(self) -> Sequence[Part]:
        """Those of the inner source."""
        return self.inner.parts

    @property
    def fingerprint(self) -> str:
        """Of the inner source and of what is done."""
        return f"{derive_key(self.inner.fingerprint, self.options.spec):016x}"

    def labels(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.Array]:
        """Those of the inner source."""
        return self.inner.labels(part, reject)

    def drafts(self, part: Part, reject: Reject = fail_on_bad) -> Iterator[pa.RecordBatch]:
        """Those of the inner source: images are transformed once, for the shard that they go to."""
        return self.inner.drafts(part, reject)

    def sample(self, part: Part, records: int) -> pa.RecordBatch:
        """That of the inner source."""
        return self.inner.sample(part, records)

    def complete(self, drafts: pa.RecordBatch) -> pa.RecordBatch:
        """Complete the drafts, then transform their images."""
        batch = self.inner.complete(drafts)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        paths = columns.get("path")
        for name in self.columns:

            def place(i: int, name: str = name) -> str:
                return f"column {name!r}, record {i} of a shard" if paths is None else str(paths[i].as_py())

            images = list(transform_all(columns[name].to_pylist(), self.options, place))
            columns[name] = pa.array([None if image is None else image.data for image in images], pa.binary())
            self._update_sizes(columns, images)
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)

    def late_bytes(self, part: Part, drafts: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """As of the inner source: the sizes of images before they are transformed."""
        return late_bytes(self.inner, part, drafts)

    def narrow(self, columns: Collection[str]) -> Source:
        """The inner source with these columns: it has the same records, and images are not to be completed then."""
        return narrowed(self.inner, columns)

    def _update_sizes(self, columns: dict[str, pa.Array], images: list[NewImage | None]) -> None:
        """Put new sizes where the old ones stand; a column that tells something else, under that name, is left."""
        before = {name: columns[name].to_pylist() for name, _ in self.sizes}
        after = {name: list(values) for name, values in before.items()}
        for i, image in enumerate(images):
            if image is None:
                continue
            told = tuple(before[name][i] for name, _ in self.sizes)
            if any(told == _sides(self.sizes, size) for size in image.sizes_before):
                new = _sides(self.sizes, (image.width, image.height))
                for (name, _), value in zip(self.sizes, new, strict=True):
                    after[name][i] = value
        for name, values in after.items():
            try:
                columns[name] = pa.array(values, columns[name].type)
            except (pa.ArrowInvalid, OverflowError) as error:
                raise SourceError(
                    f"{self.options.spec}: column {name!r} of type {columns[name].type} cannot hold the new sizes; "
                    "cast it to int32"
                ) from error


def _sides(sizes: Sequence[tuple[str, str]], size: tuple[int, int]) -> tuple[int, ...]:
    return tuple(size[side == "height"] for _, side in sizes)
