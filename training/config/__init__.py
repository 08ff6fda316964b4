"""The configuration of a run, from YAML and the command line, checked before TensorFlow is imported."""

__all__: list[str] = []
