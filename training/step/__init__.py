"""What happens in a step: gradients, their exchange and the update."""

__all__: list[str] = []
