"""`python -m ringfeed.tools.shard_dataset`."""

from .program import run

__all__: list[str] = []

if __name__ == "__main__":
    run()
