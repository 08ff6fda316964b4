"""Read arrays as records: HDF5, NumPy, IDX."""

__all__: list[str] = []
