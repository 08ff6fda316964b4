"""`make demo`: real data from source to trained models, reported on one HTML page."""

__all__: list[str] = []
