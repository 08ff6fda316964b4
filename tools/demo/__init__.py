"""`make demo`: real data, from source to trained model, on one HTML page."""

__all__: list[str] = []
