"""Turn gathered columns into the batches that a program trains on: `tf.data` or NumPy."""

__all__: list[str] = []
