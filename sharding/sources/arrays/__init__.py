"""Sources of arrays whose rows are records: HDF5, NumPy, IDX."""

__all__: list[str] = []
