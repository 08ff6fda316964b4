"""`python -m ringfeed.tools.shard_dataset`.

Tested in tests/tools/shard_dataset/test_program.py.
"""

from .program import run

__all__: list[str] = []

if __name__ == "__main__":
    run()
