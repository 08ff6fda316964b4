"""Read records one by one: TFRecord, WebDataset, Python functions."""

__all__: list[str] = []
