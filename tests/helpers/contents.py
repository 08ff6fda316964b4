"""What a source holds, as its parts give it."""

from typing import Any

from ringfeed.sharding.sources import Source


def records(source: Source, **options: Any) -> list[dict[str, Any]]:
    """As they are first read, which may be without what is read last, such as images."""
    return [row for part in source.parts for batch in source.drafts(part, **options) for row in batch.to_pylist()]


def completed(source: Source) -> list[dict[str, Any]]:
    """Records with all that they hold."""
    return [row for part in source.parts for batch in source.drafts(part) for row in source.complete(batch).to_pylist()]


def labels(source: Source, **options: Any) -> list[Any]:
    """The labels alone, as they are counted."""
    return [value for part in source.parts for batch in source.labels(part, **options) for value in batch.to_pylist()]


def kinds(source: Source) -> dict[str, tuple[str, tuple[int | None, ...], str]]:
    """Dtype, shape and encoding of each feature."""
    return {f.name: (f.dtype, f.shape, f.encoding) for f in source.schema.features}
