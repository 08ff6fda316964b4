"""`shard-dataset`: its program, commands, flags and reports."""

from .program import main, run

__all__ = ["main", "run"]
