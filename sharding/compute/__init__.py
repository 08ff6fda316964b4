"""Kernels in C and Python, keyed random numbers, class counts and Arrow casts."""

__all__: list[str] = []
