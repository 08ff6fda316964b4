"""`shard-dataset`: the program, its commands, flags and reports."""

from .program import main, run

__all__ = ["main", "run"]
