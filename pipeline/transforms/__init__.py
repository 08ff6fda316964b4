"""Transforms of batches: decode and augment images, scale columns, mix samples, pad lists."""

__all__: list[str] = []
