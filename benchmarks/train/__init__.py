"""Benchmarks of `ringfeed train`: its start, its steps and its optimizers."""
