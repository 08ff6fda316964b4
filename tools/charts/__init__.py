"""The style of all plots and pages: bars as data, drawings, one HTML page."""

__all__: list[str] = []
