"""A source that transforms its images when records are completed.

Tested in tests/sharding/prepare/test_image_transform.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ringfeed.sharding.compute.keyed_random import derive_key
from ringfeed.sharding.errors import ConfigError, SourceError
from ringfeed.sharding.schema import Feature, Schema
from ringfeed.sharding.sources.base import Source, WrappedSource, narrow_source

from .image_transform import ImageOptions, TransformedImage, transform_all


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource(WrappedSource):
    """A source that transforms every scalar column of encoding ``image``.

    Drafts are those of the inner source: an image is transformed once, for its shard, and `late_bytes` counts the
    bytes before that.

    Attributes:
        inner: source of the original images.
        options: transformation.
        columns: columns of images.
        sizes: for columns of images, the columns that hold their sizes, each with its side, ``height`` or ``width``.
            They are updated.
        added: for each column of images without such columns, its name and those of two new columns, for height and
            width.

    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from ringfeed.sharding.prepare import ImageOptions, PrepareOptions, Size, open_prepared
    >>> Path("photos/cat").mkdir(parents=True)
    >>> Image.new("RGB", (64, 48)).save("photos/cat/1.png")
    >>> options = PrepareOptions(images=ImageOptions(size=Size(width=24)))
    >>> type(open_prepared("photos", None, "auto", options)).__name__
    'ImageSource'
    """

    options: ImageOptions
    columns: tuple[str, ...]
    sizes: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    added: tuple[tuple[str, str, str], ...]

    @classmethod
    def over(
        cls, inner: Source, options: ImageOptions, *, height: str | None, width: str | None, left_out: bool = False
    ) -> ImageSource:
        """Find the columns of images and of their sizes.

        Args:
            inner: source of the original images.
            options: transformation.
            height: column that may hold the height of an image, or None.
            width: column that may hold the width of an image, or None.
            left_out: whether the steps dropped such columns, so that none are added.

        Raises:
            ConfigError: no column holds images, or another column has the name of one to add.
        """
        schema = inner.schema
        columns = tuple(f.name for f in schema.features if f.is_image)
        if not columns:
            raise ConfigError(
                f"{options.spec}: no column holds images; if one holds the bytes of image files, declare it in a "
                "--schema file: features: {NAME: {dtype: binary, encoding: image}}"
            )
        scalars = {feature.name for feature in schema.features if feature.shape == ()}
        plain = tuple((name, side) for name, side in ((height, "height"), (width, "width")) if name in scalars)
        sizes: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        added = []
        for column in columns:
            own = ((f"{column}_height", "height"), (f"{column}_width", "width"))
            pairs: list[tuple[tuple[str, str], ...]] = [own] if scalars.issuperset(name for name, _ in own) else []
            if plain and len(columns) == 1:
                pairs.append(plain)
            sizes += [(column, pair) for pair in pairs]
            if not pairs and not left_out:
                added.append(_sizes_of(column, columns, schema.names, options))
        return cls(inner=inner, options=options, columns=columns, sizes=tuple(sizes), added=tuple(added))

    @property
    def schema(self) -> Schema:
        """The schema of the inner source with the columns that are added."""
        inner = self.inner.schema
        names = [name for _, *sides in self.added for name in sides]
        sizes = tuple(Feature(name=name, dtype="int32") for name in names)
        return Schema(features=(*inner.features, *sizes), label=inner.label)

    @property
    def fingerprint(self) -> str:
        """A digest of the inner source and of the transformation."""
        return f"{derive_key(self.inner.fingerprint, self.options.spec):016x}"

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
            for _, sizes in (entry for entry in self.sizes if entry[0] == name):
                self._update_sizes(columns, images, sizes)
            for _, height, width in (entry for entry in self.added if entry[0] == name):
                columns[height] = pa.array([image and image.height for image in images], pa.int32())
                columns[width] = pa.array([image and image.width for image in images], pa.int32())
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema.arrow)

    def narrow(self, columns: Collection[str]) -> Source:
        """The inner source with these columns: same records, and nothing to complete."""
        return narrow_source(self.inner, columns)

    def _update_sizes(
        self, columns: dict[str, pa.Array], images: list[TransformedImage | None], sizes: tuple[tuple[str, str], ...]
    ) -> None:
        """Replace old sizes by new ones, in each record whose columns hold the old size; others hold something else."""
        before = {name: columns[name].to_pylist() for name, _ in sizes}
        after = {name: list(values) for name, values in before.items()}
        for i, image in enumerate(images):
            if image is None:
                continue
            stored = tuple(before[name][i] for name, _ in sizes)
            if any(stored == _sides(sizes, size) for size in image.sizes_before):
                new = _sides(sizes, (image.width, image.height))
                for (name, _), value in zip(sizes, new, strict=True):
                    after[name][i] = value
        for name, values in after.items():
            try:
                columns[name] = pa.array(values, columns[name].type)
            except (pa.ArrowInvalid, OverflowError) as error:
                raise SourceError(
                    f"{self.options.spec}: column {name!r} of type {columns[name].type} cannot hold the new sizes; "
                    "cast it to int32"
                ) from error


def _sizes_of(column: str, images: Sequence[str], taken: Sequence[str], options: ImageOptions) -> tuple[str, str, str]:
    """A column of images, and the names of the columns to add for height and width."""
    sides = ("height", "width")
    if len(images) > 1 or not set(sides).isdisjoint(taken):
        sides = (f"{column}_height", f"{column}_width")
    if other := next((name for name in sides if name in taken), None):
        raise ConfigError(
            f"{options.spec}: the sizes of {column!r} are stored in {' and '.join(sides)}, but {other!r} is another "
            f"column; rename it with --rename {other}=NAME, or drop it with --drop-columns {other}"
        )
    return (column, *sides)


def _sides(sizes: Sequence[tuple[str, str]], size: tuple[int, int]) -> tuple[int, ...]:
    return tuple(size[side == "height"] for _, side in sizes)
