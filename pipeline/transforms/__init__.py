"""Transforms of batches: decode and augment images, scale columns, mix samples, pad lists.

Tested in tests/pipeline/transforms/test_numpy_images.py.
"""

__all__: list[str] = []
