"""Benchmarks of `ringfeed train`: its ranks, optimizers, memory and records."""
