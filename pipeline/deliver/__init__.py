"""From columns to the batches a program trains on: `tf.data` or NumPy."""

__all__: list[str] = []
