"""TensorFlow's own distribution strategies."""

__all__: list[str] = []
