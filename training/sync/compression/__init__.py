"""Gradients in fewer bytes: codecs of one tensor, and the synchronizers that exchange what they encode."""

__all__: list[str] = []
