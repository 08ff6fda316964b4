"""Turn gathered columns into the batches that a program trains on: `tf.data` or NumPy.

Tested in tests/pipeline/deliver/test_to_tensorflow.py.
"""

__all__: list[str] = []
