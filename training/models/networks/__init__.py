"""The built-in networks, one idea a file.

Tested in tests/training/models/networks/test_image_models.py and tests/training/models/test_models.py.
"""

__all__: list[str] = []
