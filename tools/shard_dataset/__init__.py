"""`shard-dataset`: the program, its commands, flags and reports.

Tested in tests/tools/shard_dataset/test_program.py.
"""

from .program import main, run

__all__ = ["main", "run"]
